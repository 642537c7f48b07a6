"""The fixtures that open and save a page, as types: `serve` starts a server, `opened` gives an address."""

from collections.abc import Callable
from pathlib import Path

from regard.show.server.background import BackgroundServer

Serve = Callable[..., BackgroundServer]
Opener = Callable[..., str]
Export = Callable[[str, str], Path]  # of a view, as a kind of file
