"""The page as a notebook's widget: it lives in the cell and gets its numbers from the kernel, at any length.

Requests go through the kernel's comm, so no port is opened and it works where the browser and the kernel are
on different machines. `web/notebook/host.js` is the notebook's side. This file knows widgets and messages;
`server.answers` knows what is answered.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from pathlib import Path
from typing import Any

from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.saved.bundle import notebook_page
from regard.show.server import jobs
from regard.show.server.answers import PATIENT, Answers, Json, log_failure
from regard.show.server.jobs import Line, ModelJob
from regard.show.server.limits import ExclusiveJob, RefusedError
from regard.show.server.work_queue import WorkQueue
from regard.support.imports import extra

with extra("widget", "seen.widget()"):
    import anywidget
    import traitlets

HOST = Path(__file__).parent / "web" / "notebook" / "host.js"
HEIGHT = 720  # pixels of the page in a cell
VIEWS = ("map", "text", "image", "heads", "compare", "steps", "write", "cache", "survey", "time")
LONGEST_ID = 64  # letters of a request's number


class CaptureWidget(anywidget.AnyWidget):
    """The page of a capture in a notebook's cell, in step with Python: `seen.widget()` makes one.

    - `w.head`: the layer and the head that are shown. Assign to it (`w.head = (5, 3)`) and the page follows.
    - `w.cell`: the chosen (query, key) as positions; (query, None) if only a token is chosen, None for none.
    - `w.text`: the number of the text, if there are several.
    - `w.view`: the view, by the name of its tab: "map", "text", "heads" and so on.

    `w.observe(function, "cell")` calls a function whenever the reader chooses another cell.

    Arguments:
        answers: what the page can request.
        height: the height of the page in pixels.
    """

    _esm = HOST.read_text("utf-8")
    _page = traitlets.Unicode().tag(
        sync=True
    )  # the hash of the page's code, which comes when it is requested
    head = traitlets.Any().tag(sync=True)
    cell = traitlets.Any(None, allow_none=True).tag(sync=True)
    text = traitlets.Int(0).tag(sync=True)
    view = traitlets.Enum(VIEWS, VIEWS[0]).tag(sync=True)
    height = traitlets.Int(HEIGHT, min=100, max=10_000).tag(sync=True)

    def __init__(self, answers: Answers, height: int = HEIGHT) -> None:
        self._answers, self._model_job = answers, ExclusiveJob()
        self._workers = WorkQueue(answers.limits.workers)
        self._pending: dict[str, threading.Event] = {}  # set to stop a request, by its number
        page = notebook_page().encode("utf-8")
        first = self.contents.texts[0].layers[0]
        start = self.contents.start or (first.key, first.heads[0])
        # After the attributes above: the validators of traits, which __init__ calls, read them.
        super().__init__(_page=hashlib.sha256(page).hexdigest(), head=start, height=height)
        self.on_msg(self._receive)

    @property
    def contents(self) -> Contents:
        """The captures that are shown."""
        return self._answers.contents

    @traitlets.validate("text")
    def _check_text(self, proposal: Any) -> int:
        number: int = proposal["value"]
        try:
            self.contents[number]  # KeyError if there is none
        except KeyError as error:
            raise ValueError(str(error.args[0])) from None
        return number

    @traitlets.validate("head")
    def _check_head(self, proposal: Any) -> tuple[int | str, int]:
        value = proposal["value"]
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError(f"head: expected a layer and a head, such as (5, 3), got {value!r}")
        layer = self._find_layer(value[0])
        # True is an int to Python, and 1 in [0, 1].
        if isinstance(value[1], bool) or value[1] not in layer.heads:
            raise ValueError(
                f"head: expected one of {list(layer.heads)} in layer {layer.key}, got {value[1]!r}"
            )
        return layer.key, int(value[1])

    @traitlets.validate("cell")
    def _check_cell(self, proposal: Any) -> tuple[int, int | None] | None:
        value = proposal["value"]
        if value is None:
            return None
        _, _, queries, keys = self._find_layer(self.head[0]).shape
        is_pair = isinstance(value, list | tuple) and len(value) == 2
        if not (is_pair and _is_index(value[0], queries) and (value[1] is None or _is_index(value[1], keys))):
            raise ValueError(
                f"cell: expected a query from 0 to {queries - 1} and a key from 0 to {keys - 1}, such as "
                f"(7, 2), or None, got {value!r}"
            )
        return value[0], value[1]

    def _find_layer(self, key: object) -> Any:
        """Return a layer of the current text; the page names it by a text, as in "5"."""
        layers = self.contents.texts[self.text].layers
        for layer in layers:
            # As text, since the page has it from JSON and a user may write 5 or "5".
            if str(layer.key) == str(key):
                return layer
        raise ValueError(f"head: expected one of the layers {[layer.key for layer in layers]}, got {key!r}")

    def _receive(self, _: object, message: object, buffers: object) -> None:
        """Take a message of the page. What is not a request is ignored: nothing it says is trusted."""
        if not isinstance(message, dict):
            return
        kind, number, name = message.get("kind"), message.get("id"), message.get("name")
        if not isinstance(number, str) or len(number) > LONGEST_ID:
            return
        if kind == "stop":
            self._stop(number)
        elif len(self._pending) >= self._answers.limits.waiting:
            self._refuse(number, "the kernel is busy with other requests: try again in a moment")
        elif kind == "page":
            self._answer(number, notebook_page().encode("utf-8"))
        elif kind == "ask" and isinstance(name, str):
            stopped = self._pending[number] = threading.Event()
            self._workers.submit(name in PATIENT, self._compute, number, name, message.get("query"), stopped)
        elif kind == "job" and isinstance(name, str):
            self._run(number, name, message.get("body"))

    def _compute(self, number: str, name: str, query: object, stopped: threading.Event) -> None:
        if stopped.is_set():
            return
        try:
            texts = query if isinstance(query, dict) else {}
            answer = self._answers.compute(name, {str(key): str(value) for key, value in texts.items()})
            content = answer.encode() if isinstance(answer, Json) else answer
        except RefusedError as refusal:
            self._refuse(number, str(refusal), kind="removed" if refusal.status == 410 else "error")
        except Exception as error:  # the page shows it, the widget goes on
            self._refuse(number, log_failure(name, error))
        else:
            self._answer(number, content)

    def _run(self, number: str, name: str, body: object) -> None:
        """Start a job of the model, whose lines are sent as they come."""
        stopped = self._pending[number] = threading.Event()

        def put(line: Line | None) -> None:
            if line is None:
                self._pending.pop(number, None)
                self.send({"kind": "end", "id": number})
            elif "error" in line:
                self._refuse(number, str(line["error"]))
            else:
                self.send({"kind": "line", "id": number, "line": dict(line)})

        try:
            job = self._answers.prepare(name, body)
            if isinstance(job, ModelJob):
                jobs.start(job, self._model_job, put, stopped)
            else:
                put(job.content)
                put(None)
        except RefusedError as refusal:
            self._refuse(number, str(refusal))

    def _stop(self, number: str) -> None:
        """Drop a request: its answer is not begun, or its job ends at the next line."""
        stopped = self._pending.pop(number, None)
        if stopped is not None:
            stopped.set()

    def _answer(self, number: str, content: bytes) -> None:
        self._pending.pop(number, None)
        self.send({"kind": "answer", "id": number}, [content])

    def _refuse(self, number: str, error: str, *, kind: str = "error") -> None:
        self._pending.pop(number, None)
        self.send({"kind": kind, "id": number, "error": error})

    def close(self) -> None:
        """Close the widget: its page gets no more answers."""
        for number in list(self._pending):
            self._stop(number)
        self._workers.shutdown()
        super().close()

    def __repr__(self) -> str:
        return f"CaptureWidget({self.contents.meta['model']}, head={self.head}, cell={self.cell})"


def widget(capture: Capture, *, height: int = HEIGHT, **options: Any) -> CaptureWidget:
    """Return the page of a capture as a widget for a notebook's cell.

    Arguments:
        capture: the capture to show.
        height: the height of the page in pixels.
        options: arguments of `Contents`, such as `titles`; and of `Answers`, such as `read`, a function of a
            text and of a function that reports progress: it captures the text, so that the page can read
            new ones.
    """
    names = {field.name for field in dataclasses.fields(Answers)}
    of_answers = {name: options.pop(name) for name in names & options.keys()}
    return CaptureWidget(Answers(Contents(capture, **options), **of_answers), height)


def _is_index(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
