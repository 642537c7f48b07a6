"""The served page in a real browser: it opens, passes its own policy, and asks nobody else."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from regard.show.server.background import BackgroundServer
from tests.captures import captured


def test_it_opens_and_asks_only_its_own_server(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    running = serve(captured(64))
    page.goto(running.address)
    expect(page.locator("#model")).to_have_text("random")
    expect(page.locator("canvas").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert any("/api/tile" in url for url in asked)
    assert [url for url in asked if not url.startswith((running.address, "data:", "blob:"))] == []
