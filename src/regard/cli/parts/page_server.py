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

import typer

from regard.show.server.app import Site
from regard.show.server.background import BackgroundServer
from regard.show.server.guard import is_loopback
from regard.show.server.jobs import ReportProgress
from regard.show.server.limits import StoppedError
from regard.show.server.opening_site import OpeningSite
from regard.show.viewer import open_browser
from regard.support.imports import MissingExtraError

BROWSER = 5.0  # seconds that a browser may take to open the page that tells of a failure


def serve(prepare: Callable[[ReportProgress], Site], *, host: str, port: int, open_: bool) -> None:
    """Serve a page until Ctrl-C, and leave the process.

    Arguments:
        prepare: makes what is served, and reports its progress; it is called in a thread of its own.
        host: the address to serve on.
        port: the port; 0 takes a free one.
        open_: whether to open the page in a browser.
    """
    # `running` is bound in the next line; the lambda is called much later.
    site = OpeningSite(on_cancel=lambda: running.stop())
    running = BackgroundServer(site, host=host, port=port)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            site.open(prepare(site.report))
        except StoppedError:  # a reader cancelled it
            pass
        # BaseException: whatever ends this thread must also end the server, or the page would wait for ever.
        except BaseException as error:
            failures.append(error)
            site.fail(_describe_failure(error))
            # The browser needs a moment to fetch the sentence that says what went wrong.
            site.was_followed.wait(BROWSER if has_browser else 0.0)
            running.stop()

    typer.echo(running.address)
    if not is_loopback(host):
        typer.echo("Anyone with this whole address can read the texts on the page, from other machines too.")
    typer.echo("Ctrl-C ends it.")
    # A ticket and not the printed secret: command lines are visible to every user of the machine.
    has_browser = open_ and open_browser(running.bound_address.ticket_address)
    # daemon: a model that is being read must not keep the process alive after Ctrl-C.
    threading.Thread(target=work, name="regard-opening", daemon=True).start()
    code = 0
    try:
        running.run()
    except SystemExit as end:  # a signal
        code = int(end.code or 0)
    if failures:
        # Raised here, in the main thread, where `main` turns it into one line and exit code 2.
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
    # A private function of Python, stable since 3.0: os._exit skips these, and nothing public calls them.
    atexit._run_exitfuncs()  # what was kept in temporary folders goes
    sys.stdout.flush()
    os._exit(code)
