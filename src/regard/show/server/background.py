"""A server for a `Site`: its socket, its thread, and how both end. `app` knows what is served."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Self

import uvicorn

from regard.show.server.app import Site
from regard.show.server.guard import BoundAddress, Guard


class BackgroundServer:
    """A server for a site: `run()` serves until Ctrl-C, `start()` and `close()` serve in the background.

    Arguments:
        site: what is served.
        host: the address to bind to. Anything but loopback puts a secret into the address.
        port: the port to bind to; 0 takes a free one.
    """

    def __init__(self, site: Site, *, host: str = "127.0.0.1", port: int = 0) -> None:
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
        self.bound_address = BoundAddress.at(host, self._socket.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(site.application(), self.bound_address),
                http="h11",
                ws="none",
                lifespan="off",
                log_level="critical",  # requests interrupted by Ctrl-C are not errors; the site logs its own
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=site.limits.waiting + 64,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address to open in a browser."""
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
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def wait(self) -> None:
        """Block until Ctrl-C, then close, if the server was started in the background."""
        try:
            while self._thread is not None and self._thread.is_alive():
                self._thread.join(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._end()

    def _end(self) -> None:
        self._socket.close()
        self.site.workers.shutdown(wait=False, cancel_futures=True)

    def __repr__(self) -> str:
        return f"BackgroundServer({self.address})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()
