"""Heads that can be cut (Michel et al. 2019), and whether dormant heads are those (2025)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import prefix
from regard.gpt import GPT
from regard.recorder import capture
from regard.reproduce.chart import Chart, bar_chart, format_means, points
from regard.reproduce.models import (
    all_heads,
    cut_heads,
    draw_heads,
    open_model,
    read_texts,
    text_losses,
)
from regard.reproduce.record import Findings, RunOptions, counted, estimated

HARDLY = 0.01  # nats


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Measure the heads on half of the texts, and cut them on the others."""
    model = open_model(options)
    ids = read_texts(model, 2 * sizes["texts"], sizes["length"])
    seen, unseen = ids.chunk(2)
    plain, heads = text_losses(model, seen), all_heads(model)
    importance = {}
    for number, head in enumerate(heads):
        importance[head] = float((text_losses(model, seen, cut_heads([head])) - plain).mean())
        if number % max(1, len(heads) // 10) == 0:
            options.report(f"head {number} of {len(heads)}: loss {importance[head]:+.4f}")
    sinks = sink_shares(model, seen)
    count = round(sizes["share"] * len(heads))
    chosen = {
        "least important": sorted(heads, key=lambda head: importance[head])[:count],
        "most on the first token": sorted(heads, key=lambda head: -sinks[head])[:count],
    }
    for draw in range(sizes["draws"]):
        chosen[f"random {draw}"] = draw_heads(model, count, options.seed + draw)
    before, rises = text_losses(model, unseen), {}
    for name, some in chosen.items():
        rises[name] = text_losses(model, unseen, cut_heads(some)) - before
        options.report(f"{count} heads, {name}: loss {rises[name].mean():+.3f}")
    return judge(importance, rises, sizes)


@torch.no_grad()
def sink_shares(model: GPT, ids: Tensor) -> dict[tuple[int, int], float]:
    """The attention that every head gives to the first token, the mean over queries and texts."""
    first = ids.shape[1] // 4  # from where on uniform attention gives it almost nothing
    shares = [m.mass(prefix(1))[..., first:].mean((0, 2)) for m in capture(model, inputs=(ids,))]
    return {(layer, head): float(shares[layer][head]) for layer, head in all_heads(model)}


def judge(
    importance: dict[tuple[int, int], float], rises: dict[str, Tensor], sizes: dict[str, Any]
) -> Findings:
    """Compare chosen heads with random ones, text by text."""
    texts = f"{sizes['texts']} texts"
    random = torch.stack([x for name, x in rises.items() if name.startswith("random")]).mean(0)
    hardly = sum(x < HARDLY for x in importance.values()) / len(importance)
    least, dormant = rises["least important"], rises["most on the first token"]
    checks = [
        counted(f"share of heads that cost less than {HARDLY} nats alone", hardly, ">", 0.5, "half of them"),
        estimated(
            "loss that the least important heads spare", random - least, ">", 0.0, "random heads", texts
        ),
        estimated(
            "loss that heads on the first token spare", random - dormant, ">", 0.0, "random heads", texts
        ),
    ]
    ranked = {"heads": points(sorted(importance.values()))}
    rise = "rise of the loss, nats"
    heights = {
        "least important": [least.mean()],
        "on the first token": [dormant.mean()],
        "random": [random.mean()],
    }
    charts = [
        Chart("Every head cut alone", "rank", rise, ranked, baseline=HARDLY),
        bar_chart("A fifth of the heads cut", rise, heights),
    ]
    costs = format_means(least, dormant, random)
    note = f"A fifth of the heads costs, by importance, by the first token and at random: {costs} nats."
    return Findings(checks, charts, note, sizes)
