"""`regard generate`: a model goes on with a text."""

from __future__ import annotations

from typing import Annotated

import typer

from regard.cli.options import ModelName


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on with.", show_default=False)],
    model: ModelName = "default",
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="How many to add at most.")] = 100,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", help="0 takes the best token; above, a draw.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="K", help="Draw from the K best tokens only.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="P", help="Draw from the best that have P together.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="The same seed, the same text.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End after this text; may come often.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep keys and values, or compute all anew each time.")
    ] = True,
) -> None:
    """Go on with a text, shown as it is written.

    \b
    Examples:
      regard generate "The sea was"
      regard generate "The sea was" --temperature 0.8 --top-p 0.95 --seed 1
      regard generate --model smollm2 "The capital of France is" --tokens 20
      regard generate --model Qwen/Qwen3-0.6B "Attention is" --stop "."
    """
    from regard.gpt import GPT

    opened = GPT.from_pretrained(model)
    pieces = opened.stream(
        prompt,
        max_new_tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=[*opened.config.eos_token_id, *(stop or ())],
        cache=cache,
    )
    typer.echo(prompt, nl=False)
    try:
        for piece in pieces:
            typer.echo(piece, nl=False)
    finally:
        typer.echo()  # after Ctrl-C too, so that the shell starts on a line of its own
