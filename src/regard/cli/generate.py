"""`regard generate`: a model continues a text."""

from __future__ import annotations

import typer

from regard.cli.parts.model import Model
from regard.support.characters import escape


def generate(
    *,
    prompt: str,
    model: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    stop: list[str] | None,
) -> None:
    """Continue a text with a model, shown as it is generated."""
    # Made before the prompt is printed, so that a wrong option is answered with its message alone.
    pieces = Model.open(model, to_generate=True).stream(
        prompt,
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=stop or [],
    )
    typer.echo(escape(prompt), nl=False)
    try:
        for piece in pieces:
            typer.echo(escape(piece), nl=False)
    finally:
        typer.echo()  # after Ctrl-C too, so that the shell starts on a line of its own
