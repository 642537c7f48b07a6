"""What stands around the views: tabs, the way past them, and the reader's place in the address."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.openers import Serve


def test_skipping_to_the_picture_keeps_the_place(page: Page, serve: Serve) -> None:
    place = "view=heads&layer=1&head=2"
    page.goto(f"{serve().address}#{place}")
    expect(page.locator(".view canvas").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the picture")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page).to_have_url(re.compile(f"#{place}$"))
    expect(page.locator("#view-heads")).to_be_visible()


def test_tabs_by_keys(page: Page, serve: Serve) -> None:
    page.goto(serve().address)
    page.locator("#tab-text").focus()
    for key, view in (
        ("ArrowRight", "map"),
        ("End", "cache"),
        ("ArrowRight", "text"),
        ("ArrowLeft", "cache"),
    ):
        page.keyboard.press(key)
        expect(page.locator(f"#tab-{view}")).to_be_focused()
        expect(page.locator(f"#view-{view}")).to_be_visible()
    page.keyboard.press("Home")
    expect(page.locator("#view-text")).to_be_visible()
