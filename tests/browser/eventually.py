"""What a page comes to show after a mouse or a key: read until it is there, however busy the machine is."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.patience import HANGING


def eventually(page, read, expected):
    """Return the first reading that is as expected; fail if none is within `HANGING` seconds."""
    limit = time.monotonic() + HANGING
    while not expected(reading := read()):
        if time.monotonic() > limit:
            pytest.fail(f"the page still says {reading!r}")
        page.wait_for_timeout(20)
    return reading


def link(page):
    """The address with its fragment, from the page itself: Playwright's `page.url` follows later."""
    address = page.evaluate("location.href")
    return address


def state(page, expected=lambda at: True):
    """The state in the page's address, once it is as expected."""
    settle(page)

    def read():
        return dict(part.split("=") for part in link(page).partition("#")[2].split("&") if part)

    return eventually(page, read, expected)


def settle(page):
    """Wait until the address has followed what was done."""
    # By the page's own clock, which waits for the page's own work however busy the machine is.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 250)))")


def open_settings(page):
    """Open the settings of the view that is shown."""
    page.get_by_role("button", name="Settings").locator("visible=true").click()


def expect_weight(page, weight, relative=1e-3):
    """Wait until the notes of the map have this weight."""
    number = page.locator("#weight")
    expect(number).to_have_attribute("data-weight", re.compile(r"\d"))
    shown = lambda: float(number.get_attribute("data-weight") or "nan")  # noqa: E731
    eventually(page, shown, lambda now: now == pytest.approx(weight, rel=relative, abs=1e-9))
