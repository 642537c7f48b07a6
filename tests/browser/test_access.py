"""Every view by keys and by names: tabs, the way past them, and what has the focus has a name and a ring."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.eventually import open_settings
from tests.captures import captured, predicted

LONGEST = 79  # letters of a name, which a screen reader says in one breath; more is a description
VIEWS = {
    "map": ".thumb",
    "text": ".tok",
    "heads": ".gallery-picture",
    "steps": ".step",
    "cache": ".heat-cell",
    "time": ".heat-cell",
    "compare&pair=0/0/1,1/1/2": "canvas",
}
# What Tab should reach: one of each group of radio buttons, and one of each grid.
REACHABLE = """(view) => {
  const all = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];
  return all.filter((one) => {
    const around = one.closest(".view");
    if (around && around.id !== view) return false;
    if (one.type === "radio" && !one.checked) return false;
    return one.tabIndex >= 0 && !one.disabled && one.checkVisibility();
  }).map((one, n) => (one.dataset.stop = String(n)));
}"""
# Notes what gets the focus, in the page: to ask for it after every key takes as long as to press it.
NOTE_FOCUS = """() => {
  window.focused = [];
  addEventListener("focusin", ({ target: one }) => {
    const ring = one.matches("input[type=radio]") ? one.nextElementSibling : one;
    const { outlineStyle, boxShadow } = getComputedStyle(ring);
    const shown = outlineStyle !== "none" || boxShadow !== "none";
    window.focused.push([one.dataset.stop ?? null, shown, one.outerHTML.slice(0, 120)]);
  });
}"""


def nodes(page):
    """What assistive technology is told: nodes with a role, a name, and whether they can have the focus."""
    session = page.context.new_cdp_session(page)
    tree = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        {
            "role": node["role"]["value"],
            "name": node.get("name", {}).get("value", ""),
            "focusable": any(p["name"] == "focusable" for p in node.get("properties", [])),
        }
        for node in tree
        if not node["ignored"]
    ]


def test_every_control_is_named_briefly_and_reached_by_keys(page, serve, training_run):
    seen = [predicted(captured(30)), predicted(captured(30, seed=2))]
    running = serve(
        seen, contents={"time": training_run}, run_cut=lambda *_: seen[0], generate=lambda *_, **__: iter(())
    )
    for view, content in VIEWS.items():
        page.goto("about:blank")
        page.goto(f"{running.address}#view={view}")
        view = view.partition("&")[0]
        expect(page.locator(f"#view-{view} {content}").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        wrong = {
            (node["role"], node["name"])
            for node in nodes(page)
            if node["role"]
            not in ("RootWebArea", "StaticText", "InlineTextBox", "paragraph", "main", "generic", "LabelText")
            and (len(node["name"]) > LONGEST or (node["focusable"] and not node["name"]))
        }
        assert wrong == set(), view
        stops = set(page.evaluate(REACHABLE, f"view-{view}"))
        page.evaluate(NOTE_FOCUS)
        reached = set()
        for _ in range(2):  # a radio button of a grid may be chosen anew
            for _ in range(len(stops) + 5):
                page.keyboard.press("Tab")
            focused = [x for x in page.evaluate("focused") if x[0] is not None]
            assert [html for _, ring, html in focused if not ring] == [], view
            reached = {stop for stop, _, _ in focused}
            if stops <= reached:
                break
        assert {
            page.locator(f"[data-stop='{stop}']").evaluate("(one) => one.outerHTML.slice(0, 120)")
            for stop in stops - reached
        } == set(), view


@pytest.mark.parametrize(
    "context_options",
    [{"forced_colors": "active", "color_scheme": "dark", "viewport": {"width": 1280, "height": 800}}],
    ids=["forced"],
)
def test_forced_colours_keep_colours_that_are_data(page, serve, training_run):
    address = serve(captured(20), contents={"time": training_run}).address
    page.goto(f"{address}#view=time")
    cells = page.locator("#view-time .heat-cell")
    shades = {cells.nth(n).evaluate("(cell) => getComputedStyle(cell).backgroundColor") for n in range(6)}
    assert len(shades) > 3
    page.get_by_role("tab", name="Map").click()
    open_settings(page)
    chosen, other = page.get_by_role("radio", name="linear"), page.get_by_role("radio", name="log")
    grounds = [
        radio.evaluate("(one) => getComputedStyle(one.nextElementSibling).backgroundColor")
        for radio in (chosen, other)
    ]
    assert grounds[0] != grounds[1]
    expect(page.locator(".map-foot")).to_contain_text("One cell")
    # The map is a picture with many colours, not one of the system's.
    colours = page.locator(".map-stage canvas").evaluate(
        """(canvas) => {
          const { width, height } = canvas;
          const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          return new Set(new Uint32Array(pixels.buffer)).size;
        }"""
    )
    assert colours > 40


def test_skipping_to_the_picture_keeps_the_place(page, serve):
    place = "view=heads&layer=1&head=2"
    page.goto(f"{serve().address}#{place}")
    expect(page.locator(".view canvas").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the picture")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page).to_have_url(re.compile(f"#{place}$"))
    expect(page.locator("#view-heads")).to_be_visible()


def test_tabs_by_keys(page, serve):
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
