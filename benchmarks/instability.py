"""A training run that becomes unstable, with a monitor: how many steps before the loss does it warn?

A small GPT learns short words at a learning rate that is far too high, once as it is and once with RMSNorm of
its queries and keys. `python -m benchmarks.instability` prints both, and writes them with `--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

import regard
from regard.gpt import GPT, Config
from regard.gpt.training.evaluation import next_token_loss
from regard.monitor import MonitorHistory

LENGTH, BATCH, VOCABULARY = 64, 16, 32
RISE = 0.5  # nats above its least mean at which the loss has diverged
SMOOTH = 10  # steps of which the mean loss is taken


def batch(step: int, seed: int) -> torch.Tensor:
    """Texts in which a random half is followed by itself: to predict the second, heads must look it up."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
    half = torch.randint(0, VOCABULARY, (BATCH, LENGTH // 2), generator=draw)
    return torch.cat([half, half], 1)


def run(qk_norm: bool, rate: float, steps: int, every: int, seed: int) -> dict[str, Any]:
    """Train, and return the losses, the alarms and the largest score and least entropy of every reading."""
    torch.manual_seed(seed)
    config = Config(
        vocab_size=VOCABULARY,
        context_length=LENGTH,
        num_layers=3,
        num_heads=4,
        d_model=64,
        qk_norm=qk_norm,
        positions="rotary",
    )
    model = GPT(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    sentences: list[str] = []
    with regard.Monitor(model, every=every, rows=32, quiet=True, alarm=sentences.append) as monitor:
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 20)
            ids = batch(step, seed)
            loss = next_token_loss(model(ids[:, :-1]), ids[:, 1:])
            losses.append(loss.item())
            if not loss.isfinite():
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
    return {
        "qk_norm": qk_norm,
        "rate": rate,
        "losses": [round(x, 4) for x in losses],
        "alarms": sentences,
        "readings": readings(monitor.history),
        "diverged": diverged(losses),
    }


def readings(history: MonitorHistory) -> list[dict[str, float]]:
    """The largest score and the least entropy of all heads at every step that was read."""
    found = []
    for record in history.records:
        rows = [row for row in MonitorHistory([record])]
        found.append(
            {
                "step": record.step,
                "max_score": max(row.values["max_score"] for row in rows),
                "least_entropy": min(row.values["entropy"] for row in rows),
                "certified": sum(layer.certified for layer in record.layers.values()),
            }
        )
    return found


def diverged(losses: list[float]) -> int | None:
    """The first step from which the mean loss is and stays above its least value; None if there is none."""
    means = [sum(losses[max(0, i - SMOOTH + 1) : i + 1]) / min(i + 1, SMOOTH) for i in range(len(losses))]
    least = min(means)
    last_good = max(i for i, mean in enumerate(means) if mean <= least + RISE)
    return None if last_good >= len(means) - SMOOTH else last_good + 1


def main() -> None:
    """Run both, print them, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = {name: getattr(arguments, name) for name in ("rate", "steps", "every", "seed")}
    runs = [run(qk_norm, **options) for qk_norm in (False, True)]
    for result in runs:
        first = result["alarms"][0] if result["alarms"] else "no alarm"
        print(f"qk_norm={result['qk_norm']}: diverged at step {result['diverged']}; {first}")
        print(f"  loss {min(result['losses']):.3f} at best, {result['losses'][-1]:.3f} at the end")
    if arguments.json is not None:
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        text = json.dumps({"runs": runs, **options, **versions, "machine": platform.machine()})
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
