"""The widget in JupyterLab, with a kernel that cannot listen on a port; outputs that nobody trusts."""

import re

import nbformat
from playwright.sync_api import expect

from tests.captures import captured

OPTIONS = (
    "--no-browser",
    "--ip=127.0.0.1",
    "--allow-root",
    "--IdentityProvider.token=",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.news_url=",
)
NO_SERVER = """
import socket
def refuse(*arguments):
    raise OSError("a widget needs no port")
socket.socket.listen = socket.create_server = refuse
"""
CELLS = (
    f"{NO_SERVER}\nfrom tests.captures import captured\nseen = captured(40)\nw = seen.widget(height=600)\nw",
    "w.head = (1, 2)",
    "print('the cell is', w.cell)",
)


def write_notebook(path, cells):
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def execute(page, command):
    """Executes a command of JupyterLab without waiting for its end, as a click does."""
    page.wait_for_function("name => window.jupyterapp?.commands.hasCommand(name)", arg=command)
    page.evaluate("name => { window.jupyterapp.commands.execute(name); }", command)


def wait_for_kernel(page):
    kernel = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    page.wait_for_function(f"() => {kernel}?.status === 'idle' && {kernel}.connectionStatus === 'connected'")


def test_the_widget_needs_no_port_is_in_step_and_says_when_the_kernel_is_gone(start, open_page, tmp_path):
    write_notebook(tmp_path / "a.ipynb", [nbformat.v4.new_code_cell(text) for text in CELLS])
    origin = start("jupyterlab", *OPTIONS, f"--ServerApp.root_dir={tmp_path}")
    page = open_page(origin, "/lab/tree/a.ipynb")
    wait_for_kernel(page)
    execute(page, "notebook:run-cell-and-select-next")
    frame = page.frame_locator('iframe[title="Attention of every head"]')
    canvas = frame.locator(".map-stage canvas")
    expect(canvas).to_be_visible()

    execute(page, "notebook:run-cell-and-select-next")  # Python chooses a head
    expect(frame.get_by_role("heading", name="Layer 1, head 2")).to_be_visible()

    canvas.click()  # the reader chooses a cell
    expect(frame.locator("#weight")).not_to_have_text("–")
    execute(page, "notebook:run-cell-and-select-next")
    expect(page.get_by_text(re.compile(r"the cell is \(\d+, \d+\)"))).to_be_visible()

    execute(page, "kernelmenu:restart")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(frame.get_by_role("alert")).to_contain_text("The kernel was stopped or restarted")


def test_a_notebook_that_is_not_trusted_shows_the_picture_and_the_sentence(start, open_page, tmp_path):
    from regard.show.viewer import InlinePage

    seen = captured(16)
    outputs = [
        nbformat.v4.new_output("execute_result", shown._repr_mimebundle_(), execution_count=1)
        for shown in (seen, InlinePage(seen), seen[0, 1])
    ]
    cells = [nbformat.v4.new_code_cell("seen", outputs=[output]) for output in outputs]
    write_notebook(tmp_path / "b.ipynb", cells)
    origin = start("jupyterlab", *OPTIONS, f"--ServerApp.root_dir={tmp_path}")
    page = open_page(origin, "/lab/tree/b.ipynb")
    output = page.locator(".jp-OutputArea-output")
    expect(output.nth(0).locator("img")).to_be_visible()
    expect(output.nth(0)).to_contain_text("of its attention")
    expect(output.nth(1)).to_contain_text("of its attention")
    expect(output.nth(1).locator("iframe")).to_have_count(0)
    expect(output.nth(2).locator("img")).to_be_visible()
