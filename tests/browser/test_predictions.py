"""Next-token predictions under the text: the library's numbers, by pointer and by key, served and saved."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.eventually import eventually
from tests.browser.openers import Opener
from tests.captures import captured, predicted

PANEL = "#view-text .text-predictions"


def listed(page: Page) -> list[tuple[str, str]]:
    rows = page.locator(f"{PANEL} .likeliest li").all()
    return [(row.locator(".token").inner_text(), row.locator(".weight").inner_text()) for row in rows]


def test_pointing_shows_what_the_model_expects_after_a_token(page: Page, opened: Opener) -> None:
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


def test_the_token_that_follows_is_marked_and_the_last_has_none(page: Page, opened: Opener) -> None:
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
