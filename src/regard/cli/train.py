"""`regard train`: train a small GPT on a text."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from regard.cli.options import Device


def train(
    corpus: Annotated[
        Path | None,
        typer.Argument(
            help="Text file to train on. By default, the documentation that every Python carries."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder for the model, its checkpoints and its history.")
    ] = Path("trained"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the folder, or start it if there is none.")
    ] = False,
    vocabulary: Annotated[
        int | None,
        typer.Option(metavar="N", help="Learn a BPE of N tokens. By default every character is a token."),
    ] = None,
    layers: Annotated[int, typer.Option(metavar="N", help="Number of layers.")] = 4,
    heads: Annotated[int, typer.Option(metavar="N", help="Query heads per layer.")] = 4,
    width: Annotated[int, typer.Option(metavar="N", help="Width of the model (d_model).")] = 128,
    context: Annotated[int, typer.Option(metavar="N", help="Maximum number of tokens it can read.")] = 64,
    kv_heads: Annotated[
        int | None, typer.Option(metavar="N", help="Key/value heads per layer. By default as many as heads.")
    ] = None,
    norm: Annotated[Literal["layer", "rms"], typer.Option(help="LayerNorm or RMSNorm.")] = "layer",
    positions: Annotated[
        Literal["learned", "rotary"], typer.Option(help="Learned position embeddings, or rotary ones.")
    ] = "rotary",
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "swiglu"], typer.Option(help="Activation of the MLPs.")
    ] = "gelu",
    dropout: Annotated[float, typer.Option(metavar="P", help="Dropout probability.")] = 0.0,
    steps: Annotated[int, typer.Option(metavar="N", help="Optimizer steps.")] = 2000,
    batch: Annotated[int, typer.Option(metavar="N", help="Windows per batch and process.")] = 12,
    accumulate: Annotated[
        int, typer.Option(metavar="N", help="Batches per optimizer step (gradient accumulation).")
    ] = 1,
    learning_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Maximum learning rate, after the warmup.")
    ] = 1e-3,
    lowest_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Learning rate at the end of the cosine decay.")
    ] = 1e-4,
    warmup: Annotated[int, typer.Option(metavar="N", help="Steps of linear warmup.")] = 100,
    weight_decay: Annotated[float, typer.Option(metavar="X", help="Weight decay of AdamW.")] = 0.1,
    beta2: Annotated[float, typer.Option(metavar="X", help="Second beta of AdamW.")] = 0.99,
    clip: Annotated[float, typer.Option(metavar="X", help="Maximum gradient norm.")] = 1.0,
    evaluate_every: Annotated[int, typer.Option(metavar="N", help="Steps between evaluations.")] = 250,
    save_every: Annotated[int, typer.Option(metavar="N", help="Steps between checkpoints.")] = 250,
    minutes: Annotated[
        float | None, typer.Option(metavar="X", help="Train for so many minutes, instead of for --steps.")
    ] = None,
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        typer.Option(help="Precision of the forward pass. auto is bfloat16 on a GPU that has it."),
    ] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Compile the model with torch.compile.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 1337,
    device: Device = None,
) -> None:
    """Train a small GPT, and record its losses and what every head does as it learns.

    The default sizes are nanoGPT's for a CPU. A run that was stopped or killed continues with --resume and
    ends with the same losses.

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
