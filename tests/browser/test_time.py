"""The time view: a training run step by step, as the run wrote it down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from regard.gpt.training.history import HEADS_FILE, METRICS_FILE, read_run
from regard.show.server.background import BackgroundServer
from tests.captures import captured

STEPS = (0, 100, 200)
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Any]:
    def table(step: int, on: int) -> dict[str, Any]:
        heads = [
            [round((step / 200) * (layer * 3 + head + on) / 10, 3) for head in range(3)] for layer in range(2)
        ]
        return {
            "induction": {"heads": heads, "null": 0.05},
            "distance": {"heads": [[10.0 * x for x in row] for row in heads], "null": 7},
        }

    lines = [{"step": step, "text": table(step, 0), "repeats": table(step, 4)} for step in STEPS]
    (tmp_path / HEADS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = [{"step": step, "validation": 4 - step / 100, "sample": f"{HOSTILE} {step}"} for step in STEPS]
    losses = [{"step": step, "loss": 5 - step / 100} for step in range(1, 200)]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in metrics + losses))
    return read_run(tmp_path)


def cells(page: Page) -> list[float]:
    return [
        float("0" + text if text.startswith(".") else text)
        for text in page.locator(".heat-cell").all_inner_texts()
    ]


def test_the_slider_goes_through_the_run(
    page: Page, serve: Callable[..., BackgroundServer], run: dict[str, Any]
) -> None:
    page.goto(serve(captured(20), contents={"time": run}).address + "#view=time")
    expect(page.locator(".heat-cell")).to_have_count(6)
    assert cells(page) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    expect(page.locator("#view-time .lead")).to_have_text(
        "At step 200, head 2 of layer 1 scores highest, with 0.50."
    )
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    assert cells(page) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    expect(page).to_have_url(re.compile("trainingStep=100"))
    page.get_by_label("repeated random tokens").check()
    assert cells(page)[0] == pytest.approx(0.2)
    page.get_by_label("Score", exact=True).select_option("distance")
    assert cells(page)[0] == pytest.approx(2.0)
    expect(page.locator("#view-time .chart-line.own")).to_have_count(2)
    expect(page.locator("#view-time .chart-line.faint")).to_have_count(6)
    expect(page.locator(".sample")).to_have_text(f"{HOSTILE} 100")


def test_a_head_is_followed_by_key(page: Page, saved: Callable[..., str], run: dict[str, Any]) -> None:
    page.goto(saved(captured(20), time=run) + "#view=time")
    page.locator('.heat-cell[tabindex="0"]').focus()
    for key in ("ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#view-time .chart-name.own").first).to_have_text("head 0.1")
    page.get_by_role("button", name="Play").click()
    expect(page.locator("#view-time .slider output")).to_have_text("0")
    expect(page.locator("#view-time .slider output")).to_have_text("100")
    page.get_by_role("button", name="Pause").click()


def test_a_hostile_address_is_only_an_address(
    page: Page, serve: Callable[..., BackgroundServer], run: dict[str, Any]
) -> None:
    address = serve(captured(20), contents={"time": run}).address
    for view in ("time", "heads", "steps", "text", "cache"):
        odd = "score=constructor&scoredOn=__proto__&chosenHead=9/9&trainingStep=x&sort=toString&example=9.9"
        odd += "&pair=0/0/0,9/x/y&scope=a&cacheWindow=-1&cacheSinks=NaN&label=__proto__&layerFilter=9"
        page.goto("about:blank")
        page.goto(f"{address}#view={view}&{odd}")
        expect(page.locator(f"#tab-{view}")).to_have_attribute("aria-selected", "true")
        page.wait_for_load_state("networkidle")
        expect(page.locator("#status")).to_be_empty()


def test_without_a_run_there_is_no_such_view(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    page.goto(serve(captured(20)).address + "#view=time")
    expect(page.locator("#tab-map")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#tab-time")).to_have_count(0)
