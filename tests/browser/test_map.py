"""The Map view in a real browser: by mouse and by keys, from the whole map to one weight, and to files."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import regard
from regard.recorder import Capture, Evidence, Layer
from tests.browser.eventually import eventually, expect_weight, open_settings, settle, state
from tests.captures import captured

CANVAS = ".map-stage canvas"
T = 600  # three levels of tiles


@pytest.fixture(scope="module")
def seen():
    return captured(T, layers=2, boundary=200)


def middle(page):
    expect(page.locator("#map-title")).not_to_be_empty()  # the map is there, and listens
    settle(page)
    box = page.locator(CANVAS).bounding_box()
    return box["x"] + 0.35 * box["width"], box["y"] + 0.6 * box["height"]


def pixels(page, x, y):
    """The colour of the canvas at a point of the page."""
    found = page.evaluate(
        """([selector, x, y]) => {
          const canvas = document.querySelector(selector), box = canvas.getBoundingClientRect();
          const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
          const at = [(x - box.left) * devicePixelRatio, (y - box.top) * devicePixelRatio].map(Math.round);
          context.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
          return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [CANVAS, x, y],
    )
    return found


@pytest.fixture
def address(opened, seen):
    """The page of the capture, from a server or from a file."""
    return opened(seen)


def test_zoom_to_a_cell_and_read_the_library_s_number(page, seen, address):
    page.goto(f"{address}#layer=1&head=2")
    x, y = middle(page)
    page.mouse.move(x, y)
    page.mouse.dblclick(x, y)
    # At this zoom numbers are written in the cells.
    at = state(
        page, lambda at: {"row", "col"} <= at.keys() and float(at["zoom"]) >= 28
    )  # numbers in the cells
    row, col = int(at["row"]), int(at["col"])
    page.mouse.move(5, 5)  # off the map: the kept cell is read
    true = float(seen[1, 2][0, row, col])
    expect_weight(page, true)
    expect(page.locator(".facts").first).to_contain_text(f"{row} ·t{row % 13}")
    # The same cell under the pointer says the same.
    page.mouse.move(*cell_point(page, row, col))
    expect_weight(page, true)


def cell_point(page, row, col):
    """Where a cell lies on the page, from what the address says of the camera."""
    box = page.locator(CANVAS).bounding_box()
    at = state(page, lambda at: {"zoom", "x", "y"} <= at.keys())
    zoom, x, y = (float(at[name]) for name in ("zoom", "x", "y"))
    left, top = 112, 96  # the gutters of a wide picture
    wide, high = box["width"] - left - 2, box["height"] - top - 2
    return (
        box["x"] + left + (col + 0.5 - x) * zoom + wide / 2,
        box["y"] + top + (row + 0.5 - y) * zoom + high / 2,
    )


def test_hover_reads_pooled_cells_of_the_whole_map(page, seen, saved):
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{saved(seen)}#layer=0&head=1")
    expect(page.locator("#view-map")).to_contain_text("One cell of 2 × 2 tokens is attention mass")
    box = page.locator(CANVAS).bounding_box()
    page.mouse.move(box["x"] + 76, box["y"] + box["height"] * 0.7)  # near the first key
    facts = page.locator(".facts").first
    expect(facts).to_contain_text("keys")
    found = re.search(r"queries(\d+)–(\d+)keys(\d+)–(\d+)", facts.inner_text().replace("\n", ""))
    r0, r1, k0, k1 = map(int, found.groups())
    cell = seen[0, 1].to_dense()[0, r0 : r1 + 1, k0 : k1 + 1]
    mass = float(cell.sum() / len(cell))
    expect_weight(page, mass)


def test_what_the_mask_hides_says_so(page, seen, saved):
    page.goto(f"{saved(seen)}#zoom=40&x=100&y=90")
    page.mouse.move(*cell_point(page, 90, 98))
    expect(page.locator("#weight")).to_have_text("hidden")
    expect(page.locator(".map-notes")).to_contain_text("The mask (causal) hides this key from this query")
    page.mouse.move(*cell_point(page, 90, 88))
    expect(page.locator("#weight")).not_to_have_text("hidden")


def test_the_colours_can_leave_the_sink_out(page, seen, address):
    page.goto(f"{address}#layer=1&head=0")
    expect(page.locator("#hidden-mass")).to_be_hidden()
    open_settings(page)
    page.get_by_role("radio", name="left out").check()
    note = page.locator("#hidden-mass")
    expect(note).to_contain_text("The colours leave it out")
    key = int(re.search(r"Key (\d+)", note.inner_text())[1])
    matrix = seen[1, 0].to_dense()[0]
    share = float(matrix[:, key].sum() / (matrix[:, key] > 0).sum())  # over the queries that see it
    assert float(note.get_attribute("data-share") or "nan") == pytest.approx(share, rel=0.05)
    state(page, lambda at: at.get("sink") == "apart")


