"""What a page comes to show after a mouse or a key: read until it is there, however busy the machine is."""

import re
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.patience import HANGING

Reading = TypeVar("Reading")


def eventually(page: Page, read: Callable[[], Reading], expected: Callable[[Reading], bool]) -> Reading:
    """Return the first reading that is as expected; fail if none is within `HANGING` seconds."""
    limit = time.monotonic() + HANGING
    while not expected(reading := read()):
        if time.monotonic() > limit:
            pytest.fail(f"the page still says {reading!r}")
        page.wait_for_timeout(20)
    return reading


def link(page: Page) -> str:
    """The address with its fragment, from the page itself: Playwright's `page.url` follows later."""
    address: str = page.evaluate("location.href")
    return address


def state(page: Page, expected: Callable[[dict[str, str]], bool] = lambda at: True) -> dict[str, str]:
    """The state in the page's address, once it is as expected."""
    settle(page)

    def read() -> dict[str, str]:
        return dict(part.split("=") for part in link(page).partition("#")[2].split("&") if part)

    return eventually(page, read, expected)


def settle(page: Page) -> None:
    """Wait until the address has followed what was done."""
    # By the page's own clock, which waits for the page's own work however busy the machine is.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 250)))")


def open_settings(page: Page) -> None:
    """Open the settings of the view that is shown."""
    page.get_by_role("button", name="Settings").locator("visible=true").click()


def expect_weight(page: Page, weight: float, relative: float = 1e-3) -> None:
    """Wait until the notes of the map have this weight."""
    number = page.locator("#weight")
    expect(number).to_have_attribute("data-weight", re.compile(r"\d"))
    shown = lambda: float(number.get_attribute("data-weight") or "nan")  # noqa: E731
    eventually(page, shown, lambda now: now == pytest.approx(weight, rel=relative, abs=1e-9))


def box_of(part: Locator) -> FloatRect:
    """Where a part of the page lies in the window."""
    box = part.bounding_box()
    assert box is not None
    return box
