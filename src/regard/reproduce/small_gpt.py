"""Small GPTs for results that need training: a text that is installed already, and a loop of AdamW steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT, Config
from regard.gpt.training.corpus import Corpus, prepare
from regard.gpt.training.evaluation import next_token_loss
from regard.gpt.training.optimizer import adamw
from regard.reproduce.record import RunOptions

WARMUP = 50  # steps in which the learning rate rises


@cache
def read_corpus(context_length: int, vocab_size: int | None, whole: bool, device: str) -> Corpus:
    """A text that is installed with Regard as tokens: characters, or a BPE of `vocab_size`.

    It is half a megabyte of Python's help topics or, if `whole`, PyTorch's sources, which are large enough
    that a small model does not learn them by heart.
    """
    text = pytorch_sources() if whole else "\n\n".join(topics[name] for name in sorted(topics))
    return prepare(text, context_length, vocab_size).to(torch.device(device))


def pytorch_sources() -> str:
    """The Python files of PyTorch, in an order drawn once, without letters beyond ASCII."""
    paths = sorted(Path(torch.__file__).parent.rglob("*.py"))
    # Drawn, so that the last tenth, which is held out, is of the same kind as the rest.
    Random(0).shuffle(paths)
    return "\n\n".join(path.read_bytes().decode("ascii", "ignore") for path in paths)


def make_gpt(options: RunOptions, corpus: Corpus, sizes: Mapping[str, Any], **others: Any) -> GPT:
    """A GPT for a corpus of the sizes of a result, with rotary positions unless `others` say otherwise."""
    fields = {
        "vocab_size": corpus.vocab_size,
        "context_length": corpus.context_length,
        "num_layers": sizes.get("layers", 2),
        "num_heads": sizes.get("heads", 4),
        "d_model": sizes["width"],
        "positions": "rotary",
    }
    return GPT(Config(**fields | others)).to(options.device).train()


def windows(corpus: Corpus, steps: int, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The inputs and targets (B, T) of every step."""
    for step in range(steps):
        yield corpus.training_batch(seed, step, batch_size, slice(None), corpus.context_length)


def train_steps(
    model: GPT,
    batches: Iterator[tuple[Tensor, Tensor]],
    rate: float,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Iterator[tuple[int, float]]:
    """Take a step for each batch, and give its number, from 0, and its loss before the step.

    `loss_of(inputs, targets)` is the loss of a batch; by default that of the next token.
    """
    optimizer = adamw(model.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    for step, (inputs, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
        model.train()
        loss = next_token_loss(model(inputs), targets) if loss_of is None else loss_of(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's own stub
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        yield step, float(loss.detach())


def train_curve(
    model: GPT,
    batches: Iterator[tuple[Tensor, Tensor]],
    steps: int,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[list[float]]:
    """Take all steps, and return a hundred of the losses, each with its step."""
    losses = train_steps(model, batches, 1e-3, loss_of)
    return [[float(step), loss] for step, loss in losses if step % max(steps // 100, 1) == 0]


@torch.no_grad()
def token_losses(model: GPT, ids: Tensor, **options: Any) -> Tensor:
    """The loss (B, T − 1) at every token of ids (B, T) but the first."""
    logits = model(ids[:, :-1], **options)
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
