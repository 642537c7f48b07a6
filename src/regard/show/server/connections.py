"""Connections: how many there may be, how long they may take, and which gives way when there are too many.

uvicorn parses HTTP and bounds neither silent nor slow clients. A `ConnectionPool` counts the connections of a
server and closes those that are overdue; a `Connection` is uvicorn's protocol that reports to its pool. A
connection whose request was admitted is never closed in favour of another one. This file knows sockets, bytes
and seconds; it does not know what is served or who may see it.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.show.server.limits import Limits

ACCEPTED_AT_ONCE = 8
"""Connections that are accepted before those that are there are heard."""
QUEUE = 1024
"""Connections that the system holds until they are accepted."""
NOT_HTTP = b"\r\n".join(
    (
        b"HTTP/1.1 400 Bad Request",
        b"content-type: application/json",
        b"content-length: 36",
        b"x-content-type-options: nosniff",
        b"cache-control: no-store",
        b"connection: close",
        b"",
        b'{"error":"expected an HTTP request"}',
    )
)
HEARD = 0.2
"""Seconds after which a client that sends something at once has done so."""
TURNS = 5
"""Turns of the event loop after which what a client has sent is read, and its request admitted."""
NEW = 1.0
"""Seconds for which a connection is new."""
USUAL_HEAD = 2000
"""Bytes of a usual request without its body."""
SWEEP = 0.5
"""Seconds between two looks for connections that are overdue."""


class ConnectionPool:
    """The open connections of a server, by the address of their client.

    They take at most half of the process's file descriptors; one client has at most three quarters of them.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.clients: dict[str, set[Connection]] = {}
        self.descriptors = _count_descriptors()
        self.most = min(limits.connections, self.descriptors // 2)
        self.most_per_client = min(limits.per_client, self.most * 3 // 4)
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self.clients.values()))

    def protocol(self, **arguments: Any) -> Connection:
        """Return a new connection; uvicorn calls this with its own arguments."""
        return Connection(self, **arguments)

    def add(self, connection: Connection) -> None:
        """Take in a connection. If there are too many, those that have sent least give way.

        Until a connection has been heard, it gives way only if there is no more room at all.
        """
        own = self.clients.setdefault(connection.address, set())
        own.add(connection)
        is_scarce = connection.descriptor >= self.descriptors * 3 // 4  # a new one has the lowest free number
        if is_scarce or len(self) > self.most * 5 // 4:
            self._shed(self._all(), 1)
        self._trim(own)
        if self._timer is None:
            self._timer = connection.loop.call_later(SWEEP, self._sweep, connection.loop)

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        own = self.clients.get(connection.address, set())
        own.discard(connection)
        if not own:
            self.clients.pop(connection.address, None)

    def _all(self) -> list[Connection]:
        """Return the connections of every client."""
        return [*chain.from_iterable(self.clients.values())]

    def _trim(self, own: set[Connection]) -> None:
        """Close the connections of one client and of all that are too many, of those that have been heard."""
        if (excess := len(own) - self.most_per_client) > 0:
            self._shed([one for one in own if one.was_heard], excess)
        if (excess := len(self) - self.most) > 0:
            self._shed([one for one in self._all() if one.was_heard], excess)

    def _shed(self, crowd: Iterable[Connection], count: int) -> None:
        """Close so many connections of a crowd: those least likely to be a reader's, none that is served."""
        idle = [one for one in crowd if not one.is_serving]
        for connection in heapq.nsmallest(count, idle, key=lambda one: one.merit):
            self._end(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that are overdue or too many, and look again later while there are others."""
        for connection in self._all():
            if connection.is_overdue():
                self._end(connection)
        for own in [*self.clients.values()]:
            self._trim(own)
        self._timer = loop.call_later(SWEEP, self._sweep, loop) if self.clients else None

    def _end(self, connection: Connection) -> None:
        """Close a connection at once."""
        self.discard(connection)
        connection.transport.abort()


class Connection(H11Protocol):
    """A client's connection: uvicorn's protocol with limits on time, and an end that a client can read.

    Arguments:
        pool: the connections that this one belongs to.
        arguments: those of uvicorn's protocol.
    """

    def __init__(self, pool: ConnectionPool, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.pool, self.limits = pool, pool.limits
        self.address, self.descriptor = "", -1
        self.turns = TURNS  # of the event loop until what the client has sent at once is read
        self.is_known = False  # whether it has carried an admitted request
        self.received = 0  # bytes of the request that is arriving
        self.since = self.read_at = self.loop.time()  # when that began, and when the client last read
        self.unread = 0  # bytes that the client had not read at the last look

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take in the connection."""
        super().connection_made(cast(asyncio.Transport, LingeringTransport(transport, self)))
        self.address = self.client[0] if self.client else ""
        self.descriptor = transport.get_extra_info("socket").fileno()
        self._listen(TURNS)
        self.pool.add(self)

    def _listen(self, turns: int) -> None:
        """Count down the turns of the event loop in which the client can be heard."""
        self.turns = turns
        if turns:
            self.loop.call_soon(self._listen, turns - 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.pool.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what has come, unless the answer is already given."""
        if self.transport.is_closing():
            cast(LingeringTransport, self.transport).drop(data)
            return
        if not self.received:
            self.since = self.loop.time()
        self.received += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request, or close if the rest of this one is not wanted."""
        self.is_known |= self._was_admitted
        self.since, self.received = self.loop.time(), 0
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, unless a response has already begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        if self._is_in_flight:  # the application would answer a second time
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(NOT_HTTP)
        self.transport.close()

    def shutdown(self) -> None:
        """End with the server."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            super().shutdown()

    @property
    def is_serving(self) -> bool:
        """Whether an admitted request is arriving, computed or sent."""
        if self._is_in_flight:
            return self._was_admitted
        return self.is_known and self.transport.get_write_buffer_size() > 0

    @property
    def was_heard(self) -> bool:
        """Whether there was time to hear the client."""
        return not self.turns and self.age >= HEARD

    @property
    def age(self) -> float:
        """Seconds since it was opened, or since the request that is arriving began."""
        return self.loop.time() - self.since

    @property
    def merit(self) -> tuple[bool, bool, bool, float]:
        """How likely this is a reader: known, or else not heard yet, or else new, or else sending something.

        A reader's request follows its connection at once, so a new connection outlives those that have been
        silent or slow for longer. More bytes than a usual request has are no merit.
        """
        is_new, pace = self.age < NEW, min(self.received, USUAL_HEAD) / (self.age + 1)
        return self.is_known, not self.was_heard, is_new, -self.age if is_new else pace

    @property
    def expects_more(self) -> bool:
        """Whether the client may still be sending a request that is already answered."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    def is_overdue(self) -> bool:
        """Return whether the client has been silent, or too slow, for too long."""
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        if unread < self.unread or not unread:
            self.read_at = now
        self.unread = unread
        if unread:
            return now - self.read_at > self.limits.stalled
        if self._is_in_flight and not self.cycle.more_body:
            return False
        allowance = self.received / self.limits.pace if self._is_in_flight else 0
        return self.age > self.limits.patience + allowance

    @property
    def _is_in_flight(self) -> bool:
        """Whether there is a request whose response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _was_admitted(self) -> bool:
        """Whether the latest request was admitted."""
        return self.scope is not None and bool(self.scope["state"].get("admitted"))


class LingeringTransport:
    """A transport whose `close` lets a client that is still sending read the response first.

    A socket that is closed with unread bytes resets the connection, and the response is lost. So the writing
    half is closed, and what the client sends is dropped until it ends, up to a limit.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self.transport, self.connection = transport, connection
        self.lingers, self.dropped = False, 0

    def __getattr__(self, name: str) -> Any:
        """Return what is not defined here from the transport itself."""
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        """Return whether `close` was called."""
        return self.lingers or self.transport.is_closing()

    def close(self) -> None:
        """Close the connection once everything is written and the client has ended its request."""
        if self.is_closing():
            return
        if not self.connection.expects_more:
            self.transport.close()
            return
        self.lingers, self.connection.since = True, self.connection.loop.time()
        try:
            self.transport.write_eof()
            self.transport.resume_reading()
        except OSError:  # the client is gone
            self.transport.abort()

    def drop(self, data: bytes) -> None:
        """Drop what came after the answer; close when it is too much."""
        self.dropped += len(data)
        if self.dropped > self.connection.limits.dropped:
            self.transport.abort()


def _count_descriptors() -> int:
    """Return how many file descriptors the process may have."""
    if sys.platform == "win32":  # where there is no such limit
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
