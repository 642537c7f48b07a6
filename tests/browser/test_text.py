"""The text view: what a token looks at and what the model expects after it, as the library has it."""

import re

import pytest
from playwright.sync_api import expect

from regard.recorder.tokens_of_maps.tokens import TextTooLongError
from regard.show.data.contents import Contents
from tests.browser.eventually import eventually, open_settings
from tests.captures import captured, predicted


def ranked(page):
    rows = page.locator("#view-text .ranked button")
    return [
        (
            int(row.locator(".place").inner_text()),
            float(row.locator(".weight").get_attribute("data-weight") or "nan"),
        )
        for row in rows.all()
    ]


def expect_highest(page, weight):
    """Wait until the first weight of the list is this one."""
    eventually(
        page, lambda: ranked(page), lambda rows: bool(rows) and rows[0][1] == pytest.approx(weight, rel=0.01)
    )


def test_pointing_shows_what_a_token_looks_at(page, opened):
    seen = captured(60)
    page.goto(opened(seen) + "#view=text&layer=1&head=2")
    page.hover("#tok-41")
    expect(page.locator("#view-text .text-notes h3").first).to_have_text("Token 41")
    weights = seen[1, 2].to_dense()[0, 41]
    keys = weights.argsort(descending=True)[:5].tolist()
    found = eventually(page, lambda: ranked(page), lambda rows: [key for key, _ in rows] == keys)
    assert [w for _, w in found] == pytest.approx(weights.sort(descending=True).values[:5].tolist(), rel=0.01)
    darkest = page.locator(f"#tok-{found[0][0]}").evaluate("e => getComputedStyle(e).backgroundColor")
    assert darkest != page.locator("#tok-50").evaluate("e => getComputedStyle(e).backgroundColor")


def test_who_looks_at_it_and_the_mean_of_a_layer_and_of_all(page, opened):
    seen = captured(60)
    page.goto(opened(seen) + "#view=text&layer=0&head=1")
    open_settings(page)
    page.get_by_label("what attends to it").check()
    page.click("#tok-3")
    column = seen[0, 1].to_dense()[0, :, 3]
    expect(page.locator("#view-text .ranked button .place").first).to_have_text(str(int(column.argmax())))
    expect_highest(page, float(column.max()))
    page.get_by_label("what it attends to").check()
    page.click("#tok-30")
    for option, mean in (
        ("the layer", seen[0].to_dense()[0, :, 30].mean(0)),
        ("all layers", sum(m.to_dense()[0, :, 30].mean(0) for m in seen) / 2),
    ):
        page.get_by_label(option).check()
        expect(page.locator("#view-text .text-notes p.quiet").first).to_contain_text("The mean over")
        expect_highest(page, float(mean.max()))


def test_keys_walk_pin_and_let_go(page, serve):
    page.goto(serve(captured(40)).address + "#view=text")
    page.locator("#view-text .text-body").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    chosen = page.locator("#view-text .text-notes h3").first
    expect(chosen).to_have_text("Token 2")
    page.keyboard.press("Enter")
    expect(chosen).to_have_text("Token 2, pinned")
    expect(page).to_have_url(re.compile("row=2"))
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".text-said")).to_contain_text("attends to “·t1”")
    page.keyboard.press("Escape")
    expect(chosen).to_have_text(re.compile(r"^Token \d+$"))
    page.keyboard.press("End")
    expect(chosen).to_have_text("Token 39")
    page.keyboard.press("ArrowUp")
    expect(chosen).not_to_have_text("Token 39")
    page.reload()
    expect(page.locator("#view-text .text-body")).to_be_visible()


def test_the_sink_is_left_out_and_said(page, serve):
    seen = captured(40)
    page.goto(serve(seen).address + "#view=text&row=30")
    expect(page.locator("#view-text .ranked li")).to_have_count(5)
    open_settings(page)
    page.locator("#view-text").get_by_label("left out").check()
    expect(page.locator(".text-note")).to_contain_text("Left out of the shading")
    found = re.search(r"token (\d+), with ([\d.]+)%\.", page.locator(".text-note").inner_text())
    key, hidden = int(found[1]), float(found[2]) / 100
    row = seen[0, 0].to_dense()[0, 30]
    assert key == seen.heads()[0, 0].sink_key
    assert hidden == pytest.approx(float(row[key]), rel=0.05)
    eventually(page, lambda: [place for place, _ in ranked(page)], lambda places: key not in places)
    expect(page.locator(f"#tok-{key}")).to_have_class(re.compile("left-out"))


