"""`regard train`: train a small GPT on a text."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def train(
    corpus: Annotated[
        Path | None,
        typer.Argument(help="A text file; without one, the documentation that every Python carries."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The folder of the run, for its model and its checkpoints.")
    ] = Path("trained"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder, or begin it if there is none.")
    ] = False,
    vocabulary: Annotated[
        int | None,
        typer.Option(help="Tokens of a BPE learned from the text; without, one token a character."),
    ] = None,
    layers: int = 4,
    heads: int = 4,
    width: int = 128,
    context: int = 64,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads, if fewer than heads.")] = None,
    norm: Annotated[Literal["layer", "rms"], typer.Option()] = "layer",
    positions: Annotated[Literal["learned", "rotary"], typer.Option()] = "rotary",
    activation: Annotated[Literal["gelu", "gelu_tanh", "swiglu"], typer.Option()] = "gelu",
    dropout: float = 0.0,
    steps: int = 2000,
    batch: Annotated[int, typer.Option(help="Windows that a process reads at once.")] = 12,
    accumulate: Annotated[int, typer.Option(help="Batches a step.")] = 1,
    learning_rate: float = 1e-3,
    lowest_rate: float = 1e-4,
    warmup: Annotated[int, typer.Option(help="Steps until the learning rate is reached.")] = 100,
    weight_decay: float = 0.1,
    beta2: float = 0.99,
    clip: Annotated[float, typer.Option(help="The longest that a gradient may be.")] = 1.0,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 250,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 250,
    minutes: Annotated[
        float | None, typer.Option(help="Train for so long, whatever the number of steps.")
    ] = None,
    precision: Annotated[Literal["auto", "float32", "bfloat16"], typer.Option()] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    seed: int = 1337,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by itself, a GPU if there is one.")] = None,
) -> None:
    """Train a small GPT, with its losses and what every head does written down as it learns.

    The sizes are nanoGPT's for a CPU unless you say otherwise. A run that was stopped or killed goes on with
    --resume and ends with the same losses.

    \b
    Examples:
      regard train
      regard train shakespeare.txt --out shakespeare
      regard train book.txt --vocabulary 2048 --context 256 --width 256 --norm rms
      torchrun --nproc-per-node 2 --no-python regard train book.txt --out both
    """
    from regard.gpt.config import Config
    from regard.gpt.training.corpus import prepare, python_documentation, read
    from regard.gpt.training.train import Settings
    from regard.gpt.training.train import train as run

    settings = Settings(
        steps=steps,
        batch=batch,
        accumulate=accumulate,
        learning_rate=learning_rate,
        lowest_rate=lowest_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        beta2=beta2,
        clip=clip,
        seed=seed,
        evaluate_every=evaluate_every,
        save_every=save_every,
        minutes=minutes,
        precision=precision,
        compile=compile,
    )
    text = python_documentation() if corpus is None else read(corpus)
    prepared = prepare(text, context, vocabulary)
    config = Config(
        vocab_size=prepared.vocab_size,
        context=context,
        layers=layers,
        heads=heads,
        width=width,
        kv_heads=kv_heads,  # type: ignore[arg-type]  # None stands for as many as heads
        norm=norm,
        positions=positions,
        activation=activation,
        dropout=dropout,
        end=() if prepared.start is None else (prepared.start,),
    )
    outcome = run(config, prepared, out, settings, resume=resume, device=device)
    if not outcome.finished:
        again = shlex.join(["regard", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
        typer.echo(f"stopped at step {outcome.step} and saved; go on with: {again}", err=True)
        raise typer.Exit(130)
    typer.echo(
        f"best validation loss {outcome.best:.4f} after {outcome.step} steps; "
        f'try: regard generate --model {shlex.quote(str(out))} "…"',
        err=True,
    )
