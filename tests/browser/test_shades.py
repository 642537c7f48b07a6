"""What cells and shades stand for: words, contributions, and the difference of two heads side by side."""

import functools
import re
from contextlib import nullcontext
from itertools import pairwise

import pytest
from playwright.sync_api import expect

import regard
from regard.gpt import GPT
from regard.show.data.map_view.quantity import text_units
from tests import truth
from tests.browser.eventually import eventually, expect_weight, open_settings, state
from tests.captures import captured

PIECES = ["<s>", "The", " light", "house", " is", " lit", ".", " It", " is", " warm", "!", " We", " see"]
TOKENS = (PIECES * 4)[:40]
TEXT = (
    "Captain Reed sailed from Lisbon. Mary Ellis wrote to Captain Reed, and Captain Reed sailed from Lisbon."
)
CANVAS = ".map-stage canvas"


@functools.cache
def read(*cut):
    """The included model on a short text, perhaps with some heads cut."""
    model = GPT.from_pretrained("default")
    edits = [regard.ablate(*head) for head in cut]
    with regard.intervene(model, *edits) if edits else nullcontext():
        return regard.capture(model, text=TEXT, contributions=True, predictions=True)


def by_words(m):
    """The map of a head, summed over the keys and averaged over the queries of words."""
    words = list(pairwise(text_units(TOKENS)["words"]))
    return truth.cells(m.to_dense()[0], words, words)[0]


def test_words_on_the_map_are_named_and_read(page, opened):
    seen = captured(40, tokens=TOKENS)
    page.goto(opened(seen) + "#layer=1&head=2&row=34&col=29")
    expect(page.locator("#weight")).to_have_attribute("data-weight", re.compile(r"\d"))
    open_settings(page)
    page.get_by_role("radio", name="words").check()
    words = by_words(seen[1, 2])
    expect(page.locator(".map-foot")).to_contain_text("One cell from word to word is attention mass")
    expect(page.locator(".map-notes .facts").first).to_contain_text("lighthouse")
    row, col = (int(page.locator(".map-notes .facts dd").nth(n).inner_text().split()[0]) for n in (0, 1))
    expect_weight(page, float(words[row, col]), 0.01)
    state(page, lambda at: at.get("units") == "words")
    # The pointer says both words and their share.
    box = page.locator(CANVAS).bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 0.8 * box["height"])
    expect(page.locator(".tip")).to_have_text(re.compile(r"^\S+ → \S+ +.*%$|hidden by the mask"))


def test_words_are_the_units_of_the_text(page, opened):
    seen = captured(40, tokens=TOKENS)
    page.goto(opened(seen) + "#view=text&layer=0&head=1&units=words")
    edges = text_units(TOKENS)["words"]
    expect(page.locator("#view-text .tok")).to_have_count(len(edges) - 1)
    unit = next(n for n, edge in enumerate(edges) if edge > 26)
    page.click(f"#tok-{unit}")
    expect(page.locator(".text-notes h3").first).to_have_text(f"Word {unit}, pinned")
    words = by_words(seen[0, 1])[unit]
    best = page.locator(".text-notes .ranked button").first
    expect(best.locator(".place")).to_have_text(str(int(words.argmax())))
    highest = float(words.max())
    shown = lambda: float(best.locator(".weight").get_attribute("data-weight") or "nan")  # noqa: E731
    eventually(page, shown, lambda weight: weight == pytest.approx(highest, rel=0.01))
    expect(page.locator(".text-said")).to_have_text(re.compile(r"attends to “.*” \d[\d.]*%"))
    open_settings(page)
    page.get_by_role("radio", name="sentences").check()
    expect(page.locator("#view-text .tok")).to_have_count(len(text_units(TOKENS)["sentences"]) - 1)
    expect(page.locator(".text-notes h3").first).to_have_text(re.compile(r"^Sentence \d+, pinned$"))


def test_value_weighted_attention(page, opened):
    seen = read()
    page.goto(opened(seen) + "#layer=4&head=2&row=20&col=5")
    open_settings(page)
    page.locator("#view-map").get_by_label("Quantity", exact=True).select_option("values")
    expect(page.locator(".map-foot")).to_contain_text("norm of what the key’s value adds")
    expect(page.locator(".map-notes h3").first).to_have_text("Value-weighted")
    expect_weight(page, float(seen.value_weighted(4)[0, 2, 20, 5]))
    expect(page.get_by_role("radio", name="max")).to_be_hidden()


