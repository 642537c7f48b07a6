"""What leaking documents do to a model (Zhao et al. 2024): GPTs, packed with and without isolation."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import documents
from regard.gpt import GPT
from regard.gpt.training.corpus import Corpus
from regard.gpt.training.evaluation import next_token_loss
from regard.reproduce.chart import Chart, bar_chart
from regard.reproduce.models import make_gpt, read_corpus, token_losses, train_curve
from regard.reproduce.record import Findings, RunOptions, estimated

KINDS = ("alone", "after other pieces", "after its copy")


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Train both models on the same windows, and compare them on held-out pieces, for every seed."""
    corpus = read_corpus(sizes["piece"], None, not options.quick, options.device)
    curves: dict[str, list[list[float]]] = {}
    losses: dict[str, list[list[float]]] = {"leaking": [], "isolated": []}
    across = []
    for seed in range(options.seed, options.seed + sizes["seeds"]):
        ids, _ = pack(corpus.validation, sizes["texts"], sizes, seed, 10_000_000)
        for name, rows in losses.items():
            model, curve = train(options, sizes, corpus, seed, isolated=name == "isolated")
            curves.setdefault(name, curve)
            rows.append(piece_losses(model, ids, sizes["piece"]))
            options.report(f"seed {seed}, {name}: loss of a piece alone {rows[-1][0]:.3f}")
            if name == "leaking":
                across.append(across_share(model, ids, sizes["piece"]))
    return judge(
        {name: torch.tensor(rows, device="cpu") for name, rows in losses.items()}, across, curves, sizes
    )


def train(
    options: RunOptions, sizes: dict[str, Any], corpus: Corpus, seed: int, *, isolated: bool
) -> tuple[GPT, list[list[float]]]:
    """Train one model on packed windows; return it with its losses by step."""
    length, count = sizes["piece"], sizes["pieces"]
    owner = torch.arange(count, device=options.device).repeat_interleave(length)
    mask = documents(owner.expand(sizes["batch"], -1)) if isolated else None
    torch.manual_seed(seed)
    model = make_gpt(options, corpus, sizes, context_length=length * count)
    batches = (pack(corpus.train, sizes["batch"], sizes, seed, step) for step in range(sizes["steps"]))

    def loss_of(ids: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(model(ids, mask=mask), targets)

    curve = train_curve(model, batches, sizes["steps"], loss_of)
    return model.eval(), curve


def piece_losses(model: GPT, ids: Tensor, length: int) -> list[float]:
    """The mean loss of the last pieces of ids (texts, T): alone, after others and after their copies."""
    last = ids[:, -length:]
    inputs = (last, ids, torch.cat([last, last], 1))
    return [float(token_losses(model, x)[:, 1 - length :].mean()) for x in inputs]


def pack(tokens: Tensor, batch: int, sizes: dict[str, Any], seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, pieces · length): pieces from random places, each with its own next tokens."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
    places = torch.randint(
        len(tokens) - sizes["piece"] - 1, (batch * sizes["pieces"], 1), generator=draw, device="cpu"
    )
    offsets = torch.arange(sizes["piece"] + 1, device="cpu")
    ids = tokens[(places + offsets).to(tokens.device)].long()
    return ids[:, :-1].reshape(batch, -1), ids[:, 1:].reshape(batch, -1)


def judge(
    losses: dict[str, Tensor], across: list[float], curves: dict[str, Any], sizes: dict[str, Any]
) -> Findings:
    """Compare the losses (seeds, 3) of both models."""
    (leaking, after, _), (isolated, *_) = losses["leaking"].T, losses["isolated"].T
    gain = {name: x[:, 0] - x[:, 2] for name, x in losses.items()}
    over = f"{len(leaking)} seeds"
    quality = "loss of a piece alone, trained with leaks minus isolated"
    mixed = "loss after other pieces minus alone, of the model that was trained with leaks"
    copied = "loss of a piece alone minus after its copy, trained with leaks beyond isolated"
    checks = [
        estimated(quality, leaking - isolated, ">", 0.0, "no difference", over),
        estimated(mixed, after - leaking, ">", 0.0, "no distraction", over),
        estimated(copied, gain["leaking"] - gain["isolated"], ">", 0.0, "no difference", over),
    ]
    charts = [
        Chart("Training loss", "step", "nats", curves),
        bar_chart("Loss of a held-out piece", "nats", {name: x.mean(0) for name, x in losses.items()}, KINDS),
    ]
    note = f"""Trained with leaks, {fmean(across):.0%} of the attention of a last piece goes to other
pieces, and its loss alone is {float(leaking.mean()):.3f}, isolated {float(isolated.mean()):.3f}."""
    return Findings(checks, charts, note, sizes)


@torch.no_grad()
def across_share(model: GPT, ids: Tensor, length: int) -> float:
    """The share of the last piece's attention that goes to earlier pieces, over texts, layers and heads."""
    return fmean(
        float(m.to_dense()[..., -length:, :-length].sum(-1).mean())
        for text in ids
        for m in model.maps(text[None])
    )
