"""The widget in marimo: what the reader selects runs the cells that depend on it."""

import re

from playwright.sync_api import expect

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo
    from tests.captures import captured
    return captured, mo


@app.cell
def _(captured, mo):
    w = mo.ui.anywidget(captured(40).widget(height=500))
    choose = mo.ui.button(label="choose", on_click=lambda _: setattr(w.widget, "head", (1, 2)))
    mo.vstack([choose, w])
    return choose, w


@app.cell
def _(mo, w):
    mo.md(f"the cell is {w.value['cell']}")
    return


if __name__ == "__main__":
    app.run()
"""


def test_the_widget_is_in_step_with_a_marimo_notebook(start, open_page, tmp_path):
    path = tmp_path / "notebook.py"
    path.write_text(NOTEBOOK)
    origin = start("marimo", "run", str(path), "--headless", "--no-token")
    page = open_page(origin, "/")
    frame = page.frame_locator('iframe[title="Attention of every head"]')
    canvas = frame.locator(".map-stage canvas")
    expect(canvas).to_be_visible()
    page.get_by_role("button", name="choose").click()
    expect(frame.get_by_role("heading", name="Layer 1, head 2")).to_be_visible()
    canvas.click()
    expect(page.get_by_text(re.compile(r"the cell is \(?\[?\d+, \d+"))).to_be_visible()
