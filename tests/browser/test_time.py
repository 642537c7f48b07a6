"""The Time and the Cache view: a training run step by step, and what policies keep of every head."""

import re

import pytest
from playwright.sync_api import expect

import regard
from regard.policies.named_policies import USUAL
from regard.policies.retention import usual_budgets
from tests.browser.eventually import eventually
from tests.captures import HOSTILE, captured


def cells(page):
    return [
        float(text) / 100  # percent
        for text in page.locator(".heat-cell").all_inner_texts()
    ]


def test_the_slider_goes_through_the_run(page, serve, training_run):
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


def test_a_head_is_followed_by_key(page, saved, training_run):
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


def test_the_history_of_a_monitor_opens(page, serve):
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


def budgets(curve, policy):
    """What the cells of the table say."""
    return ["more" if budget is None else str(budget) for budget in curve.needed(policy)]


def test_every_head_has_the_budget_that_retained_says(page, serve):
    seen = captured(100)
    curve = seen.retained([*USUAL], budget=usual_budgets(100))
    page.goto(serve(seen).address + "#view=cache&layer=1&head=2")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(budgets(curve, "streaming"))
    lead = page.locator("#view-cache .lead")
    few = sum(need is not None and need <= 12 for need in curve.needed("streaming"))
    expect(lead).to_contain_text(f"With streaming, {few} of 8 heads keep 95% of their attention")
    expect(lead).to_contain_text("a cache of 12 keys for 100 tokens (random keys ")
    page.get_by_label("Policy").select_option("snapkv")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(budgets(curve, "snapkv"))
    # The chosen head: one line for each policy, and its shares in words.
    section = page.locator(".retention-head")
    expect(section.get_by_role("heading")).to_have_text("Layer 1, head 2")
    expect(section.locator(".chart-line")).to_have_count(5)
    row = curve.places.index((1, 2))
    at = curve.budgets.index(curve.needed("snapkv")[row] or curve.budgets[-1])
    kept = [float(curve.shares[curve.policies.index(name), at, row]) for name in ("snapkv", "best")]
    said = section.locator(".note").inner_text()
    for share in kept:
        assert any(f"{100 * share:.{digits}f}%" in said for digits in (0, 1)), (said, share)
    # Another head is chosen for all views.
    page.get_by_role("gridcell", name="Layer 0, head 3:").click()
    expect(section.get_by_role("heading")).to_have_text("Layer 0, head 3")
    section.get_by_role("button", name="Open in Map").click()
    expect(page.locator("#view-map")).to_be_visible()
    assert "layer=0" in page.url
    assert "head=3" in page.url


def test_a_file_carries_what_was_measured(page, saved):
    seen = captured(40)
    curve = seen.retained("tova", budget=[8, 1])
    page.goto(saved(seen, retained=curve) + "#view=cache")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(budgets(curve, "tova"))
    expect(page.locator("#view-cache .lead")).to_contain_text("in a cache of one key for 40 tokens")
    page.goto("about:blank")
    page.goto(saved(seen))
    expect(page.locator("#tab-map")).to_be_visible()
    expect(page.locator("#tab-cache")).to_have_count(0)


def test_an_encoder_has_no_cache(page, serve):
    page.goto(serve(captured(12, mask=regard.full)).address + "#view=cache")
    lead = page.locator("#view-cache .lead")
    expect(lead).to_have_text(
        "Layer 0 has no cache to measure: expected causal attention, but some queries see later keys."
    )
    expect(page.locator("#view-cache .retention-grid")).to_be_hidden()
