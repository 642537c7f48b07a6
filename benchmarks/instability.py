"""A training run that becomes unstable, with a monitor: how many steps before the loss does it warn?

    python -m benchmarks.instability --device cuda --rates 3e-3 1e-2 3e-2 --steps 600 --out FOLDER
    python -m benchmarks.instability --rates 0.1 --steps 100 --width 64 --layers 2 --context 32  # on a CPU

A GPT learns the characters of Python's manual while its learning rate rises linearly to a high value, once as
it is and once with RMSNorm of its queries and keys. Each run writes a JSON file, and prints the step of the
first alarm and the step at which the loss has diverged.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.measure import machine
from regard.gpt import GPT, Config
from regard.gpt.training.evaluation import next_token_loss
from regard.monitor import MonitorHistory

RISE = 0.5  # nats above its least mean at which the loss has diverged
SMOOTH = 10  # steps of which the mean loss is taken


def corpus(device: str) -> tuple[Tensor, int]:
    """The help texts of Python as numbers of their characters, and how many characters there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = {c: number for number, c in enumerate(sorted(set(text)))}
    return torch.tensor([characters[c] for c in text], device=device), len(characters)


def run(qk_norm: bool, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return the losses, the alarms and the largest score and least entropy of every reading."""
    tokens, vocabulary = corpus(args.device)
    torch.manual_seed(args.seed)
    config = Config(
        vocab_size=vocabulary,
        context_length=args.context,
        num_layers=args.layers,
        num_heads=args.heads,
        d_model=args.width,
        qk_norm=qk_norm,
        positions="rotary",
    )
    model = GPT(config).to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    draw = torch.Generator().manual_seed(args.seed)
    offsets = torch.arange(args.context + 1, device=args.device)
    losses: list[float] = []
    alarms: list[dict[str, Any]] = []
    began = time.perf_counter()

    def note(sentence: str) -> None:
        alarms.append({"step": monitor.steps, "alarm": sentence})

    with regard.Monitor(model, every=args.every, rows=32, quiet=True, alarm=note) as monitor:
        for step in range(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate * (step + 1) / args.steps
            first = torch.randint(len(tokens) - args.context, (args.batch, 1), generator=draw)
            ids = tokens[first.to(args.device) + offsets]
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
        "first_alarm": alarms[0]["step"] if alarms else None,
        "diverged": diverged(losses),
        "least_loss": min(losses),
        "last_loss": losses[-1],
        "seconds": round(time.perf_counter() - began, 1),
        "alarms": alarms,
        "readings": readings(monitor.history),
        "losses": [round(x, 4) for x in losses],
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
    """Run every rate twice, print each run, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2], help="last learning rates")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=10, help="steps from one reading to the next")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="a folder for a JSON file of each run")
    args = parser.parse_args()
    settings = {name: value for name, value in vars(args).items() if name not in ("rates", "out")}
    for rate in args.rates:
        for qk_norm in (False, True):
            result = run(qk_norm, rate, args)
            print(
                f"rate {rate:g}, {'with' if qk_norm else 'without'} QK-norm: first alarm at step "
                f"{result['first_alarm']}, diverged at step {result['diverged']}; loss "
                f"{result['least_loss']:.3f} at best, {result['last_loss']:.3f} at the end; "
                f"{result['seconds']} s",
                flush=True,
            )
            for alarm in result["alarms"][:1]:
                print(f"  {alarm['alarm']}")
            if args.out is not None:
                args.out.mkdir(parents=True, exist_ok=True)
                path = args.out / f"instability-{rate:g}-{'qk-norm' if qk_norm else 'plain'}.json"
                whole = {"settings": settings, "machine": machine(args.device), **result}
                path.write_text(json.dumps(whole) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
