"""16,384 tokens, served: the map moves, and shows what is there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from regard.recorder import Capture
from regard.show.server.background import BackgroundServer
from tests.captures import captured

T = 16_384


@pytest.fixture(scope="module")
def long_capture() -> Capture:
    return captured(T, layers=1, heads=2, kv_heads=1, width=8, values=False)


def test_a_single_weight_of_a_long_map_is_the_library_s(
    page: Page, serve: Callable[..., BackgroundServer], long_capture: Capture
) -> None:
    running = serve(long_capture)
    page.route("**/api/layer_heads*", lambda route: route.fulfill(json=[]))
    row, col = 12_345, 12_001
    page.goto(f"{running.address}#head=1&zoom=40&x={col}&y={row}&row={row}&col={col}")
    expect(page.locator("#weight")).to_have_attribute("data-weight", re.compile(r"\d"))
    shown = float(page.locator("#weight").get_attribute("data-weight") or "nan")
    assert shown == pytest.approx(float(long_capture[0, 1][0, row, col]), rel=1e-3)
