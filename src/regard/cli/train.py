"""`regard train`: train a small GPT on a text."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regard.cli.parts.options import Device
from regard.support.characters import escape

if TYPE_CHECKING:
    from regard.gpt import GPT
    from regard.monitor import Monitor

READINGS = "attention.jsonl"  # the file in a run's folder that its monitor writes


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
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Learn a BPE of N tokens. By default every character is a token."),
    ] = None,
    num_layers: Annotated[int, typer.Option(metavar="N", help="Number of layers.")] = 4,
    num_heads: Annotated[int, typer.Option(metavar="N", help="Query heads per layer.")] = 4,
    d_model: Annotated[int, typer.Option(metavar="N", help="Width of the residual stream.")] = 128,
    context_length: Annotated[int, typer.Option(metavar="N", help="Tokens per window.")] = 64,
    num_kv_heads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Key/value heads per layer. By default, num-heads."),
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
    batch_size: Annotated[int, typer.Option(metavar="N", help="Windows per batch and process.")] = 12,
    gradient_accumulation_steps: Annotated[
        int, typer.Option(metavar="N", help="Batches per optimizer step (gradient accumulation).")
    ] = 1,
    learning_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Maximum learning rate, after the warmup.")
    ] = 1e-3,
    min_learning_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Learning rate at the end of the cosine decay.")
    ] = 1e-4,
    warmup_steps: Annotated[int, typer.Option(metavar="N", help="Steps of linear warmup.")] = 100,
    optimizer: Annotated[
        Literal["adamw", "muon"],
        typer.Option(help="AdamW, or Muon for the matrices of the blocks and AdamW for the other weights."),
    ] = "adamw",
    muon_learning_rate: Annotated[
        float, typer.Option(metavar="RATE", help="Maximum learning rate of Muon.")
    ] = 0.02,
    short_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Tokens per window in the first part of the run. By default all are long."
        ),
    ] = None,
    short_share: Annotated[
        float, typer.Option(metavar="X", help="Share of the run that --short-length is for.")
    ] = 0.5,
    weight_decay: Annotated[float, typer.Option(metavar="X", help="Weight decay of the optimizers.")] = 0.1,
    # nanoGPT's for small batches, above the 0.95 that is usual for large ones.
    beta2: Annotated[float, typer.Option(metavar="X", help="Second beta of AdamW.")] = 0.99,
    max_grad_norm: Annotated[float, typer.Option(metavar="X", help="Maximum gradient norm.")] = 1.0,
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
    ends with the same losses. While it runs, no other run can use its folder.

    \b
    Examples:
      regard train
      regard train shakespeare.txt --out shakespeare
      regard train book.txt --vocab-size 2048 --d-model 256 --norm rms
      torchrun --nproc-per-node 2 --no-python regard train book.txt --out both
    """
    # The settings and the sizes have the names of their options.
    options = dict(locals())
    from dataclasses import fields

    from regard.gpt.config import Config
    from regard.gpt.training.corpus import prepare, python_documentation, read
    from regard.gpt.training.run_folder import check_folder
    from regard.gpt.training.settings import TrainingSettings
    from regard.gpt.training.train import train as run
    from regard.support.processes import is_main_process

    settings = TrainingSettings(
        **{field.name: options[field.name] for field in fields(TrainingSettings) if field.name in options}
    )
    # The other ranks wait in `train` until rank 0 owns the folder; all of them asking would lock one another
    # out.
    if is_main_process():
        check_folder(out)  # before the text is read and its tokens are learned
    text = python_documentation() if corpus is None else read(corpus)
    prepared = prepare(text, context_length, vocab_size)
    # As in GPT-2, the token that begins a text also ends the one before it.
    end = () if prepared.bos_token_id is None else (prepared.bos_token_id,)
    sizes = {field.name: options[field.name] for field in fields(Config) if field.name in options}
    config = Config(**sizes | {"vocab_size": prepared.vocab_size, "eos_token_id": end})
    # `--compile` compiles the loss with the model in it: a monitor's wrapper would break that graph.
    watch = None if compile else partial(_watch, out)
    result = run(config, prepared, out, settings, resume=resume, device=device, watch=watch)
    if not result.finished:
        again = shlex.join(["regard", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
        with suppress(OSError):  # the terminal may be gone
            typer.echo(escape(f"stopped at step {result.step} and saved; go on with: {again}"), err=True)
        # 130 is what a shell reports after Ctrl-C; a scheduler can tell a stopped run from a failed one.
        raise typer.Exit(130)
    # Half of the context, so that a prompt of the other half fits.
    sample = (
        f"regard generate --model {shlex.quote(str(out))} --tokens {min(100, config.context_length // 2)}"
    )
    typer.echo(
        f'best validation loss {result.best_loss:.4f} after {result.step} steps; try: {escape(sample)} "…"',
        err=True,
    )


def _watch(folder: Path, model: GPT) -> Monitor:
    """Return a monitor of a run, which warns of scores that explode and entropy that collapses."""
    from torch import distributed

    from regard.monitor import Monitor

    group = distributed.group.WORLD if distributed.is_initialized() else None
    return Monitor(model, file=folder / READINGS, group=group, quiet=True)
