"""What a capture could not see is said on the page, served and saved."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.captures import captured

SENTENCE = "3 modules that mix tokens could not be captured and are not shown: 2 × GatedDeltaNet, <b>GRU."


def test_modules_that_are_missing_are_named(page: Page, opened: Callable[..., str]) -> None:
    seen = captured()
    seen.missing = {"layers.0.mixer": "GatedDeltaNet", "layers.1.mixer": "GatedDeltaNet", "gru": "<b>GRU"}
    page.goto(opened(seen))
    expect(page.get_by_text(SENTENCE)).to_be_visible()
    expect(page.locator(".grid-head .badge")).to_have_text("Incomplete")
    page.get_by_role("tab", name="Heads").click()
    expect(page.locator(".heads-warning", has_text=SENTENCE).last).to_be_visible()
