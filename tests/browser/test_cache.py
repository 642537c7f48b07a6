"""The Cache view: what policies keep of every head is what `seen.retained` says, served and in a file."""

from __future__ import annotations

from playwright.sync_api import Page, expect

import regard
from regard.policies.named_policies import USUAL
from regard.policies.retention import RetentionCurve, usual_budgets
from tests.browser.openers import Opener, Serve
from tests.captures import captured


def cells(curve: RetentionCurve, policy: str) -> list[str]:
    """What the cells of the table say."""
    return ["more" if budget is None else str(budget) for budget in curve.needed(policy)]


def test_every_head_has_the_budget_that_retained_says(page: Page, serve: Serve) -> None:
    seen = captured(100)
    curve = seen.retained([*USUAL], budget=usual_budgets(100))
    assert isinstance(curve, RetentionCurve)
    page.goto(serve(seen).address + "#view=cache&layer=1&head=2")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(cells(curve, "streaming"))
    lead = page.locator("#view-cache .lead")
    few = sum(need is not None and need <= 12 for need in curve.needed("streaming"))
    expect(lead).to_contain_text(f"With streaming, {few} of 8 heads keep 95% of their attention")
    expect(lead).to_contain_text("a cache of 12 keys for 100 tokens (random keys ")
    page.get_by_label("Policy").select_option("snapkv")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(cells(curve, "snapkv"))
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


def test_a_file_carries_what_was_measured(page: Page, saved: Opener) -> None:
    seen = captured(40)
    curve = seen.retained("tova", budget=[8, 1])
    assert isinstance(curve, RetentionCurve)
    page.goto(saved(seen, retained=curve) + "#view=cache")
    expect(page.locator("#view-cache .heat-cell")).to_have_text(cells(curve, "tova"))
    expect(page.locator("#view-cache .lead")).to_contain_text("in a cache of one key for 40 tokens")
    page.goto("about:blank")
    page.goto(saved(seen))
    expect(page.locator("#tab-map")).to_be_visible()
    expect(page.locator("#tab-cache")).to_have_count(0)


def test_an_encoder_has_no_cache(page: Page, serve: Serve) -> None:
    page.goto(serve(captured(12, mask=regard.full)).address + "#view=cache")
    lead = page.locator("#view-cache .lead")
    expect(lead).to_have_text(
        "Layer 0 has no cache to measure: expected causal attention, but some queries see later keys."
    )
    expect(page.locator("#view-cache .retention-grid")).to_be_hidden()
