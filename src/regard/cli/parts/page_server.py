"""Serves the page of `regard inspect`: at once, while a model is still being opened and reads.

The server has the main thread, which receives signals, and another thread prepares what is shown. What fails
there is a sentence on the page, and ends the command as it would without a page.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from regard.support.imports import MissingExtraError

if TYPE_CHECKING:
    from regard.show.server.app import Site
    from regard.show.server.jobs import ReportProgress

BROWSER = 5.0  # seconds that a browser may take to open the page that tells of a failure


def serve(prepare: Callable[[ReportProgress], Site], *, host: str, port: int, open_: bool) -> None:
    """Serve a page until Ctrl-C, and leave the process.

    Arguments:
        prepare: makes what is served, and reports its progress; it is called in a thread of its own.
        host: the address to serve on.
        port: the port; 0 takes a free one.
        open_: whether to open the page in a browser.
    """
    from regard.show.server.background import BackgroundServer
    from regard.show.server.guard import is_loopback
    from regard.show.server.limits import StoppedError
    from regard.show.server.opening_site import OpeningSite
    from regard.show.viewer import open_browser

    site = OpeningSite(on_cancel=lambda: running.stop())
    running = BackgroundServer(site, host=host, port=port)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            site.open(prepare(site.report))
        except StoppedError:  # a reader cancelled it
            pass
        except BaseException as error:
            failures.append(error)
            site.fail(_describe_failure(error))
            site.was_followed.wait(BROWSER if has_browser else 0.0)
            running.stop()

    typer.echo(running.address)
    if not is_loopback(host):
        typer.echo("Anyone with this whole address can read the texts on the page, from other machines too.")
    typer.echo("Ctrl-C ends it.")
    has_browser = open_ and open_browser(running.bound_address.ticket_address)
    threading.Thread(target=work, name="regard-opening", daemon=True).start()
    code = 0
    try:
        running.run()
    except SystemExit as end:  # a signal
        code = int(end.code or 0)
    if failures:
        raise failures[0]
    if site.site is None and not code:  # Ctrl-C, or cancelled on the page, before there was anything to show
        typer.echo("Aborted!", err=True)
        code = 1
    _leave(code)


def _describe_failure(error: BaseException) -> str:
    """Return an error as a sentence: a user's mistake is one, any other is named."""
    if isinstance(error, ValueError | OSError | MissingExtraError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _leave(code: int) -> None:
    """Exit at once: Python would wait for threads whose results are no longer needed."""
    atexit._run_exitfuncs()  # what was kept in temporary folders goes
    sys.stdout.flush()
    os._exit(code)
