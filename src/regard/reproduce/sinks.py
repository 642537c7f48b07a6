"""Attention sinks, and streaming with a window and the first keys (Xiao et al. 2023; Gu et al. 2024)."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import prefix, window
from regard.gpt import GPT
from regard.recorder import capture
from regard.reproduce.chart import Chart, bar_chart, format_means, points
from regard.reproduce.models import open_model, read_texts, token_losses
from regard.reproduce.record import Findings, RunOptions, estimated

FIRST = 4  # keys that stay beside the window, as in the paper


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Read the texts in three ways."""
    model = open_model(options)
    ids = read_texts(model, sizes["texts"], sizes["length"])
    masks: dict[str, Mask | None] = {
        "dense": None,
        "window": window(sizes["window"]),
        f"window and first {FIRST}": window(sizes["window"] - FIRST) | prefix(FIRST),
    }
    losses = {}
    for name, mask in masks.items():
        losses[name] = torch.cat([token_losses(model, text[None], mask=mask).cpu() for text in ids])
        options.report(f"{name}: loss {losses[name][:, sizes['window'] :].mean():.3f}")
    attention, uniform = zip(*(first_attention(model, text) for text in ids), strict=True)
    activations = [first_activation(model, text) for text in ids]
    return judge(losses, attention, uniform, activations, sizes)


def first_attention(model: GPT, text: Tensor) -> tuple[float, float]:
    """The mean attention to the first token over heads and queries, and that of uniform attention."""
    queries = torch.arange(len(text), device="cpu")
    late = queries >= len(text) // 4
    with torch.no_grad():
        maps = capture(model, inputs=(text[None],))
    shares = [m.mass(prefix(1))[..., late.to(m.device)].mean() for m in maps]
    return float(torch.stack(shares).mean()), float((1 / (queries[late] + 1.0)).mean())


def first_activation(model: GPT, text: Tensor) -> float:
    """The largest activation of the first token over that of any other, in the layer where it is most."""
    ratios: list[float] = []

    def measure(module: object, inputs: object, output: Tensor) -> None:
        largest = output[0].abs().amax(-1)  # (T,)
        ratios.append(float(largest[0] / largest[1:].max()))

    hooks = [block.register_forward_hook(measure) for block in model.blocks]
    with torch.no_grad():
        model.states(text[None])
    for hook in hooks:
        hook.remove()
    return max(ratios)


def judge(
    losses: dict[str, Tensor],
    attention: tuple[float, ...],
    uniform: tuple[float, ...],
    activations: list[float],
    sizes: dict[str, Any],
) -> Findings:
    """Compare the three ways, text by text."""
    texts = f"{sizes['texts']} texts"
    dense, alone, both = (x[:, sizes["window"] :].mean(1) for x in losses.values())
    undone = (alone - both) / (alone - dense).clamp(min=1e-6)
    checks = [
        estimated("attention to the first token", attention, ">", uniform[0], "uniform attention", texts),
        estimated(
            "rise of the loss with the window alone", alone - dense, ">", 0.0, "dense attention", texts
        ),
        estimated("share of that rise which the first keys undo", undone, ">", 0.5, "half of it", texts),
        estimated(
            "largest activation of the first token over that of any other",
            activations,
            ">",
            1.0,
            "as large",
            texts,
        ),
    ]
    edges = torch.linspace(0, losses["dense"].shape[1], sizes["bins"] + 1, device="cpu").long().tolist()
    lines = {
        name: points((x[:, first:stop].mean() for first, stop in pairwise(edges)), edges)
        for name, x in losses.items()
    }
    mark = {"window full": float(sizes["window"])}
    heights = {"measured": [fmean(attention)], "uniform": [uniform[0]]}
    charts = [
        Chart("Loss along the text", "position", "loss, nats", lines, marks=mark),
        bar_chart("Attention to the first token", "share", heights, ("all heads",)),
    ]
    three = format_means(dense, alone, both)
    note = f"Loss with dense attention, the window alone, and the first {FIRST} keys in it: {three} nats."
    return Findings(checks, charts, note, sizes)
