"""Streaming responses: a job that sends lines of JSON while it runs and stops when the client disconnects.

One such job runs at a time, in a thread of its own. This file knows threads and HTTP; it does not know what
the job does.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import torch
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.show.server.limits import ExclusiveJob, RefusedError, StoppedError

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Line = Mapping[str, object]
"""One line of a streaming response: a JSON object."""
SendLine = Callable[[Line], None]
"""Sends a line to the page. Raises `StoppedError` if the client has disconnected."""
ReportProgress = Callable[[str, int, int], None]
"""Reports what is being done, how much of it is done, and the total. Raises `StoppedError` as well."""


def stream(job: ExclusiveJob, doing: str, work: Callable[[SendLine], None]) -> Response:
    """Run `work` in a thread and return a response that streams the lines it sends.

    Arguments:
        job: the lock that the work holds; if it is taken, the request is refused.
        doing: describes the work to those who are refused.
        work: called with a function that sends a line. An error it raises becomes the last line.
    """
    job.acquire(doing)
    loop, lines, disconnected = asyncio.get_running_loop(), asyncio.Queue[Line | None](), threading.Event()

    def put(line: Line | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it every client
            loop.call_soon_threadsafe(lines.put_nowait, line)

    def send_line(line: Line) -> None:
        if disconnected.is_set():
            raise StoppedError
        put(line)

    def run() -> None:
        try:
            translate_errors(work, send_line)
        except StoppedError:
            pass
        except RefusedError as refusal:
            put({"error": str(refusal)})
        except Exception as error:  # a model may fail in any way: the page shows it, the server goes on
            put({"error": f"{type(error).__name__}: {error}"})
        finally:
            job.release()
            put(None)

    threading.Thread(target=run, name="regard-model", daemon=True).start()
    return LinesResponse(lines, disconnected)


class LinesResponse(Response):
    """A response that sends each line of a queue as it comes, up to None.

    `disconnected` is set at the end, or as soon as the client disconnects.
    """

    media_type = "application/x-ndjson"

    def __init__(self, lines: asyncio.Queue[Line | None], disconnected: threading.Event) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.lines, self.disconnected = lines, disconnected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._send(send)), asyncio.ensure_future(wait_for_disconnect(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.disconnected.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (line := await self.lines.get()) is not None:
            body = json.dumps(line).encode("ascii") + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def translate_errors(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call a function without gradients, turning the errors a user can cause into `RefusedError`."""
    try:
        with torch.no_grad():
            return function(argument)
    except KeyError as error:
        raise RefusedError(404, str(error.args[0]) if error.args else "not found") from None
    except (ValueError, OSError) as error:
        raise RefusedError(400, str(error)) from None


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
