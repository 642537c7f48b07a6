"""Two heads side by side, of two captures or of one: maps that move together, and their difference."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.eventually import box_of
from tests.browser.openers import Export, Opener
from tests.captures import captured

NUMBERS = re.compile(
    r"^“·t(\d+)” → “·t(\d+)”: A <?([\d.]+)%, B <?([\d.]+)%, difference ([+−]?<?[\d.]+) points$"
)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_two_captures_have_their_names_and_move_together(page: Page, opened: Opener, export: Export) -> None:
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
        tops = [box_of(one)["y"] for one in page.locator(part).all()]
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
    assert found is not None
    a, b, difference = (number(found[n]) for n in (3, 4, 5))
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


def test_any_two_heads_are_chosen_and_only_equal_shapes_are_subtracted(page: Page, saved: Opener) -> None:
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
