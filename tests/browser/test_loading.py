"""Waiting: the page before the model has read, and maps and thumbnails that are still being computed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.opening_site import CANCELLED, OpeningSite
from tests.browser.openers import Serve
from tests.captures import captured

PIXEL = """() => {
  const canvas = document.querySelector(".map-stage canvas");
  const copy = new OffscreenCanvas(40, 40).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, -canvas.width / 2, -canvas.height / 2);
  const pixels = copy.getImageData(0, 0, 40, 40).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) colours.add(pixels.slice(i, i + 3).join());
  return [...colours];
}"""
GROUND = """() => {
  const probe = document.createElement("i");
  probe.style.color = "var(--line)";
  document.body.append(probe);
  return getComputedStyle(probe).color.match(/\\d+/g).join();
}"""


@pytest.fixture
def opening() -> Iterator[BackgroundServer]:
    with BackgroundServer(OpeningSite()) as running:
        yield running


def test_the_page_is_there_before_the_model_has_read(page: Page, opening: BackgroundServer) -> None:
    site = opening.site
    assert isinstance(site, OpeningSite)
    site.report("opening smollm2", 0, 0)
    page.goto(f"{opening.address}#view=heads")
    panel = page.get_by_role("status").filter(has_text="smollm2")
    expect(panel).to_have_text("Opening smollm2…Cancel")
    site.report("reading the text", 0, 30)
    site.report("reading the text", 12, 30)
    expect(page.get_by_text("Reading the text: 12 of 30 layers")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_js_property("value", 0.4)
    site.open(Site(Contents(captured(24))))
    expect(page.locator("#model")).to_have_text("random")
    expect(page.get_by_text("Reading the text")).to_be_hidden()
    expect(page.locator("#view-heads")).to_contain_text("head")
    page.reload()
    expect(page.locator("#view-heads")).to_contain_text("head")


def test_the_reader_cancels_the_opening_and_a_failure_is_a_sentence(
    page: Page, opening: BackgroundServer
) -> None:
    page.goto(opening.address)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("main")).to_have_text(f"The page could not be opened. {CANCELLED}")
    page.problems.clear()  # type: ignore[attr-defined]  # the browser's own line for an answer of 503


def test_what_is_being_computed_looks_unlike_what_the_mask_hides_and_can_be_cancelled(
    page: Page, serve: Serve
) -> None:
    held: list[Route] = []
    page.route("**/api/t*", lambda route: held.append(route))  # tiles and thumbnails
    page.goto(serve(captured(64)).address)
    panel = page.locator(".map-stage .progress-panel")
    expect(panel).to_contain_text("Computing this head: 0 of 1 parts")
    assert page.evaluate(PIXEL) == [page.evaluate(GROUND)]
    expect(page.locator(".thumb.waiting")).to_have_count(8)
    expect(page.locator(".map-side .progress-panel")).to_contain_text("Drawing every head: 0 of 2 layers")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel).to_contain_text("Stopped: 1 of 1 parts of this map are missing.")
    for route in held:
        if "thumbs" in route.request.url:  # the tile was cancelled
            route.continue_()
    page.unroute("**/api/t*")
    expect(page.locator(".thumb.waiting")).to_have_count(0)
    expect(page.locator(".map-side .progress-panel")).to_be_hidden()
    panel.get_by_role("button", name="Go on").click()
    expect(panel).to_be_hidden()
    page.wait_for_function(f"(ground) => !({PIXEL})().includes(ground)", arg=page.evaluate(GROUND))


def test_scores_come_layer_by_layer_and_can_be_cancelled(page: Page, serve: Serve) -> None:
    held: list[Route] = []
    others = re.compile(r"/api/layer_heads\?.*layer=[023]")
    page.route(others, lambda route: held.append(route))
    page.goto(f"{serve(captured(24, layers=4)).address}#view=heads&layer=1")
    panel = page.locator("#view-heads .progress-panel")
    expect(panel).to_contain_text("Scoring the heads: 1 of 4 layers")
    expect(page.locator("#view-heads .gallery li")).to_have_count(4)  # those of the chosen layer
    panel.get_by_role("button", name="Cancel").click()
    expect(panel).to_contain_text("Stopped: the scores of 3 of 4 layers are missing.")
    for route in held:
        route.continue_()
    page.unroute(others)
    expect(panel).to_contain_text("Stopped: the scores of 1 of 4 layers are missing.")  # two came
    panel.get_by_role("button", name="Go on").click()
    expect(panel).to_be_hidden()
    expect(page.locator("#view-heads .gallery li")).to_have_count(16)
