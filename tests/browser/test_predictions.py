"""Next-token predictions under the text: the library's numbers, by pointer and by key, served and saved."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from regard.show.server.background import BackgroundServer
from tests.browser.eventually import eventually
from tests.captures import HOSTILE, captured, predicted
from tests.sampling import share

PANEL = "#view-text .text-predictions"


def listed(page: Page) -> list[tuple[str, str]]:
    rows = page.locator(f"{PANEL} .likeliest li").all()
    return [(row.locator(".token").inner_text(), row.locator(".weight").inner_text()) for row in rows]


def test_pointing_shows_what_the_model_expects_after_a_token(page: Page, opened: Callable[..., str]) -> None:
    seen = predicted(captured(30))
    predictions = seen.predictions
    assert predictions is not None
    page.goto(opened(seen) + "#view=text")
    panel = page.locator(PANEL)
    expect(panel).to_contain_text(f"Mean loss over 29 tokens: {predictions.loss.item():.2f}")
    page.hover("#tok-7")
    expect(panel.locator("h3")).to_have_text("After “·t7” the model expects")
    expect(panel.locator(".likeliest li")).to_have_count(10)
    tokens = [f"·t{n}" for n in predictions.likeliest[0, 7].tolist()]
    found = eventually(page, lambda: listed(page), lambda rows: [token for token, _ in rows] == tokens)
    shown = [float(percent.rstrip("%")) / 100 for _, percent in found]
    assert shown == pytest.approx(predictions.probabilities[0, 7].tolist(), rel=0.06)
    loss, rank = predictions.losses[0, 7].item(), predictions.ranks[0, 7].item()
    place = "the likeliest" if rank == 1 else f"rank {rank}"
    expect(panel).to_contain_text(re.compile(rf"In the text follows “·t8”: .*, {place}, loss {loss:.2f}\."))


def test_the_token_that_follows_is_marked_and_the_last_has_none(
    page: Page, opened: Callable[..., str]
) -> None:
    seen = predicted(captured(30), vocabulary=13)
    assert seen.predictions is not None
    ranks = seen.predictions.ranks[0].tolist()
    among, beyond = (
        next(n for n, rank in enumerate(ranks) if (rank <= 10) is inside) for inside in (True, False)
    )
    page.goto(opened(seen) + f"#view=text&row={among}")
    marked = page.locator(f"{PANEL} .follows .token")
    expect(marked).to_have_text(f"·t{among + 1}" if among < 12 else re.compile("t"))
    page.click(f"#tok-{beyond}")
    expect(page.locator(f"{PANEL} h3")).to_have_text(f"After “·t{beyond % 13}” the model expects")
    expect(marked).to_have_count(0)
    page.click("#tok-29")
    expect(page.locator(PANEL)).to_contain_text("Nothing follows in the text.")


def test_keys_lead_from_token_to_token(page: Page, opened: Callable[..., str]) -> None:
    page.goto(opened(predicted(captured(20))) + "#view=text")
    page.locator("#view-text .text-body").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(f"{PANEL} h3")).to_have_text("After “·t2” the model expects")
    page.keyboard.press("End")
    expect(page.locator(f"{PANEL} h3")).to_have_text("After “·t6” the model expects")


def test_hostile_words_stay_text(page: Page, opened: Callable[..., str]) -> None:
    page.goto(opened(predicted(captured(20), words=HOSTILE)) + "#view=text&row=4")
    expect(page.locator(f"{PANEL} .likeliest li")).to_have_count(10)
    assert page.locator(f"{PANEL} img").count() == 0


def test_a_model_without_predictions_says_nothing(page: Page, opened: Callable[..., str]) -> None:
    page.goto(opened(captured(20)) + "#view=text&row=4")
    expect(page.locator("#view-text .ranked li")).to_have_count(5)
    expect(page.locator(PANEL)).to_be_hidden()


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    share(
        [
            (390, 844, "light"),
            (390, 844, "dark"),
            (720, 450, "light"),
            (1280, 800, "dark"),
            (1920, 1080, "light"),
        ],
        5,
    ),
)
def test_they_fit_every_window(
    width: int, height: int, scheme: Any, browser: Browser, serve: Callable[..., BackgroundServer]
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.goto(serve(predicted(captured(200))).address + "#view=text&row=4")
    expect(page.locator(f"{PANEL} .likeliest li")).to_have_count(10)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator(f"{PANEL} .likeliest").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    if height > 700:  # a token and the panel are in sight together
        expect(page.locator("#tok-4")).to_be_in_viewport()
        expect(page.locator(f"{PANEL} h3")).to_be_in_viewport()
    context.close()
