"""Work whose answer comes in lines of JSON while it goes on, and which ends when nobody waits for it.

One piece of such work goes on at a time, in a thread of its own. This file knows threads and HTTP; it does
not know what the work is.
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

Given = TypeVar("Given")
Made = TypeVar("Made")
Line = Mapping[str, object]
"""What the page is told while work goes on: one JSON object a line."""
Say = Callable[[Line], None]
"""Tells the page. Raises `StoppedError` if nobody is there any more."""
Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much; raises `StoppedError` as well."""


def stream(turn: ExclusiveJob, doing: str, work: Callable[[Say], None]) -> Response:
    """The answer to a request that starts some work, if it is its turn: what the work says, as it says it."""
    turn.take(doing)
    loop, lines, gone = asyncio.get_running_loop(), asyncio.Queue[Line | None](), threading.Event()

    def put(line: Line | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it everyone who waits
            loop.call_soon_threadsafe(lines.put_nowait, line)

    def say(line: Line) -> None:
        if gone.is_set():
            raise StoppedError
        put(line)

    def run() -> None:
        try:
            kindly(work, say)
        except StoppedError:
            pass
        except RefusedError as refusal:
            put({"error": str(refusal)})
        except Exception as error:  # a model may fail in any way: the page is told, the server lives on
            put({"error": f"{type(error).__name__}: {error}"})
        finally:
            turn.give_back()
            put(None)

    threading.Thread(target=run, name="regard-model", daemon=True).start()
    return LinesResponse(lines, gone)


class LinesResponse(Response):
    """Lines from a queue up to None, each sent at once; `gone` is set in the end, or when nobody is there."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: asyncio.Queue[Line | None], gone: threading.Event) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.lines, self.gone = lines, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        both = [asyncio.ensure_future(self._send(send)), asyncio.ensure_future(left(receive))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.gone.set()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while (line := await self.lines.get()) is not None:
            body = json.dumps(line).encode("ascii") + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def kindly(work: Callable[[Given], Made], given: Given) -> Made:
    """The work, with what a user can get wrong turned into an answer."""
    try:
        with torch.no_grad():
            return work(given)
    except KeyError as error:
        raise RefusedError(404, str(error.args[0]) if error.args else "there is no such thing") from None
    except (ValueError, OSError) as error:
        raise RefusedError(400, str(error)) from None


async def left(receive: Receive) -> None:
    """Waits until the one who asked has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
