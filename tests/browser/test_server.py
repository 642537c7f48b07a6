"""The served page: it opens, passes its own policy, asks nobody else, and shows what is still computed."""

import re

import pytest
from playwright.sync_api import expect

from regard.show.data.contents import Contents
from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.opening_site import CANCELLED, OpeningSite
from tests.browser.eventually import expect_weight
from tests.captures import captured


def test_it_opens_and_asks_only_its_own_server(page, serve):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    running = serve(captured(64))
    page.goto(running.address)
    expect(page.locator("#model")).to_have_text("random")
    expect(page.locator("canvas").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert any("/api/tile" in url for url in asked)
    own = running.bound_address.origin
    assert [url for url in asked if not url.startswith((own, "data:", "blob:"))] == []


def test_the_key_leaves_the_address_and_the_page_can_be_reloaded(page, serve):
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


def test_a_second_tab_and_a_second_server_work_beside_the_first(page, context, serve):
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
def test_the_address_opens_from_anywhere(page, serve, tmp_path, how):
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


def test_without_the_key_the_page_says_where_it_is(page, serve):
    answer = page.goto(serve().bound_address.origin)
    assert answer.status == 403
    expect(page.get_by_role("heading")).to_have_text("This page needs its whole address")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none"  # its policy allows its style
    assert [p for p in page.problems if "403" not in p] == []
    page.problems.clear()


def test_a_tab_of_a_server_that_was_started_again_says_so(page):
    with BackgroundServer(Site(Contents(captured()))) as running:
        page.goto(running.address)
        expect(page.locator(".map-stage canvas")).to_be_visible()
        port = running.bound_address.port
    with BackgroundServer(Site(Contents(captured())), port=port):
        page.get_by_role("tab", name="Heads").click()
        expect(page.locator("#view-heads")).to_contain_text("open the whole address")
        page.reload()
        expect(page.get_by_role("heading")).to_have_text("This page needs its whole address")
    page.problems.clear()  # the console reports the refusals


def test_a_single_weight_of_a_long_map_is_the_library_s(page, serve):
    """Of 16,384 tokens: no map of it fits in memory."""
    seen = captured(16_384, layers=1, heads=2, kv_heads=1, width=8, values=False)
    page.route("**/api/layer_heads*", lambda route: route.fulfill(json=[]))
    row, col = 12_345, 12_001
    page.goto(f"{serve(seen).address}#head=1&zoom=40&x={col}&y={row}&row={row}&col={col}")
    expect_weight(page, float(seen[0, 1][0, row, col]))


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
def opening():
    with BackgroundServer(OpeningSite()) as running:
        yield running


def test_the_page_is_there_before_the_model_has_read(page, opening):
    site = opening.site
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


def test_the_reader_cancels_the_opening_and_a_failure_is_a_sentence(page, opening):
    page.goto(opening.address)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("main")).to_have_text(f"The page could not be opened. {CANCELLED}")
    page.problems.clear()  # the browser's own line for an answer of 503


def test_what_is_being_computed_looks_unlike_what_the_mask_hides_and_can_be_cancelled(page, serve):
    held = []
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


def test_scores_come_layer_by_layer_and_can_be_cancelled(page, serve):
    held = []
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
