"""Cache policies at an equal budget: H2O, SnapKV, TOVA and a window, beside random keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.interventions import evict
from regard.policies import Eviction, Retained, h2o, random, snapkv, streaming, tova
from regard.recorder import capture
from regard.reproduce.chart import bar_chart
from regard.reproduce.models import open_model, read_texts, text_losses
from regard.reproduce.record import Findings, RunOptions, estimated


def policies() -> dict[str, Eviction]:
    """The policies to compare; add yours here."""
    return {
        "window": streaming(0),
        "window and first 4": streaming(4),
        "h2o": h2o(),
        "snapkv": snapkv(),
        "tova": tova(),
        "random": random(),
    }


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Read all texts with every policy."""
    # bfloat16 on a GPU, which in float32 computes most heads of SmolLM2 in float64, for their large scores.
    model = open_model(options, torch.bfloat16)
    ids = read_texts(model, sizes["texts"], sizes["length"])
    budget, rises, shares = sizes["budget"], {}, {}
    plain = text_losses(model, ids, skip=budget)
    for name, policy in policies().items():
        shares[name] = kept_shares(model, ids, policy, budget)
        rises[name] = text_losses(model, ids, evict(policy, budget), skip=budget) - plain
        options.report(f"{name}: {shares[name].mean():.1%} kept, loss {rises[name].mean():+.3f}")
    return judge(rises, shares, sizes)


@torch.no_grad()
def kept_shares(model: GPT, ids: Tensor, policy: Eviction, budget: int) -> Tensor:
    """The share of the full run's attention that is kept, mean over heads and queries, (texts,)."""
    found = capture(model, inputs=(ids,)).retained(policy, budget, baselines=False)
    assert isinstance(found, Retained)  # one policy, one budget
    return torch.stack([layer.share[..., budget:].mean((1, 2)) for layer in found.layers]).mean(0).cpu()


def judge(rises: dict[str, Tensor], shares: dict[str, Tensor], sizes: dict[str, Any]) -> Findings:
    """Compare the policies with the window and with random keys, text by text."""
    texts = f"{sizes['texts']} texts"
    checks = [
        estimated(
            f"loss that {name} spares beside {what}", rises[other] - rises[name], ">", 0.0, "none", texts
        )
        for other, what in (("window", "a window"), ("random", "random keys"))
        for name in ("h2o", "snapkv", "tova")
    ]
    charts = [
        bar_chart(title, y, {title: [x.mean() for x in found.values()]}, tuple(rises))
        for title, y, found in (
            ("Attention that is kept", "share", shares),
            ("Rise of the loss", "nats", rises),
        )
    ]
    kept = ", ".join(f"{name} {float(x.mean()):.1%}" for name, x in shares.items())
    first = float((rises["window and first 4"]).mean())
    note = f"Attention kept: {kept}. With the first 4 keys in the window the loss rises by {first:.3f} nats."
    return Findings(checks, charts, note, sizes)
