"""A site at an address: the socket, the thread and the end of both. `server` knows what is served."""

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
    """A site at an address: `run()` until Ctrl-C, or in the background between `start()` and `close()`."""

    def __init__(self, site: Site, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port: expected a number from 0, for any that is free, to 65535, got {port}")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ValueError(
                f"host, port: {host}:{port} cannot be served ({error}): another port, or 0 for a free one?"
            ) from None
        self.site = site
        self.door = BoundAddress.at(host, self._socket.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(site.application(), self.door),
                http="h11",
                ws="none",
                lifespan="off",
                log_level="critical",  # what was cut off by Ctrl-C is no error; the site logs its own
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
        return self.door.address

    def run(self) -> None:
        """Serve until Ctrl-C."""
        try:
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self._end()

    def start(self) -> Self:
        """Serve in the background."""
        self._thread = threading.Thread(target=self.run, name="regard-server", daemon=True)
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def wait(self) -> None:
        """Serve on until Ctrl-C, if it was started in the background."""
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
        return f"Running({self.address})"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()
