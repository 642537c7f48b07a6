"""What a capture does when it is asked to show itself: a page in a browser, in a notebook, or in a file.

It is the `Viewer` that captures use. It knows captures; what they look like is `page`'s business.
"""

from __future__ import annotations

import html
import os
import sys
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.extras import extra
from regard.recorder import Capture
from regard.show import figures

if TYPE_CHECKING:
    from regard.show.server.background import BackgroundServer

MOST_INLINE = 8 << 20  # bytes of q, k and lse up to which a notebook carries the whole page
HEIGHT = 720  # pixels of the page in a notebook
_running: list[
    BackgroundServer
] = []  # kept, so that a page stays there when nobody holds on to what `show` returned


def show(
    seen: Capture, *, port: int = 0, open: bool = True, block: bool | None = None, **options: Any
) -> Any:
    """Serve a capture on loopback and open it in the browser; in a notebook, return the page to be displayed.

    In a script it waits until Ctrl-C, unless `block=False`; at a prompt it returns, and the page stays there
    until the session ends or `.close()` is called on what came back. Options are those of `Contents`.
    """
    if block is None and _in_notebook():
        return Inline(in_notebook(seen, **options))
    from regard.show.data.contents import Contents

    with extra("app", "seen.show()"):
        from regard.show.server.app import Site
        from regard.show.server.background import BackgroundServer

    running = BackgroundServer(Site(Contents(seen, **options)), port=port).start()
    print(f"{running.address} shows {seen!r}", file=sys.stderr)
    if open:
        open_browser(running.address)
    if block or (block is None and not hasattr(sys, "ps1") and not sys.flags.interactive):
        running.wait()
    else:
        _running.append(running)
    return running


def figure(seen: Capture, layer: int | str, head: int | None = None, **options: Any) -> Any:
    """A layer or one of its heads with Matplotlib: see `figures.figure`."""
    return figures.figure(seen, layer, head, **options)


def page(seen: Capture, path: str | PathLike[str], **options: Any) -> Path:
    """Write a capture as one HTML file that opens anywhere. Options are those of `page.write`."""
    from regard.show.saved.bundle import write

    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: there is no folder {str(path.parent)!r}: make it first")
    return write(seen, path, **options)


class Inline:
    """HTML that a notebook displays."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def in_notebook(seen: Capture, **options: Any) -> str:
    """HTML for a notebook: the page itself while it is small, else what there is and how to look at it."""
    if not seen.layers or seen.nbytes > MOST_INLINE:
        return _summary(seen)
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        text = page(seen, Path(folder) / "page.html", **options).read_text("utf-8")
    # Sandboxed, the page can run its own script and save its figures, and reach nothing of the notebook.
    return (
        f'<iframe title="What every head looks at" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{html.escape(text)}"></iframe>'
    )


def _summary(seen: Capture) -> str:
    said = html.escape(repr(seen))
    if not seen.layers:
        return f"<code>{said}</code>"
    size = f"{seen.nbytes / 2**20:,.0f} MiB"
    return (
        f"<p><code>{said}</code></p><p>{size} of queries and keys are much for a notebook: "
        "<code>seen.show(block=False)</code> opens the page in a browser, "
        "<code>seen.save('page.html')</code> writes it to a file, "
        "<code>seen.figure(layer, head)</code> draws one head.</p>"
    )


def open_browser(address: str) -> None:
    """Open an address in the reader's browser, if there is a screen: a terminal's would be in the way."""
    import webbrowser

    screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if screen:
        webbrowser.open(address)


def _in_notebook() -> bool:
    """Whether this runs in Jupyter's kernel, which displays what a cell returns."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