def test_where_a_logit_comes_from(page, opened):
    seen = read()
    page.goto(opened(seen) + "#view=text&scope=all")
    open_settings(page)
    page.locator("#view-text").get_by_label("Quantity", exact=True).select_option("logit")
    panel = page.locator("#view-text .attribution")
    expect(panel.locator("h3")).to_contain_text("What speaks for")
    position = int(re.search(r"\((\d+)\)", panel.locator("h3").inner_text())[1])
    token = int(seen.predictions.likeliest[0, position, 0])
    found = seen.attribution(token, position=position)
    numbers = [
        float(text.replace("−", "-").replace("+", ""))
        for text in panel.locator(".logit-sum dd").all_inner_texts()
    ]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.03)
    assert numbers[-1] == pytest.approx(found.logit, abs=0.01)
    # The tokens that it is read from, over all heads.
    rows = sum(found.edges(layer, head)[position] for layer in range(6) for head in range(4))
    best = page.locator(".text-notes .ranked button").first
    assert int(best.locator(".place").inner_text()) == int(rows.abs().argmax())
    assert float(best.locator(".weight").inner_text().replace("+", "")) == pytest.approx(
        float(rows.max()), rel=0.01
    )
    expect(page.locator(".text-said")).to_contain_text("is predicted from")
    # A head of the table opens on the map, whose row is the head's contribution.
    layer, head = divmod(int(found.heads.argmax()), 4)
    panel.get_by_role("gridcell", name=f"Layer {layer}, head {head}:").click()
    page.get_by_role("tab", name="Map").click()
    expect(page.locator("#map-title")).to_have_text(f"Layer {layer}, head {head}")
    expect(page.locator(".map-foot")).to_contain_text(f"Row {position} adds up")
    # Another token.
    second = int(seen.predictions.likeliest[0, position, 1])
    open_settings(page)
    page.locator("#view-map").get_by_label("Next token").select_option(str(second))
    other = seen.attribution(second, position=position).logit
    total = page.locator("#view-map .logit-sum dd").last
    expect(total).to_have_text(f"{other:+.2f}".replace("-", "−"))


def test_a_file_says_that_it_holds_the_contributions_after_one_token(page, saved):
    page.goto(saved(read()) + "#view=text&shade=logit")
    expect(page.locator("#view-text .attribution")).to_contain_text("after this token only")


NUMBERS = re.compile(
    r"^“·t(\d+)” → “·t(\d+)”: A <?([\d.]+)%, B <?([\d.]+)%, difference ([+−]?<?[\d.]+) points$"
)


def points(text):
    return float(text.replace("−", "-"))


def test_two_captures_have_their_names_and_move_together(page, opened, export):
    seen = [captured(60, model="model-a"), captured(60, model="model-b", seed=3)]
    page.goto(opened(seen) + "#view=compare&layer=1&head=2")
    expect(page.locator("#text-choice")).to_contain_text("Capture")
    expect(page.locator("#text option").nth(1)).to_contain_text("model-b")
    expect(page.locator("#model")).to_have_text("model-a")
    expect(page.locator(".compare-model")).to_have_text(["model-a", "model-b"])
    expect(page.locator(".compare-side .head-sentence").nth(1)).to_contain_text("attention")
    expect(page.locator(".compare-pane .ramp").nth(1)).to_contain_text("%")
    # The titles of all three stand at one height, and so do the maps.
    for part in (".compare-side h3", ".compare-stage"):
        tops = [one.bounding_box()["y"] for one in page.locator(part).all()]
        assert len(tops) == 3
        assert max(tops) - min(tops) <= 3
    # Colours end at the same number in A and B.
    ends = page.locator(".compare-pane .ramp span:last-child").all_inner_texts()
    assert ends[0] == ends[1]
    # What is pointed at in one map is pointed at in all, and zooming one zooms all.
    canvas = page.locator(".compare-stage canvas")
    said = page.locator(".compare-said")
    canvas.nth(0).hover(position={"x": 200, "y": 250})
    page.mouse.wheel(0, -700)
    expect(page).to_have_url(re.compile("zoom="))
    sentences = []
    for n in range(3):
        canvas.nth(n).hover(position={"x": 160, "y": 260})
        expect(said).to_have_text(NUMBERS)
        sentences.append(said.inner_text())
    assert len(set(sentences)) == 1
    found = NUMBERS.match(sentences[0])
    a, b, difference = (points(found[n]) for n in (3, 4, 5))
    assert difference == pytest.approx(a - b, abs=1.1)
    # Those are weights of the two captures.
    for one, weight in zip(seen, (a, b), strict=True):
        dense = one[1, 2].to_dense()[0]
        assert (100 * dense - weight).abs().min() < 0.51
    # A cell that is chosen in one is marked, and stays in the address.
    canvas.nth(1).click(position={"x": 160, "y": 260})
    expect(page).to_have_url(re.compile("row=.*col="))
    text = export("compare", "SVG").read_text("utf-8")
    assert "A: model-a: layer 1, head 2" in text
    assert "B: model-b: layer 1, head 2" in text
    page.locator("#text").select_option("1")
    expect(page.locator("#model")).to_have_text("model-b")


def test_any_two_heads_are_chosen_and_only_equal_shapes_are_subtracted(page, saved):
    page.goto(saved([captured(60), captured(40, seed=5)]) + "#view=compare&pair=0/0/1,0/1/2")
    expect(page.locator("#text-choice")).to_contain_text("Text")
    expect(page.locator(".compare-title h3").nth(1)).to_have_text(re.compile("^Layer 1, head 2"))
    expect(page.locator(".compare-row").first.locator(".score-bar .null")).to_have_count(2)
    expect(page.locator(".compare-stage")).to_have_count(3)
    page.get_by_label("Head B").select_option("3")
    expect(page).to_have_url(re.compile("pair=0%2F0%2F1%2C0%2F1%2F3"))
    page.get_by_role("button", name="Swap A and B").click()
    expect(page.locator(".compare-title h3").first).to_have_text(re.compile("^Layer 1, head 3"))
    page.get_by_label("Text B").select_option("1")
    expect(page.locator(".compare-pane").nth(2)).to_contain_text("A has 60 × 60 cells and B 40 × 40")
    expect(page.locator(".compare-stage").nth(2)).to_be_hidden()
    page.locator(".compare-pane").nth(0).get_by_role("button", name="Open in the Map").click()
    expect(page.locator("#map-title")).to_contain_text("Layer 1, head 3")
