"""A server for a `Site`: its socket, its thread, and how both end.

`app` knows what is served, `guard` to whom; uvicorn parses HTTP and bounds the number of connections.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

import uvicorn

from regard.show.server.app import Site
from regard.show.server.guard import BoundAddress, Guard
from regard.show.server.opening_site import OpeningSite

IDLE = 30
"""Seconds for which a connection is kept open between two requests."""


class PageServer(uvicorn.Server):
    """uvicorn's server, which ends at SIGHUP as well and leaves no connection open."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving; connections that did not end in time are cut."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # the loop closes their sockets in its next round

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at SIGHUP as at SIGTERM: an exception of a handler would be lost in the code of a request."""
        with super().capture_signals():
            main = threading.current_thread() is threading.main_thread()
            before = signal.getsignal(signal.SIGHUP) if main and hasattr(signal, "SIGHUP") else signal.SIG_IGN
            if before == signal.SIG_IGN:
                yield
                return
            signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)  # uvicorn raises what it has captured again


class BackgroundServer:
    """A server for a site: `run()` serves until Ctrl-C, `start()` and `close()` serve in the background.

    Arguments:
        site: what is served.
        host: the address to bind to. Whatever it is, nobody sees anything without the secret in `address`.
        port: the port to bind to; 0 takes a free one.
    """

    def __init__(self, site: Site | OpeningSite, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port: expected a number from 0 (any free port) to 65535, got {port}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ValueError(
                f"host, port: {host}:{port} cannot be served ({error}): try another port, or 0 for a free one"
            ) from None
        self.site = site
        self.bound_address = BoundAddress(host, self._socket.getsockname()[1])
        self._server = PageServer(
            uvicorn.Config(
                Guard(site.application(), self.bound_address),
                # h11, whose limit of a request's head is set below.
                http="h11",
                # "auto" would take uvloop where it happens to be installed.
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_level="critical",  # requests interrupted by Ctrl-C are not errors; the site logs its own
                access_log=False,
                server_header=False,
                date_header=False,
                # proxy_headers: the address of the client is checked (`is_own_process`), and a header could
                # forge it.
                proxy_headers=False,
                limit_concurrency=site.limits.connections,  # more are answered with 503
                h11_max_incomplete_event_size=site.limits.head,
                timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address to open in a browser. It holds a secret."""
        return self.bound_address.address

    def run(self) -> None:
        """Serve until Ctrl-C."""
        try:
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self._end()

    def start(self) -> Self:
        """Serve in the background; returns once requests are accepted."""
        self._thread = threading.Thread(target=self.run, name="regard-server", daemon=True)
        self._thread.start()
        # uvicorn has no event for it.
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def wait(self) -> None:
        """Block until Ctrl-C, then close, if the server was started in the background."""
        try:
            while self._thread is not None and self._thread.is_alive():
                # In steps, since join without a timeout keeps Ctrl-C from being handled on Windows.
                self._thread.join(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def stop(self) -> None:
        """Stop serving soon, from any thread; responses that are being sent have a second."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop serving, and return once that is done."""
        self.stop()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._end()

    def _end(self) -> None:
        self._socket.close()
        self.site.close()

    def __repr__(self) -> str:
        return f"BackgroundServer({self.bound_address.origin})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()
