"""A notebook's cell without a notebook: a widget whose comm is at hand."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tests.patience import HANGING


class Comm:
    """Takes what the widget sends, as a kernel's comm does."""

    comm_id = "0"

    def __init__(self):
        self.sent: SimpleQueue[tuple[dict[str, Any], list[bytes]]] = SimpleQueue()
        self.states: list[dict[str, Any]] = []
        self.handle: Callable[[dict[str, Any]], None] = lambda message: None

    def on_msg(self, handle):
        self.handle = handle

    def send(self, data=None, metadata=None, buffers=None):
        if data["method"] == "custom":
            self.sent.put((data["content"], buffers or []))
        elif data["method"] == "update":
            self.states.append(data["state"])

    def close(self, *args, **options):
        pass


class Cell:
    """A widget with a comm, as a page in a cell talks to it."""

    def __init__(self, made):
        self.widget, self.comm = made, Comm()
        made.comm = self.comm

    def tell(self, data):
        self.comm.handle({"content": {"data": data}, "buffers": []})

    def send(self, kind, number="1", **content):
        self.tell({"method": "custom", "content": {"kind": kind, "id": number, **content}})

    def receive(self):
        return self.comm.sent.get(timeout=HANGING)

    def ask(self, name, **query):
        self.send("ask", name=name, query=query)
        message, buffers = self.receive()
        assert message == {"kind": "answer", "id": "1"}
        return buffers[0]
