"""Linear layers beside layers of softmax attention, on a served and on a saved page."""

from __future__ import annotations

from typing import cast

import pytest
from playwright.sync_api import Page, expect

from regard.maps import LinearAttentionMap
from tests.browser.eventually import expect_weight
from tests.browser.openers import Opener
from tests.captures import hybrid
from tests.sampling import share


@pytest.mark.parametrize("layer", share([0, 1, 2], 3))
def test_the_weights_of_linear_layers_have_signs(page: Page, opened: Opener, layer: int) -> None:
    seen = hybrid()
    page.goto(f"{opened(seen)}#layer={layer}&head=3&row=20&col=17")
    m = cast(LinearAttentionMap, seen.layers[layer].map)
    expect_weight(page, float(m[0, 3, 20, 17]))
    expect(page.locator(".map-foot")).to_contain_text("−")  # colours of both signs
    expect(page.locator(".map-notes")).to_contain_text(m.kind)


def test_steps_name_the_layers_that_have_some(page: Page, opened: Opener) -> None:
    page.goto(f"{opened(hybrid())}#view=steps&layer=0")
    expect(page.locator("#view-steps .empty")).to_have_text(
        "Layer 0 has no softmax: its weights come from a recurrence (gated delta rule). "
        "Choose a layer of softmax attention to see its steps: 3."
    )


def test_heads_of_linear_layers_have_the_scores_that_mean_something(page: Page, opened: Opener) -> None:
    page.goto(f"{opened(hybrid())}#view=heads")
    card = page.locator("#view-heads .card").first
    expect(card).to_contain_text("effective length")
    expect(card).not_to_contain_text("induction")
