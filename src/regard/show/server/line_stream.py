"""Streaming responses: the lines of a job as they come, until it ends or the client disconnects.

This file knows HTTP; `jobs` runs the job.
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.show.server import jobs
from regard.show.server.jobs import Line, ModelJob
from regard.show.server.limits import ExclusiveJob

# Says that a body is not to be compressed: lines would wait for one another.
AS_IT_IS = {"content-encoding": "identity"}


def stream(job: ModelJob, lock: ExclusiveJob) -> Response:
    """Start a job and return a response that streams the lines it sends; a taken lock refuses the request."""
    loop, lines, disconnected = asyncio.get_running_loop(), asyncio.Queue[Line | None](), threading.Event()

    def put(line: Line | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it every client
            loop.call_soon_threadsafe(lines.put_nowait, line)

    jobs.start(job, lock, put, disconnected)
    return LinesResponse(lines, disconnected)


class LinesResponse(Response):
    """A response that sends each line of a queue as it comes, up to None.

    `disconnected` is set at the end, or as soon as the client disconnects.
    """

    media_type = "application/x-ndjson"

    def __init__(self, lines: asyncio.Queue[Line | None], disconnected: threading.Event) -> None:
        super().__init__(headers=AS_IT_IS)
        # Starlette sets the length of an empty body; this one ends when its lines do.
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
            # Waited for, so that no task is left that the loop would complain of at its end.
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (line := await self.lines.get()) is not None:
            body = json.dumps(line).encode("ascii") + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