def test_scales_and_pooling(page, seen, saved):
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(f"{saved(seen)}#layer=1&head=3")
    open_settings(page)
    bar = page.locator(".bar")
    expect(bar).to_have_attribute("aria-label", re.compile("linear"))
    settle(page)
    of_the_head = bar.get_attribute("aria-label") or ""
    page.locator(CANVAS).focus()
    for _ in range(9):
        page.keyboard.press("+")
    expect(page.locator("#view-map")).to_contain_text("One cell is one weight.")
    settle(page)
    expect(bar).to_have_attribute("aria-label", of_the_head)  # the same colours at every zoom
    page.get_by_role("radio", name="the view").check()
    expect(bar).not_to_have_attribute("aria-label", of_the_head)
    page.get_by_role("button", name="Show the whole map").click()
    page.get_by_role("radio", name="log").check()
    expect(bar).to_have_attribute("aria-label", re.compile(r"from ≤ 0.01% to .*, log"))
    page.get_by_role("radio", name="0 to 1").check()
    expect(bar).to_have_attribute("aria-label", re.compile(r"to 100%, log"))
    page.get_by_role("radio", name="max").check()
    expect(page.locator("#view-map")).to_contain_text("One cell of 2 × 2 tokens is the greatest weight.")
    state(page, lambda at: {"scale": "log", "colourTop": "one", "reduce": "max"}.items() <= at.items())


def test_by_keyboard_alone(page, seen, saved):
    page.goto(saved(seen))
    page.locator(".thumb[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#map-title")).to_have_text("Layer 1, head 1")
    page.locator(CANVAS).focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "Enter", "+", "-", "ArrowRight"):
        page.keyboard.press(key)
    at = state(page, lambda at: {"row", "col", "x"} <= at.keys())
    true = float(seen[1, 1][0, int(at["row"]), int(at["col"])])
    expect_weight(page, true)
    page.keyboard.press("Shift+ArrowLeft")
    state(page, lambda now: float(now["x"]) < float(at["x"]))
    page.keyboard.press("0")
    state(page, lambda now: "zoom" not in now)
    page.keyboard.press("Escape")
    state(page, lambda now: "row" not in now)


def test_drag_wheel_and_buttons(page, seen, saved):
    page.goto(saved(seen))
    x, y = middle(page)
    page.mouse.move(x, y)
    for _ in range(6):  # the page gets a wheel of the mouse later than the call returns
        turn = {"clientX": x, "clientY": y, "deltaY": -240, "bubbles": True, "cancelable": True}
        page.locator(CANVAS).dispatch_event("wheel", turn)
    near = state(page, lambda at: float(at.get("zoom", 0)) > 4)
    page.mouse.down()
    page.mouse.move(x + 90, y + 60, steps=6)
    page.mouse.up()
    left = float(near["x"]) - 90 / float(near["zoom"])
    moved = state(page, lambda at: float(at["x"]) == pytest.approx(left, abs=1.5))
    assert "row" not in moved  # a drag keeps no cell
    open_settings(page)
    page.get_by_label("Zoom out").click()
    state(page, lambda at: float(at["zoom"]) < float(moved["zoom"]))
    page.get_by_label("Show the whole map").click()
    state(page, lambda at: "zoom" not in at)


def test_two_fingers(page, seen, saved):
    page.goto(saved(seen))
    x, y = middle(page)
    page.evaluate(
        """([selector, x, y]) => {
          const canvas = document.querySelector(selector);
          canvas.setPointerCapture = () => {};
          const fire = (type, pointerId, dx) => canvas.dispatchEvent(new PointerEvent(type, {
            pointerId, pointerType: "touch", clientX: x + dx, clientY: y, button: 0,
          }));
          fire("pointerdown", 11, -20); fire("pointerdown", 12, 20);
          for (let d = 20; d <= 100; d += 10) { fire("pointermove", 11, -d); fire("pointermove", 12, d); }
          fire("pointerup", 11, -100); fire("pointerup", 12, 100);
        }""",
        [CANVAS, x, y],
    )
    state(page, lambda at: float(at.get("zoom", 0)) > 3)  # five times as near as the whole


