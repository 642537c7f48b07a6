"""The page in notebooks: the widget in step with its model, and the page in a sandboxed frame of a cell."""

import base64
from pathlib import Path

from playwright.sync_api import expect

from regard.show.viewer import InlinePage
from regard.show.widget import widget
from tests.browser.eventually import eventually
from tests.captures import HOSTILE, captured
from tests.notebook_cell import Cell

NOTEBOOK = Path(__file__).with_name("notebook.html")
REQUESTS = ("ask", "job", "page")


class Notebook:
    """A page with one cell that shows a widget, whose kernel is this process."""

    def __init__(self, page):
        self.page = page
        self.cell = Cell(widget(captured(16, tokens=HOSTILE * 2)))
        self.requested = []
        page.on("request", lambda request: self.requested.append(request.url))
        page.expose_function("kernel", self.receive)
        page.expose_function("update", lambda state: self.cell.tell({"method": "update", "state": state}))
        page.goto(NOTEBOOK.as_uri())
        page.evaluate("([code, state]) => notebook.show(code, state)", [self.cell.widget._esm, self.state])

    @property
    def state(self):
        names = ("_page", "head", "cell", "text", "view", "height")
        return {name: getattr(self.cell.widget, name) for name in names}

    @property
    def frame(self):
        return self.page.frame_locator("iframe")

    def receive(self, content):
        """What the kernel answers to a message, to the end."""
        self.cell.tell({"method": "custom", "content": content})
        answers = []
        while content["kind"] in REQUESTS and (not answers or answers[-1][0]["kind"] == "line"):
            message, buffers = self.cell.receive()
            answers.append((message, [base64.b64encode(buffer).decode() for buffer in buffers]))
        return answers

    def select(self, **selection):
        """Assign to the widget in Python."""
        for name, value in selection.items():
            setattr(self.cell.widget, name, value)
        self.page.evaluate("(state) => notebook.change(state)", selection)

    def wait_for(self, condition):
        eventually(self.page, condition, bool)


def test_a_widget_is_the_page_and_its_selection_is_in_step(page):
    notebook = Notebook(page)
    frame, shown = notebook.frame, notebook.cell.widget
    expect(frame.locator("#model")).to_have_text("random")
    canvas = frame.locator(".map-stage canvas")
    expect(canvas).to_be_visible()

    notebook.select(head=(1, 2), cell=(9, 4))  # from Python to the page
    expect(frame.get_by_role("heading", name="Layer 1, head 2")).to_be_visible()
    weight = captured(16, tokens=HOSTILE * 2)[1, 2][0, 9, 4]
    expect(frame.locator("#weight")).to_have_text(f"{float(weight):.2%}")

    canvas.click()  # and back
    notebook.wait_for(lambda: shown.cell not in (None, (9, 4)))
    frame.get_by_role("tab", name="Text").click()
    notebook.wait_for(lambda: shown.view == "text")
    assert (shown.head, shown.text) == ((1, 2), 0)

    # The frame is sealed: styles stay inside and outside, and nothing was asked of any address.
    assert page.locator("#outside").evaluate("(e) => getComputedStyle(e).color") == "rgb(1, 2, 3)"
    inside = page.frames[-1]
    reach = "() => { try { return parent.document.title; } catch { return 'refused'; } }"
    assert inside.evaluate(reach) == "refused"
    assert [url for url in notebook.requested if not url.startswith(("file:", "blob:", "data:"))] == []

    page.evaluate("() => notebook.emit('comm_live_update')")
    expect(frame.get_by_role("alert")).to_contain_text("The kernel was stopped or restarted")
    page.evaluate("() => notebook.close()")
    expect(page.locator("iframe")).to_have_count(0)
    shown.close()


def test_a_widget_is_as_dark_as_its_notebook(page):
    notebook = Notebook(page)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    expect(notebook.frame.locator(".map-stage canvas")).to_be_visible()
    light = page.frames[-1].evaluate(ground)
    page.evaluate("() => (document.body.style.background = 'oklch(0.2 0.02 250)')")
    notebook.wait_for(lambda: page.frames[-1].evaluate(ground) != light)
    expect(notebook.frame.locator("html")).to_have_attribute("data-theme", "dark")
    page.evaluate("() => (document.body.style.background = 'white')")
    notebook.wait_for(lambda: page.frames[-1].evaluate(ground) == light)
    notebook.cell.widget.close()


def test_the_page_draws_inside_of_a_notebook(page, tmp_path):
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
