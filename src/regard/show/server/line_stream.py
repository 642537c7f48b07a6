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


class Follower:
    """A client that reads lines, and the queue of lines for it.

    `disconnected` is set at the end, or as soon as the client disconnects.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lines = asyncio.Queue[Line | None]()
        self.disconnected = threading.Event()

    def put(self, *lines: Line | None) -> None:
        """Send lines to the client, from any thread; None ends the response."""
        for line in lines:
            with suppress(RuntimeError):  # the loop has ended, and with it every client
                self.loop.call_soon_threadsafe(self.lines.put_nowait, line)


def stream(job: ModelJob, lock: ExclusiveJob) -> Response:
    """Start a job and return a response that streams the lines it sends; a taken lock refuses the request."""
    follower = Follower()
    jobs.start(job, lock, follower.put, follower.disconnected)
    return LinesResponse(follower)


class LinesResponse(Response):
    """A response that sends each line for a client as it comes, up to None."""

    media_type = "application/x-ndjson"

    def __init__(self, follower: Follower) -> None:
        super().__init__(headers=AS_IT_IS)
        # Starlette sets the length of an empty body; this one ends when its lines do.
        del self.headers["content-length"]
        self.lines, self.disconnected = follower.lines, follower.disconnected

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
