"""The page's first view: one line that says what a head looked up, a switch that turns it off, links."""

import re

import pytest
from playwright.sync_api import Page, expect

from regard.cli.parts.demo_text import STORY
from regard.cli.parts.model import Model
from regard.gpt import GPT
from regard.show.data.contents import Contents
from regard.show.data.lookup import record_lookup
from regard.show.saved.kept_heads import keep_telling_heads
from regard.show.saved.pack import estimate_size
from tests.browser.eventually import box_of, expect_weight
from tests.browser.openers import Opener
from tests.captures import captured

TEXT = "Mary Quill met Tom Vexley. Then Tom Vexley saw Mary Quill"


@pytest.fixture(scope="module")
def opened() -> Model:
    return Model.of(GPT.from_pretrained("default"), "A model")


def test_the_page_opens_on_what_a_head_looked_up_and_turns_it_off(
    page: Page, opened: Model, saved: Opener
) -> None:
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


def test_the_story_says_what_an_induction_head_is(page: Page, opened: Model, saved: Opener) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(saved(Contents(opened.read(STORY))))
    name = page.get_by_role("button", name="an induction head")
    expect(page.locator(".story-line")).to_contain_text(
        "on what followed “Farrow” before. It is an induction head."
    )
    # Nothing lies over the arc: it and both of its ends are in the window.
    for end in (page.locator(".tok.at"), page.locator(".arc").first):
        box = box_of(end)
        assert box["y"] + box["height"] <= 844
    name.click()
    expect(page.get_by_role("dialog")).to_contain_text("finds an earlier copy of the current token")


def test_a_link_opens_a_head_and_a_token(page: Page, opened: Model, saved: Opener) -> None:
    page.goto(f"{saved(opened.read(TEXT))}#view=text&head=4.2&token=7")
    expect(page.get_by_label("Layer", exact=True)).to_have_value("4")
    expect(page.locator(".text-notes")).to_contain_text("Token 7")
    expect(page.locator(".text-notes")).to_contain_text("head 2")


def test_a_page_that_would_be_too_large_keeps_the_heads_that_tell_most(page: Page, saved: Opener) -> None:
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
