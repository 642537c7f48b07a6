"""The page inside a notebook's output: a sandboxed frame that draws, and reaches nothing around it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from regard.show.viewer import InlinePage
from tests.captures import HOSTILE, captured


def test_the_page_draws_inside_of_a_notebook(page: Page, tmp_path: Path) -> None:
    seen = captured(16, tokens=HOSTILE * 2)
    output = InlinePage(seen)._repr_mimebundle_()["text/html"]
    text = f"<!doctype html><title>notebook</title><p id=outside>notebook</p>{output}"
    (tmp_path / "notebook.html").write_text(text, encoding="utf-8", errors="replace")
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    expect(frame.locator("#model")).to_have_text("random")
    canvas = frame.locator(".map-stage canvas")
    expect(canvas).to_be_visible()
    canvas.click()
    expect(frame.locator("#weight")).not_to_have_text("–")
    assert len(page.workers) == 1  # in a sandbox, too
    for tab in frame.get_by_role("tab").all():
        tab.click()
        page.wait_for_timeout(100)
    inside = page.frames[-1]
    assert (
        inside.evaluate("() => { try { return parent.document.title; } catch { return 'refused'; } }")
        == "refused"
    )
    assert page.title() == "notebook"
