"""Captures show themselves: a page in the background, in a notebook, in a file; and the widget’s messages."""

import json
import subprocess
import sys
import types
import urllib.request
from queue import Empty, SimpleQueue

import numpy as np
import pytest
import torch

from regard.recorder import Capture
from regard.show import viewer
from regard.show.saved.bundle import notebook_page
from regard.show.widget import widget
from tests.captures import captured
from tests.notebook_cell import Cell
from tests.patience import HANGING


@pytest.fixture
def seen():
    return captured(12)


@pytest.fixture
def cell(seen):
    made = Cell(widget(seen))
    yield made
    made.widget.close()


def test_numbers_come_through_the_comm(cell, seen):
    assert json.loads(cell.ask("meta"))["model"] == "random"
    row = np.frombuffer(cell.ask("row", text="0", layer="1", head="2", row="7"), "<f4")
    torch.testing.assert_close(torch.from_numpy(row.copy()), seen.layers[1].map[0, 2, 7].float())


def test_the_page_comes_on_demand_and_is_no_part_of_the_state(cell):
    cell.send("page")
    message, buffers = cell.receive()
    assert message["kind"] == "answer"
    assert buffers[0].decode() == notebook_page()
    assert len(json.dumps(cell.widget.get_state(["_esm", "_page"]))) < len(buffers[0]) / 10


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"kind": "ask", "name": "secrets", "query": {}}, "there is no answer"),
        ({"kind": "ask", "name": "row", "query": "all"}, "expected this parameter"),
        ({"kind": "job", "name": "capture", "body": {"text": "a"}}, "without a model"),
        ({"kind": "job", "name": "format", "body": {}}, "there is no job"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(cell, request_, sentence):
    cell.tell({"method": "custom", "content": {"id": "1", **request_}})
    message, _ = cell.receive()
    assert message["kind"] == "error"
    assert sentence in message["error"]


def test_a_job_sends_its_lines_and_stops_when_it_is_told_to(seen):
    begun = SimpleQueue()

    def read(text, report):
        if text == "long":
            begun.put(report)
            while True:
                report("reading", 0, 1)
        return captured(3)

    cell = Cell(widget(seen, read=read))
    cell.send("job", "a", name="capture", body={"text": "one two"})
    assert [cell.receive()[0] for _ in range(2)] == [
        {"kind": "line", "id": "a", "line": {"text": 1}},
        {"kind": "end", "id": "a"},
    ]
    cell.send("job", "b", name="capture", body={"text": "long"})
    begun.get(timeout=HANGING)
    cell.send("stop", "b")
    while cell.receive()[0] != {"kind": "end", "id": "b"}:
        pass
    assert len(cell.widget.contents.texts) == 2
    cell.widget.close()


def test_what_is_asked_of_a_removed_text_is_answered_as_removed(seen):
    cell = Cell(widget(seen, read=lambda text, report: captured(3)))
    for number, (name, body) in enumerate([("capture", {"text": "one two"}), ("remove", {"text": 1})]):
        cell.send("job", str(number), name=name, body=body)
        while cell.receive()[0] != {"kind": "end", "id": str(number)}:
            pass
    cell.send("ask", name="row", query={"text": "1", "layer": "0", "head": "0", "row": "0"})
    assert cell.receive()[0]["kind"] == "removed"
    cell.widget.close()


def test_the_selection_is_set_in_python_and_told_to_the_page(cell):
    cell.widget.head = (1, 3)
    cell.widget.cell = (7, 2)
    assert cell.comm.states == [{"head": (1, 3)}, {"cell": (7, 2)}]


def test_the_selection_of_the_page_is_observed_in_python(cell):
    seen = []
    cell.widget.observe(lambda change: seen.append((change.name, change.new)), ["head", "cell", "view"])
    cell.tell({"method": "update", "state": {"head": ["0", 2], "cell": [5, None], "view": "text"}})
    assert sorted(seen) == [("cell", (5, None)), ("head", (0, 2)), ("view", "text")]
    assert cell.widget.head == (0, 2)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("head", (9, 0), r"layers \[0, 1\], got 9"),
        ("head", (0, 4), r"one of \[0, 1, 2, 3\] in layer 0, got 4"),
        ("head", 3, "such as \\(5, 3\\), got 3"),
        ("cell", (12, 0), "from 0 to 11"),
        ("cell", (0, -1), "from 0 to 11"),
        ("cell", "ab", "from 0 to 11"),
        ("text", 4, "4"),
    ],
)
def test_a_selection_that_does_not_exist_is_refused(cell, name, value, sentence):
    before = cell.widget.head, cell.widget.cell, cell.widget.text
    with pytest.raises(ValueError, match=sentence):
        setattr(cell.widget, name, value)
    assert (cell.widget.head, cell.widget.cell, cell.widget.text) == before
    with pytest.raises(Empty):
        cell.comm.sent.get(block=False)


@pytest.mark.at_length("test_numbers_come_through_the_comm")
def test_answers_need_no_web_server():
    """A widget answers where the extra `app` is not installed."""
    program = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; "
        "import regard.show.server.answers"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_page_is_served_until_it_is_closed(capsys):
    seen = captured(8)
    running = seen.show(open=False, block=False)
    assert running.address in capsys.readouterr().err
    assert running in viewer._servers  # also when nobody holds on to it
    with urllib.request.urlopen(running.address) as answer:
        assert answer.status == 200
    running.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(running.address)
    viewer._servers.remove(running)


def test_the_browser_is_opened_only_where_there_is_a_screen(monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    viewer.open_browser("http://127.0.0.1:1/")
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    viewer.open_browser("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"]


@pytest.fixture
def in_notebook(monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    # Matplotlib asks for the version when a process draws for the first time.
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))
    monkeypatch.setitem(sys.modules, "IPython", ipython)


@pytest.mark.usefixtures("in_notebook")
def test_in_a_notebook_show_is_the_page_and_a_large_one_says_what_to_do(monkeypatch):
    seen = captured(8, model="<b>bold</b>")
    small = seen.show()._repr_mimebundle_()["text/html"]
    outside, _, frame = small.partition("<iframe")
    assert 'sandbox="allow-scripts allow-downloads allow-modals"' in frame
    assert "allow-same-origin" not in frame
    assert "<script" not in small  # all of it stands inside the attribute
    assert "attention" in outside  # for readers whose notebook leaves the frame out
    assert "data:image/png" in outside
    monkeypatch.setattr(viewer, "MOST_INLINE", seen.nbytes - 1)
    large = seen.show()._repr_mimebundle_()["text/html"]
    assert "<iframe" not in large
    assert "&lt;b&gt;bold" in large
    assert "seen.to_html(" in large
    assert "nothing yet" in viewer.InlinePage(Capture())._repr_mimebundle_()["text/html"]


def test_save_writes_a_page(tmp_path):
    captured(8).to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    with pytest.raises(FileNotFoundError, match="make it first"):
        captured(8).to_html(tmp_path / "no" / "page.html")