def test_texts_are_read_and_removed_from_every_view(page, serve):
    def read(text, tell, *, first=None):
        tokens = text.split(" ")[:first]
        if len(tokens) > 8:
            raise TextTooLongError(len(tokens), 8)
        tell("reading", 1, 2)
        return captured(len(tokens), tokens=tokens)

    page.goto(serve(captured(20), read=read).address + "#view=heads")
    status, area = page.locator(".reading [role=status]"), page.get_by_label("A text to read")
    page.get_by_text("Read another text").click()
    expect(area).to_be_focused()
    page.get_by_role("button", name="Read it").click()
    expect(status).to_have_text("There is no text to read yet: write or paste one.")
    area.fill("a <b>text</b> of five words")
    area.press("Control+Enter")
    expect(page).to_have_url(re.compile(r"view=heads.*&text=a\+%3Cb%3Etext"))  # a link to it can be sent
    expect(page.locator("#text option")).to_have_count(2)
    page.get_by_role("tab", name="Text").click()
    expect(page.locator("#view-text .tok")).to_have_text(["a", "<b>text</b>", "of", "five", "words"])
    # One that is too long is read in part.
    page.get_by_text("Read another text").click()
    area.fill(" ".join("abcdefghij"))
    page.get_by_role("button", name="Read it").click()
    expect(status).to_have_text("This text has 10 tokens; the model reads at most 8.")
    page.get_by_role("button", name="Read the first 8 tokens").click()
    expect(page.locator("#view-text .tok")).to_have_text(list("abcdefgh"))
    # The text that is shown is removed, then another, and the last one stays.
    page.get_by_text("Read another text").click()
    page.get_by_role("button", name="Remove “abc").click()
    expect(page.locator("#text option")).to_have_count(2)
    expect(page.locator("#view-text .tok")).to_have_count(20)
    page.get_by_role("button", name="Remove “a<b>").click()
    expect(page.locator(".held-texts")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(area).to_be_hidden()


def test_the_view_opens_on_a_telling_token_with_its_edges(page, opened):
    tokens = ["<s>", *["\n", " word", ".", " other"] * 10]
    seen = captured(41, tokens=tokens)
    telling = Contents(seen, start=None)[0].telling(None)
    page.goto(opened(seen) + "#view=text")
    expect(page.locator("#view-text .text-notes h3").first).to_have_text(f"Token {telling}")
    assert tokens[telling].strip().isalpha()
    expect(page.locator(f"#tok-{telling}")).to_have_class(re.compile("at"))
    arcs = page.locator("#view-text .arc.first")
    best = [key for key, _ in ranked(page) if key != telling]
    assert 1 <= arcs.count() <= 5
    ends = page.locator("#view-text .arc-end.first").evaluate_all(
        "ends => ends.map(e => e.getBoundingClientRect()).map(r => (r.left + r.right) / 2)"
    )
    boxes = [page.locator(f"#tok-{key}").bounding_box() for key in best[: len(ends)]]
    middles = [box["x"] + box["width"] / 2 for box in boxes if box is not None]
    assert ends == pytest.approx(middles, abs=1)
    # A second head has a colour, a list and arcs of its own.
    open_settings(page)
    page.get_by_label("Second head").select_option("1/3")
    expect(page.locator("#view-text .second-head")).to_contain_text("Layer 1, head 3")
    expect(page.locator("#view-text .arc.second").first).to_be_attached()
    expect(page).to_have_url(re.compile("secondHead=1%2F3"))
    page.get_by_role("tab", name="Steps").click()
    expect(page.locator("#view-steps .lead")).to_contain_text(f"token {telling}, attends to")
    expect(page.locator("#view-steps .strip-token.at")).to_have_count(1)
    expect(page.locator("#view-steps .arc").first).to_be_attached()


def test_a_pinned_token_of_the_address_is_in_sight(page, serve):
    page.goto(serve(captured(3000, layers=1, heads=1, kv_heads=1)).address + "#view=text&row=2500")
    expect(page.locator("#tok-2500")).to_be_in_viewport()


def test_characters_in_pieces_directions_names_and_huge_tokens(page, opened):
    pieces = ["世¹⁄₃", "世²⁄₃", "世³⁄₃", "。", "\n", "م¹⁄₂", "م²⁄₂", "رح", "\n", " a", "\u200b", "\x1b"]
    tokens = [*pieces, "x" * 10_000, " end"]
    page.goto(opened(captured(len(tokens), tokens=tokens)) + "#view=text&row=2")
    body = page.locator("#view-text .text-body")
    expect(body.locator(".line").first).to_have_text("世。↵")
    assert body.locator(".line").evaluate_all("lines => lines.map(line => line.dir)") == ["ltr", "rtl", "ltr"]
    expect(body.locator(".split").first.locator(".tok")).to_have_count(3)
    expect(page.locator("#view-text .big-token")).to_have_text("世³⁄₃")
    expect(page.locator("#tok-10")).to_have_text("⟨ZWSP⟩")
    expect(page.locator("#tok-11")).to_have_text("␛")
    expect(page.locator("#tok-12")).to_have_attribute("title", "10,000 characters")
    page.click("#tok-1", force=True)
    expect(page.locator("#view-text .text-notes h3").first).to_have_text("Token 1, pinned")
    for view in ("map", "heads", "steps", "text"):
        page.locator(f"#tab-{view}").click()
        expect(page.locator(f"#view-{view}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#tok-12").evaluate("e => e.textContent.length") < 500


PANEL = "#view-text .text-predictions"


def listed(page):
    rows = page.locator(f"{PANEL} .likeliest li").all()
    return [(row.locator(".token").inner_text(), row.locator(".weight").inner_text()) for row in rows]


def test_pointing_shows_what_the_model_expects_after_a_token(page, opened):
    seen = predicted(captured(30))
    predictions = seen.predictions
    page.goto(opened(seen) + "#view=text")
    panel = page.locator(PANEL)
    expect(panel).to_contain_text(f"Mean loss over 29 tokens: {predictions.loss.item():.2f}")
    page.hover("#tok-7")
    expect(panel.locator("h3")).to_have_text("After “·t7” the model expects")
    expect(panel.locator(".likeliest li")).to_have_count(10)
    tokens = [f"·t{n}" for n in predictions.likeliest[0, 7].tolist()]
    found = eventually(page, lambda: listed(page), lambda rows: [token for token, _ in rows] == tokens)
    shown = [float(percent.rstrip("%")) / 100 for _, percent in found]
    assert shown == pytest.approx(predictions.probabilities[0, 7].tolist(), rel=0.06)
    loss, rank = predictions.losses[0, 7].item(), predictions.ranks[0, 7].item()
    place = "the likeliest" if rank == 1 else f"rank {rank}"
    expect(panel).to_contain_text(re.compile(rf"In the text follows “·t8”: .*, {place}, loss {loss:.2f}\."))


def test_the_token_that_follows_is_marked_and_the_last_has_none(page, opened):
    seen = predicted(captured(30), vocabulary=13)
    ranks = seen.predictions.ranks[0].tolist()
    among, beyond = (
        next(n for n, rank in enumerate(ranks) if (rank <= 10) is inside) for inside in (True, False)
    )
    page.goto(opened(seen) + f"#view=text&row={among}")
    marked = page.locator(f"{PANEL} .follows .token")
    expect(marked).to_have_text(f"·t{among + 1}" if among < 12 else re.compile("t"))
    page.click(f"#tok-{beyond}")
    expect(page.locator(f"{PANEL} h3")).to_have_text(f"After “·t{beyond % 13}” the model expects")
    expect(marked).to_have_count(0)
    page.click("#tok-29")
    expect(page.locator(PANEL)).to_contain_text("Nothing follows in the text.")
