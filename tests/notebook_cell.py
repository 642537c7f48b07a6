"""A notebook's cell without a notebook: a widget whose comm is at hand."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from regard.show.widget import CaptureWidget
from tests.patience import HANGING


class Comm:
    """Takes what the widget sends, as a kernel's comm does."""

    comm_id = "0"

    def __init__(self) -> None:
        self.sent: SimpleQueue[tuple[dict[str, Any], list[bytes]]] = SimpleQueue()
        self.states: list[dict[str, Any]] = []
        self.handle: Callable[[dict[str, Any]], None] = lambda message: None

    def on_msg(self, handle: Callable[[dict[str, Any]], None]) -> None:
        self.handle = handle

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        if data["method"] == "custom":
            self.sent.put((data["content"], buffers or []))
        elif data["method"] == "update":
            self.states.append(data["state"])

    def close(self, *args: Any, **options: Any) -> None:
        pass


class Cell:
    """A widget with a comm, as a page in a cell talks to it."""

    def __init__(self, made: CaptureWidget) -> None:
        self.widget, self.comm = made, Comm()
        made.comm = self.comm

    def tell(self, data: dict[str, Any]) -> None:
        self.comm.handle({"content": {"data": data}, "buffers": []})

    def send(self, kind: str, number: object = "1", **content: object) -> None:
        self.tell({"method": "custom", "content": {"kind": kind, "id": number, **content}})

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        return self.comm.sent.get(timeout=HANGING)

    def ask(self, name: str, **query: str) -> Any:
        self.send("ask", name=name, query=query)
        message, buffers = self.receive()
        assert message == {"kind": "answer", "id": "1"}
        return buffers[0]
