"""The served page in a real browser: it opens, passes its own policy, and asks nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from tests.browser.eventually import expect_weight
from tests.browser.openers import Serve
from tests.captures import captured


def test_it_opens_and_asks_only_its_own_server(page: Page, serve: Serve) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    running = serve(captured(64))
    page.goto(running.address)
    expect(page.locator("#model")).to_have_text("random")
    expect(page.locator("canvas").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert any("/api/tile" in url for url in asked)
    own = running.bound_address.origin
    assert [url for url in asked if not url.startswith((own, "data:", "blob:"))] == []


def test_the_key_leaves_the_address_and_the_page_can_be_reloaded(page: Page, serve: Serve) -> None:
    running = serve()
    secrets, origin = running.bound_address.secrets, running.bound_address.origin
    page.goto(f"{running.address}#view=heads&layer=1")
    expect(page.locator("#view-heads")).to_be_visible()
    expect(page).to_have_url(f"{origin}#view=heads&layer=1")
    assert secrets.token not in page.evaluate(
        "performance.getEntriesByType('resource').map((e) => e.name).join()"
    )
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.reload()
    expect(page.locator("#view-heads")).to_be_visible()
    page.go_back()  # to the empty page that was there before: the address with the key is not in between
    assert page.url == "about:blank"


def test_a_second_tab_and_a_second_server_work_beside_the_first(
    page: Page, context: BrowserContext, serve: Serve
) -> None:
    first, second = serve(captured(16)), serve(captured(16, model="second"))
    page.goto(first.address)
    expect(page.locator("#model")).to_have_text("random")
    tab = context.new_page()
    tab.goto(second.address)
    expect(tab.locator("#model")).to_have_text("second")
    tab.goto(first.bound_address.origin)  # without the key, which this browser has
    expect(tab.locator("#model")).to_have_text("random")
    page.goto(second.bound_address.origin)
    expect(page.locator("#model")).to_have_text("second")


@pytest.mark.parametrize("how", ["link", "ticket"])
def test_the_address_opens_from_anywhere(page: Page, serve: Serve, tmp_path: Path, how: str) -> None:
    """A link on another site counts as cross-site, and a strict cookie is not sent with it."""
    running = serve()
    if how == "link":
        (tmp_path / "notes.html").write_text(f'<a href="{running.address}#layer=1">the page</a>', "utf-8")
        page.goto((tmp_path / "notes.html").as_uri())
        page.get_by_text("the page").click()
    else:  # what a command opens
        page.goto(f"{running.bound_address.ticket_address}#layer=1")
    expect(page.locator("#model")).to_have_text("random")
    expect(page).to_have_url(f"{running.bound_address.origin}#layer=1")
    page.reload()
    expect(page.locator("#model")).to_have_text("random")


def test_without_the_key_the_page_says_where_it_is(page: Page, serve: Serve) -> None:
    answer = page.goto(serve().bound_address.origin)
    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_role("heading")).to_have_text("This page needs its whole address")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none"  # its policy allows its style
    assert [p for p in page.problems if "403" not in p] == []  # type: ignore[attr-defined]
    page.problems.clear()  # type: ignore[attr-defined]


def test_a_tab_of_a_server_that_was_started_again_says_so(page: Page) -> None:
    with BackgroundServer(Site(Contents(captured()))) as running:
        page.goto(running.address)
        expect(page.locator(".map-stage canvas")).to_be_visible()
        port = running.bound_address.port
    with BackgroundServer(Site(Contents(captured())), port=port):
        page.get_by_role("tab", name="Heads").click()
        expect(page.locator("#view-heads")).to_contain_text("open the whole address")
        page.reload()
        expect(page.get_by_role("heading")).to_have_text("This page needs its whole address")
    page.problems.clear()  # type: ignore[attr-defined]  # the console reports the refusals


def test_a_single_weight_of_a_long_map_is_the_library_s(page: Page, serve: Serve) -> None:
    """Of 16,384 tokens: no map of it fits in memory."""
    seen = captured(16_384, layers=1, heads=2, kv_heads=1, width=8, values=False)
    page.route("**/api/layer_heads*", lambda route: route.fulfill(json=[]))
    row, col = 12_345, 12_001
    page.goto(f"{serve(seen).address}#head=1&zoom=40&x={col}&y={row}&row={row}&col={col}")
    expect_weight(page, float(seen[0, 1][0, row, col]))
