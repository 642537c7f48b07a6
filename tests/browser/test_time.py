"""The time view: a training run step by step, as the run wrote it down."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.eventually import eventually
from tests.browser.openers import Opener, Serve
from tests.captures import HOSTILE, captured


def cells(page: Page) -> list[float]:
    return [
        float(text) / 100  # percent
        for text in page.locator(".heat-cell").all_inner_texts()
    ]


def test_the_slider_goes_through_the_run(page: Page, serve: Serve, training_run: dict[str, Any]) -> None:
    page.goto(serve(captured(20), contents={"time": training_run}).address + "#view=time")
    expect(page.locator(".heat-cell")).to_have_count(6)
    eventually(page, lambda: cells(page), lambda shown: shown == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5]))
    expect(page.locator("#view-time .lead")).to_have_text(
        "At step 200, layer 1, head 2 scores highest on induction: 50%."
    )
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    before = [0, 0.05, 0.1, 0.15, 0.2, 0.25]
    eventually(page, lambda: cells(page), lambda shown: shown == pytest.approx(before))
    expect(page).to_have_url(re.compile("trainingStep=100"))
    page.get_by_label("repeated random tokens").check()
    eventually(page, lambda: cells(page)[0], lambda shown: shown == pytest.approx(0.2))
    page.get_by_label("Score", exact=True).select_option("distance")
    eventually(
        page, lambda: cells(page)[0], lambda shown: shown == pytest.approx(0.02)
    )  # two tokens, not a share
    expect(page.locator("#view-time .chart-line.own")).to_have_count(2)
    expect(page.locator("#view-time .chart-line.faint")).to_have_count(6)
    expect(page.locator(".sample")).to_have_text(f"{HOSTILE[0]} 100")


def test_a_head_is_followed_by_key(page: Page, saved: Opener, training_run: dict[str, Any]) -> None:
    page.goto(saved(captured(20), time=training_run) + "#view=time")
    page.locator('.heat-cell[tabindex="0"]').focus()
    tip = page.locator("#view-time .chart-tip").first
    expect(tip).to_have_text("Layer 1, head 2: 50% at step 200")  # the cell's focus names its line
    for key in ("ArrowUp", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#view-time .chart-name.own").first).to_have_text("head 0.1")
    expect(tip).to_have_text("Layer 0, head 1: 10% at step 200")
    shown = page.locator("#view-time .slider output")
    page.evaluate("setInterval = (next) => { window.next = next; return 1e6; }")  # steps come when asked for
    page.get_by_role("button", name="Play").click()
    expect(shown).to_have_text("0")
    for step in ("100", "200"):
        page.evaluate("next()")
        expect(shown).to_have_text(step)
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.evaluate("next()")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_the_history_of_a_monitor_opens(page: Page, serve: Serve) -> None:
    heads = [[[1.5, 2.0], [None, None]], [[None, None], [30.0, 4.0]]]
    run = {
        "name": "attention.jsonl",
        "steps": [0, 50],
        "batch": {"largest_score": {"heads": heads, "null": [None, None]}},
        "validation": [None, None],
        "sample": ["", ""],
        "loss": {"steps": [], "values": []},
        "alarms": ["step 50, layer 1: <b>head 0</b> has a score of 30"],
    }
    page.goto(serve(captured(20), contents={"time": run}).address + "#view=time")
    expect(page.locator("#view-time .lead")).to_have_text(
        "At step 50, layer 1, head 0 scores highest on largest score: 30.00."
    )
    expect(page.locator("#view-time .column > p.note")).to_have_text("Scored on training batches.")
    expect(page.get_by_label("Alarms")).to_have_text("step 50, layer 1: <b>head 0</b> has a score of 30")
    expect(page.locator("#view-time .chart-line.null")).to_have_count(0)
    expect(page.locator("#view-time h2", has_text="Loss")).to_be_hidden()
    page.get_by_label("Step", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#view-time .lead")).to_have_text(
        "At step 0, layer 0, head 1 scores highest on largest score: 2.00."
    )
