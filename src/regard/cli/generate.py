"""`regard generate`: a model continues a text."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.parts.options import ModelName
from regard.support.characters import escape


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue.", show_default=False)],
    model: ModelName = "default",
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", help="Maximum number of tokens to add.")
    ] = 100,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", metavar="T", help="Sampling temperature. 0 always takes the most likely token."
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Sample from the K most likely tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="P", help="Sample from the most likely tokens whose probabilities add up to P."
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="Random seed. The same seed gives the same text."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="Stop after this text. Repeat the option for several."),
    ] = None,
) -> None:
    """Continue a text with a model, shown as it is generated.

    Tokens are sampled, so that each run gives another text. Without sampling, small models repeat themselves.

    \b
    Examples:
      regard generate "The sea was"
      regard generate "The sea was" --temperature 0.5 --top-p 0.95 --seed 1
      regard generate --model smollm2 --temperature 0 "The capital of France is"
      regard generate --model Qwen/Qwen3-0.6B "Attention is" --stop "."
    """
    from regard.cli.parts.model import Model

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
