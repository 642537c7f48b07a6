"""The page with the included model: the story it opens on, and texts, cuts and generation in a saved page."""

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

import regard
from regard.cli.parts.demo_text import STORY
from regard.cli.parts.model import Model
from regard.gpt import GPT
from regard.show.data.contents import Contents
from regard.show.data.lookup import record_lookup
from regard.show.saved.bundle import write
from regard.show.saved.kept_heads import keep_telling_heads
from regard.show.saved.pack import estimate_size
from regard.show.saved.rounded_model import round_model
from tests.browser.eventually import expect_weight, link
from tests.browser.page_pool import PooledPage
from tests.captures import captured

TEXT = "Mary Quill met Tom Vexley. Then Tom Vexley saw Mary Quill"


@pytest.fixture(scope="module")
def opened():
    return Model.of(GPT.from_pretrained("default"), "A model")


def test_the_page_opens_on_what_a_head_looked_up_and_turns_it_off(page, opened, saved):
    contents = Contents(opened.read(TEXT))
    contents.lookup = record_lookup(contents, opened.run_cut)
    assert contents.lookup is not None
    contents.forget_meta()
    page.goto(saved(contents))
    expect(page.locator("#tab-text")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".story-line")).to_have_text(re.compile(r"^After .+ the model expects .+%"))
    expect(page.get_by_role("tab").first).to_have_text("Text")
    page.get_by_role("switch", name="turn the lookup off").click()
    expect(page.locator(".story-bars li")).to_have_count(3)
    expect(page.locator(".story-bars")).to_contain_text("random head")
    expect(page.get_by_text("your own text")).to_have_count(0)  # there is no model to read it


def test_the_story_says_what_an_induction_head_is(page, opened, saved):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(saved(Contents(opened.read(STORY))))
    name = page.get_by_role("button", name="an induction head")
    expect(page.locator(".story-line")).to_contain_text(
        "on what followed “Farrow” before. It is an induction head."
    )
    # Nothing lies over the arc: it and both of its ends are in the window.
    for end in (page.locator(".tok.at"), page.locator(".arc").first):
        box = end.bounding_box()
        assert box["y"] + box["height"] <= 844
    name.click()
    expect(page.get_by_role("dialog")).to_contain_text("finds an earlier copy of the current token")


def test_a_link_opens_a_head_and_a_token(page, opened, saved):
    page.goto(f"{saved(opened.read(TEXT))}#view=text&head=4.2&token=7")
    expect(page.get_by_label("Layer", exact=True)).to_have_value("4")
    expect(page.locator(".text-notes")).to_contain_text("Token 7")
    expect(page.locator(".text-notes")).to_contain_text("head 2")


