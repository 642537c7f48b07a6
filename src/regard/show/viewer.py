"""Showing a capture: as a page in the browser or inside a notebook.

This file knows where a capture is shown. `server` knows how the page is served, `saved` how it becomes a
file, `figures` how a map is drawn on paper.
"""

from __future__ import annotations

import html
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.recorder import Capture
from regard.show.capture_output import capture_output, how_to_open
from regard.support.characters import escape
from regard.support.imports import extra

if TYPE_CHECKING:
    from regard.show.server.background import BackgroundServer

MOST_INLINE = 8 << 20  # bytes of q, k and lse up to which a notebook holds the whole page
HEIGHT = 720  # pixels of the page in a notebook
_servers: list[BackgroundServer] = []  # kept alive when the caller drops what `show` returned


def show(
    capture: Capture, *, port: int = 0, open: bool = True, block: bool | None = None, **options: Any
) -> Any:
    """Serve a capture on this machine and open it in the browser; in a notebook, return the page as HTML.

    Arguments:
        capture: the capture to show.
        port: the port to serve at; 0 takes a free one.
        open: whether to open the browser.
        block: whether to serve until Ctrl-C. By default a script blocks and an interactive session does not.
        options: further arguments of `Contents`.

    Nobody else sees it: the address that is printed holds a secret, without which the server refuses.

    Returns the running server, which stops at `.close()` or when the session ends, or an `InlinePage`.
    """
    if block is None and _in_notebook():
        return InlinePage(capture, **options)
    from regard.show.data.contents import Contents

    with extra("app", "seen.show()"):
        from regard.show.server.app import Site
        from regard.show.server.background import BackgroundServer

    server = BackgroundServer(Site(Contents(capture, **options)), port=port).start()
    print(escape(f"{server.address} shows {capture!r}"), file=sys.stderr)
    if open:
        open_browser(server.bound_address.ticket_address)
    # ps1 exists in interactive sessions; the flag is for `python -i script.py`.
    if block or (block is None and not hasattr(sys, "ps1") and not sys.flags.interactive):
        server.wait()
    else:
        _servers.append(server)
    return server


class InlinePage:
    """A capture with its page inside of the cell's output: it works without a kernel, also in an export.

    Arguments:
        capture: the capture to show.
        options: those of `bundle.write`.
    """

    def __init__(self, capture: Capture, **options: Any) -> None:
        self.capture, self.options = capture, options

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return capture_output(self.capture, frame_page(self.capture, **self.options))

    def __repr__(self) -> str:
        return f"InlinePage({self.capture!r})"


def frame_page(capture: Capture, **options: Any) -> str:
    """Return the page as HTML for a notebook, in a sandboxed frame; if it is too large, what to call instead.

    `options` are those of `bundle.write`.
    """
    if not capture.layers:
        return ""
    if capture.nbytes > MOST_INLINE:
        size = f"{capture.nbytes / 2**20:,.0f} MiB"
        return f"<p>{size} of queries and keys are too large to be put into a notebook.</p>{how_to_open()}"
    from tempfile import TemporaryDirectory

    from regard.show.saved.bundle import write

    with TemporaryDirectory() as folder:
        text = write(capture, Path(folder) / "page.html", **options).read_text("utf-8")
    # In the sandbox the page runs its own script, and saves and prints figures; it cannot reach the notebook.
    return (
        f'<iframe title="Attention of every head" sandbox="allow-scripts allow-downloads allow-modals" '
        f'style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{html.escape(text)}"></iframe>'
    )


def open_browser(address: str) -> bool:
    """Open an address in a browser if there is a screen, and return whether there is.

    A browser in the terminal would be in the way.
    """
    import webbrowser

    # macOS and Windows always have a screen; on Linux, under SSH or in a container, there may be none.
    screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return screen and webbrowser.open(address)


def _in_notebook() -> bool:
    """Return whether this runs in a Jupyter kernel, which displays what a cell returns."""
    # Not imported here: if IPython is not loaded, this is no notebook. A terminal's IPython has no kernel.
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
