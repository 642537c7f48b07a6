"""The gallery: every head with its scores, sorted, filtered, compared, opened; by mouse and by key."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import torch
from playwright.sync_api import Page, expect

import regard
from regard.heads import describe
from regard.recorder import Capture, Layer
from regard.show.server.background import BackgroundServer
from tests.captures import captured


def titles(page: Page) -> list[str]:
    return page.locator("#view-heads .card h3").all_text_contents()


def test_every_head_with_its_scores(page: Page, opened: Callable[..., str]) -> None:
    seen = captured(60)
    page.goto(opened(seen) + "#view=heads")
    expect(page.locator("#view-heads .card")).to_have_count(8)
    table = describe(seen.maps, seen.ids)
    for card, row in zip(page.locator("#view-heads .card").all(), table, strict=True):
        assert card.locator("h3").text_content() == f"Layer {row.layer}, head {row.head}"
        spoken = card.locator(".gallery-picture").get_attribute("aria-label") or ""
        for name, called in (("induction", "induction"), ("local", "local"), ("sink", "sink")):
            score = row.scores[name]
            assert f"{called} {score.value:.2f}" in spoken
            assert f"uniform baseline {score.null:.2f}" in spoken
        for label in row.labels:
            assert label.replace("_", " ") in (card.locator(".tags").text_content() or "")


def test_sorted_and_filtered(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    seen = captured(60)
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator("#view-heads .card")).to_have_count(8)
    page.get_by_label("Sort by").select_option("duplicate")
    wanted = [
        f"Layer {row.layer}, head {row.head}" for row in describe(seen.maps, seen.ids).sorted("duplicate")
    ]
    assert titles(page) == wanted
    page.get_by_label("lowest first").check()
    assert titles(page) == wanted[::-1]
    page.locator("#view-heads").get_by_label("Layer", exact=True).select_option("1")
    assert titles(page) == [title for title in wanted[::-1] if title.startswith("Layer 1")]
    expect(page).to_have_url(re.compile("sort=duplicate.*layerFilter=1"))


def test_what_a_head_is_called_and_who_is_called_so(
    page: Page, serve: Callable[..., BackgroundServer]
) -> None:
    T = 40
    places = torch.eye(T)
    q = torch.stack([30 * places.roll(1, 0), 0 * places])[None]  # at the token before; at all alike
    q[0, 0, 0] = 0
    m = regard.attention_map(q, places.expand(1, 2, T, T), mask=regard.causal, scale=1.0)
    layer = captured(T).layers[0]
    seen = Capture(
        [Layer(0, "h.0", "", m, layer.evidence, (0, 1))], "two", torch.randperm(T)[None], [["t"] * T]
    )
    assert [row.label for row in describe(seen.maps, seen.ids)] == ["previous_token", None]
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator("#view-heads .card").first.locator(".tag").first).to_have_text("previous token")
    page.get_by_label("Label", exact=True).select_option("previous_token")
    assert titles(page) == ["Layer 0, head 0"]
    page.get_by_label("Label", exact=True).select_option("none")
    assert titles(page) == ["Layer 0, head 1"]
    page.locator("#view-heads").get_by_label("pictures").check()
    expect(page.locator(".gallery.pictures-only")).to_be_visible()


def test_two_heads_and_two_texts_side_by_side(page: Page, opened: Callable[..., str]) -> None:
    page.goto(opened([captured(60), captured(40, seed=5)]) + "#view=heads")
    page.locator("#view-heads .card").nth(1).get_by_role("button", name="Compare").click()
    expect(page.locator(".compare-side")).to_have_count(1)
    page.locator("#view-heads .card").nth(6).get_by_role("button", name="Compare").click()
    expect(page.locator(".compare-side h3")).to_have_text(["Layer 0, head 1", "Layer 1, head 2"])
    expect(page.locator(".compare-scores .compare-row").first.locator(".score-bar .null")).to_have_count(2)
    expect(page.locator(".compare-picture").first).to_have_attribute("width", "60")
    inked = page.locator(".compare-picture").first.evaluate(
        "c => c.getContext('2d').getImageData(0, 0, 60, 60).data.filter((x, n) => n % 4 === 3 && x).length"
    )
    assert inked == 60 * 61 // 2  # what the mask hides is left blank
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".compare-side")).to_have_count(0)
    page.locator("#view-heads .card").nth(1).get_by_role("button", name="Compare").click()
    page.get_by_label("The same head on").select_option("1")
    expect(page.locator(".compare-side h3")).to_have_text(["Layer 0, head 1", "Layer 0, head 1"])
    expect(page.locator(".compare-picture").nth(1)).to_have_attribute("width", "40")


def test_by_key_alone(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    page.goto(serve(captured(40)).address + "#view=heads")
    page.locator("#view-heads .gallery-picture").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("c")
    expect(page.locator(".compare-side h3")).to_have_text(["Layer 0, head 1"])
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("layer=1&head=3"))
    expect(page.locator("#tab-map")).to_have_attribute("aria-selected", "true")


def test_a_layer_that_is_not_certified_says_so(page: Page, serve: Callable[..., BackgroundServer]) -> None:
    seen = captured(40)
    seen.layers[1].evidence = replace(seen.layers[1].evidence, difference=0.5)
    page.goto(serve(seen).address + "#view=heads")
    expect(page.locator(".heads-warning")).to_contain_text("Layer 1: not certified")
    expect(page.locator("#view-heads .tag.bad")).to_have_count(4)