def test_a_page_that_would_be_too_large_keeps_the_heads_that_tell_most(page, saved):
    contents = Contents(captured(60, layers=3))
    smaller = keep_telling_heads(contents, most=estimate_size(contents) * 6 // 10)
    kept = [(layer.key, head) for layer in smaller.texts[0].layers for head in layer.heads]
    assert 1 < len(kept) < 12
    assert smaller.start in [(str(layer), head) for layer, head in kept]
    page.goto(saved(smaller) + "#view=map")
    expect(page.locator(".thumb")).to_have_count(len(kept))
    note = page.locator(".left-out-heads")
    note.click()
    expect(note).to_contain_text(f"The {len(kept)} of 12 heads that tell most")
    expect(note).to_contain_text(smaller.left_out[0])
    layer, head = kept[-1]
    page.goto(saved(smaller) + f"#layer={layer}&head={head}&row=40&col=7")
    expect_weight(page, float(contents.texts[0][layer, head][0, 40, 7]), 1e-2)


TYPED = "The sea was calm, and the sea was deep. 海 The sea was"


@pytest.fixture(scope="module")
def exact():
    return GPT.from_pretrained("default")


@pytest.fixture(scope="module")
def model(exact):
    """The model of the page, whose weights are rounded."""
    return round_model(exact).model


@pytest.fixture(scope="module")
def file(exact, tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "page.html"
    seen = Model.of(exact, "A model").read("One two three. One two")
    return write(seen, path, model=exact)


@pytest.fixture(scope="module")
def shared_page(browser, file):
    """One page that has read a text, with the network off; what it asks for or complains of fails."""
    pooled = PooledPage(browser, {"viewport": {"width": 1280, "height": 800}, "offline": True})
    page = pooled.page
    page.goto(f"{file.as_uri()}#view=text&text={quote(TYPED)}")  # a link with a text has the model read it
    expect(page.locator("#text option:checked")).to_have_text(re.compile(TYPED[:12]))
    yield page
    pooled.close()
    assert pooled.problems == []
    assert [url for url in pooled.requested if not url.startswith(("file:", "blob:", "data:"))] == []


def show(page, state):
    """Go to a view of the text that was read in the page."""
    page.goto(f"{link(page).partition('#')[0]}#text=1&{state}")


def test_a_typed_text_has_the_librarys_tokens_and_predictions(shared_page, model):
    seen = regard.capture(model, text=TYPED, predictions=True)
    last = len(seen.tokens[0]) - 1
    show(shared_page, f"view=text&row={last}")
    expect(shared_page.locator("#view-text .tok")).to_have_count(last + 1)
    likeliest = seen.predictions.word(int(seen.predictions.likeliest[0, -1, 0])).strip()
    expect(shared_page.locator("#view-text")).to_contain_text(likeliest)


def test_the_lookup_is_turned_off_beside_random_heads(shared_page):
    show(shared_page, "view=text")
    expect(shared_page.locator(".story-line")).to_contain_text("the model expects")
    shared_page.get_by_role("switch", name="turn the lookup off").click()
    bars = shared_page.locator(".story-bars li")
    expect(bars.nth(2)).to_have_text(re.compile(r"^without .*random head.*%, .*%$"))
    expect(bars.nth(1)).to_have_text(re.compile(r"^without head.*%$|hardly any"))


def test_its_heads_have_maps_scores_and_certificates(shared_page):
    show(shared_page, "view=map")
    expect(shared_page.locator("#view-map")).to_contain_text("rows compared, in this page")
    expect(shared_page.locator("#view-map")).not_to_contain_text("This file stores rounded queries")
    expect(shared_page.locator("#view-map")).to_contain_text(
        "The model in this file has rounded weights: the loss is "
    )
    show(shared_page, "view=heads")
    expect(shared_page.locator("#view-heads")).to_contain_text("induction")
    show(shared_page, "view=steps&row=5")
    expect(shared_page.locator("#view-steps")).to_contain_text("sum to 1.0000")


def test_few_controls_are_in_sight_and_settings_have_the_others(shared_page):
    shared_page.set_viewport_size({"width": 1440, "height": 900})
    inside = {"text": ".bar-of-choices", "map": ".map-main"}
    for view, most in (("text", 5), ("map", 4)):
        show(shared_page, f"view={view}")
        controls = shared_page.locator(
            f"#view-{view} {inside[view]} :is(select, input, button, summary)"
        ).locator("visible=true")
        expect(shared_page.locator(f"#view-{view}").get_by_text("Export", exact=True)).to_be_visible()
        before = controls.count()
        assert 2 < before <= most, controls.all_text_contents()
        shared_page.locator(f"#view-{view}").get_by_role("button", name="Settings").click()
        expect(shared_page.locator(f"#view-{view}").get_by_role("radio").first).to_be_visible()
        assert controls.count() > before
        shared_page.locator(f"#view-{view}").get_by_role("button", name="Settings").click()


def test_five_things_are_shown_one_after_another(shared_page):
    show(shared_page, "view=map")
    shared_page.locator("#glossary").click()
    expect(shared_page.locator(".glossary-body h3").first).to_have_text("Start here")
    shared_page.get_by_role("button", name="Show me five things").click()
    line = shared_page.locator(".walk")
    for n, view in enumerate(("text", "map", "heads", "steps", "compare"), 1):
        expect(line).to_contain_text(f"{n} of 5. ")
        expect(shared_page.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
        shared_page.get_by_role("button", name="Done" if n == 5 else "Next", exact=True).click()
    expect(line).to_have_count(0)


def test_nothing_scrolls_sideways_at_a_zoom_of_200_percent(shared_page):
    for width, height in ((720, 450), (683, 384), (640, 400)):
        shared_page.set_viewport_size({"width": width, "height": height})
        for view in ("text", "map", "heads", "compare", "steps"):
            show(shared_page, f"view={view}")
            expect(shared_page.locator(f"#view-{view}")).to_be_visible()
            assert shared_page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
    shared_page.set_viewport_size({"width": 1280, "height": 800})


def test_a_head_is_cut_and_the_run_is_undone(shared_page):
    show(shared_page, "view=map")
    shared_page.get_by_role("switch", name="Cut head").locator("visible=true").first.click()
    expect(shared_page.locator("#text option:checked")).to_contain_text("Edited run")
    # The cut is shown as soon as it has run; what random heads change stands beside it a moment later.
    expect(shared_page.locator(".run-random")).to_have_text(re.compile(r"^a random head: [+−]?\d"))
    shared_page.get_by_role("button", name="Undo").first.click()
    expect(shared_page.locator("#text option:checked")).to_have_text(re.compile(TYPED[:12]))


def test_the_model_writes_what_the_library_writes(shared_page, model):
    show(shared_page, "view=write")
    shared_page.get_by_label("Prompt").fill("The sea was")
    shared_page.get_by_label("Number of tokens to generate").fill("5")
    shared_page.get_by_label("Temperature").fill("0")
    shared_page.get_by_role("button", name="Generate").click()
    done = "5 tokens generated, each with the cache and without it."
    expect(shared_page.get_by_text(done)).to_be_visible()
    expected = model.generate("The sea was", max_new_tokens=5).removeprefix("The sea was")
    expect(shared_page.locator(".written")).to_have_text(re.compile(re.escape(expected) + "$"))
