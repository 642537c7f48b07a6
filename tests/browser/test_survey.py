"""The survey view: a scatter of heads, and the examples of the one that is chosen."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Position, expect

from tests.browser.eventually import box_of
from tests.browser.openers import Opener, Serve
from tests.captures import captured, surveyed
from tests.sampling import share


@pytest.fixture(params=share(["served", "saved"], 2))
def address(request: pytest.FixtureRequest) -> str:
    seen = captured()
    if request.param == "saved":
        save: Opener = request.getfixturevalue("saved")
        return save(seen, survey=surveyed(seen))
    serve: Serve = request.getfixturevalue("serve")
    return serve(seen, contents={"survey": surveyed(seen)}).address


def centre(part: Locator, box: Locator) -> Position:
    """The middle of a part, from the upper left of its box."""
    inner, outer = box_of(part), box_of(box)
    return {
        "x": inner["x"] + inner["width"] / 2 - outer["x"],
        "y": inner["y"] + inner["height"] / 2 - outer["y"],
    }


def test_a_head_is_chosen_and_described(page: Page, address: str) -> None:
    page.goto(address)  # it opens on the survey
    expect(page.locator("#tab-survey")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#view-survey .chart-dot")).to_have_count(8)
    expect(page.locator(".survey-examples li")).to_have_count(1)
    page.locator("#view-survey").get_by_label("Head", exact=True).select_option("1/2")
    expect(page.locator(".survey-head h2")).to_have_text("Layer 1, head 2")
    expect(page.locator(".survey-head .head-sentence")).not_to_be_empty()
    expect(page.locator(".survey-token.asking")).to_have_count(1)
    expect(page.locator(".survey-token.attended").first).to_have_attribute(
        "title", re.compile("% of the query’s attention")
    )
    expect(page.locator(".survey-bars")).to_have_count(3)
    expect(page).to_have_url(re.compile("surveyHead=1%2F2"))
    # By mouse: another head's dot.
    page.get_by_label("Horizontal score").select_option("sink")
    dot = page.locator("#view-survey .chart-dot:not(.own)").first
    dot.hover()
    expect(page.locator("#view-survey .chart-tip")).to_contain_text("Layer")
    page.locator("#view-survey .chart").click(position=centre(dot, page.locator("#view-survey .chart")))
    expect(page.locator(".survey-head h2")).not_to_have_text("Layer 1, head 2")
    chosen = page.locator("#view-survey").get_by_label("Head", exact=True).input_value()
    page.get_by_role("button", name="Open in Map").click()
    expect(page.locator("#tab-map")).to_have_attribute("aria-selected", "true")
    layer, head = chosen.split("/")
    expect(page).to_have_url(re.compile(f"layer={layer}&head={head}"))