def test_a_link_leads_back_to_the_same_picture(page, seen, saved):
    link = "layer=1&head=3&row=150&col=140&x=140&y=150&zoom=30&scale=log&reduce=max&sink=apart"
    page.goto(f"{saved(seen)}#{link}")
    expect(page.locator("#map-title")).to_have_text("Layer 1, head 3")
    for _ in range(2):
        expect_weight(page, float(seen[1, 3][0, 150, 140]))
        page.reload()
        expect(page.locator("#map-title")).to_have_text("Layer 1, head 3")
    state(page, lambda at: at == dict(part.split("=") for part in link.split("&")))
    page.get_by_label("Layer 0, head 0").click()
    page.go_back()
    expect(page.locator("#map-title")).to_have_text("Layer 1, head 3")


def test_both_themes(page, saved):
    page.goto(f"{saved(captured(20))}#colourTop=one&head=1&row=0&col=0")
    expect_weight(page, 1)  # query 0 looks at itself with all it has
    box = page.locator(CANVAS).bounding_box()

    def is_dark():
        strongest = sum(pixels(page, box["x"] + 118, box["y"] + 102))
        return strongest > sum(pixels(page, box["x"] + 2, box["y"] + 2))  # the paper

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        eventually(page, is_dark, lambda dark, scheme=scheme: dark is (scheme == "dark"))
    page.emulate_media(color_scheme="light")
    page.get_by_label("Theme: system").click()
    page.get_by_label("Theme: light").click()
    eventually(page, is_dark, bool)  # whatever the system says
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_what_is_not_certified_is_marked_in_every_view_and_export(page, saved, export):
    seen = captured(30, model="a model whose name is " + "very " * 40 + "long")
    doubt = Evidence(0.3, 1e-6, 1e-7, 30, 30, "causal", 0.5, problem="The output was changed after attention")
    seen.layers[1].evidence = doubt
    address = saved(seen, retained=seen.retained(["tova"], budget=[8]))
    for view in ("map", "text", "heads", "steps", "cache"):
        page.goto(f"{address}#view={view}&layer=1&row=9")
        expect(page.locator(f"#view-{view}")).to_contain_text("output was changed after attention")
    page.goto(f"{address}#layer=1")
    svg = export("map", "SVG").read_text("utf-8")
    assert ">Not certified: The output was changed after attention" in svg


def test_layers_say_what_they_are(page, saved):
    full = captured(30, layers=1).layers[0]
    short = captured(30, layers=1, mask=regard.causal & regard.window(8)).layers[0]
    doubt = Evidence(0.3, 1e-6, 1e-7, 30, 30, "causal", 0.5, problem="The output was changed after attention")
    layers = [
        full,
        Layer(1, "h.1", "", short.map, short.evidence, range(4)),
        Layer(2, "h.2", "", full.map, doubt, range(4)),
    ]
    page.goto(saved(Capture(layers, "three kinds")))
    labels = page.locator(".grid-label")
    expect(labels.nth(0)).to_contain_text("causal")
    expect(labels.nth(1)).to_contain_text("window 8")
    expect(labels.nth(2)).to_contain_text("uncertified")
    expect(page.locator(".grid-head .badge")).to_have_text("1 of 3 not certified")
    expect(page.locator(".group.several")).to_have_count(6)  # four heads on two key/value heads
    page.get_by_label("Layer 2, head 3").click()
    expect(page.locator(".map-title .badge")).to_have_text("Not certified")
    expect(page.locator(".map-notes")).to_contain_text("The output was changed after attention")


@pytest.mark.parametrize(("size", "least"), [((390, 844), 0.9), ((720, 450), 0.75)], ids=str)
def test_a_small_window_shows_the_map_first(page, saved, size, least):
    """On a phone, and at a zoom of 200 %."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(saved(captured(40)))
    expect(page.locator(CANVAS)).to_be_in_viewport(ratio=least)
    tabs = page.get_by_role("tab")
    for n in range(tabs.count()):
        expect(tabs.nth(n)).to_be_in_viewport(ratio=0.9)
    settings = page.get_by_role("button", name="Settings")
    expect(settings).to_have_attribute("aria-expanded", "false")
    expect(page.get_by_role("radio", name="log")).to_be_hidden()
    settings.click()
    expect(settings).to_have_attribute("aria-expanded", "true")
    expect(page.get_by_role("radio", name="log")).to_be_visible()


def test_a_file_cut_short_says_so(page, saved):
    address = saved(captured(20))
    path = Path(address.removeprefix("file://"))
    text = path.read_text("utf-8")
    start = text.index('id="layer-0-0">') + 15
    path.write_text(text[:start] + text[start + 400 :], "utf-8")
    page.goto(address)
    expect(page.locator("#status")).not_to_be_empty()
    page.problems.clear()  # that it says so is the point
