"""The cost of contributions: rollout of one row beside a forward pass of the model, and attribution.

    python -m benchmarks.contributions [--tokens 2048] [--rounds 3] [--out contributions.json]
    python -m benchmarks.contributions --device cuda [--tokens 131072] [--out contributions.json]

It needs only PyTorch and Triton. The model is Regard's GPT with random weights: on a GPU of the sizes of
Llama 3 8B in bfloat16, on a CPU of GPT-2 small's. Forward passes compute no logits. The calls take turns
within each round, and a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.capture import Clock
from benchmarks.measure import machine
from regard.gpt import GPT, Config
from regard.recorder.contributions.output_projection import LinearWeights, OutputProjection
from regard.recorder.contributions.rollout import roll_out

LARGE = {"num_layers": 32, "d_model": 4096, "num_heads": 32, "num_kv_heads": 8, "intermediate_size": 14336}
SMALL = {"num_layers": 12, "d_model": 768, "num_heads": 12}
ATTRIBUTION_TOKENS = 8192  # of the passes with contributions, which keep what every module adds


def model_of(device: str, tokens: int) -> GPT:
    """A model with random weights."""
    sizes: dict[str, Any] = LARGE if device == "cuda" else SMALL
    family = {"norm": "rms", "positions": "rotary", "activation": "swiglu"}
    config = Config(vocab_size=32_000, context_length=tokens, **sizes, **family)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        torch.manual_seed(0)
        with torch.device(device):
            return GPT(config).eval()
    finally:
        torch.set_default_dtype(before)


def in_turn(calls: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """The seconds of each call: the median over rounds in which all take turns, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            with Clock(device) as clock:
                call()
            print(f"{name}: {clock.seconds:.2f} s", flush=True)
            if number:
                seconds[name].append(clock.seconds)
    return {name: statistics.median(times) for name, times in seconds.items()}


def rollout_costs(model: GPT, ids: Tensor, device: str, rounds: int) -> dict[str, float]:
    """Rollout of the last row over all layers, by attention and by value, beside a forward pass."""
    with torch.no_grad(), regard.capture(model, values=True) as seen:
        model.states(ids)
    maps = [m[0] for m in seen]
    projections = [
        OutputProjection(
            "out", LinearWeights.of(block.attention.out.weight, None), maps[0].shape[0], False, 0, 0
        )
        for block in model.blocks
    ]

    def norms() -> list[Tensor]:
        every = zip(projections, seen.layers, strict=True)
        return [projection.value_norms(layer.values, layer.heads)[0] for projection, layer in every]

    def forward() -> None:
        with torch.no_grad():
            model.states(ids)

    return in_turn(
        {
            "forward": forward,
            "rollout by attention": lambda: roll_out(maps, -1),
            "rollout by value": lambda: roll_out(maps, -1, norms()),
        },
        device,
        rounds,
    )


def attribution_costs(model: GPT, ids: Tensor, device: str, rounds: int) -> dict[str, float]:
    """A pass that is captured with contributions beside a plain one, and one attribution of a logit."""

    def forward() -> None:
        with torch.no_grad():
            model(ids)

    seen = regard.capture(model, inputs=(ids,), contributions=True)
    attribution = seen.attribution(7)
    if not attribution.adds_up:
        raise SystemExit(f"the attribution does not add up: {attribution}")
    return in_turn(
        {
            "forward": forward,
            "capture with values": lambda: regard.capture(model, inputs=(ids,), values=True),
            "capture with contributions": lambda: regard.capture(model, inputs=(ids,), contributions=True),
            "attribution": lambda: seen.attribution(7),
            "value-weighted map of a layer": lambda: seen.value_weighted(0).pool(64, 64),
        },
        device,
        rounds,
    )


def with_ratios(seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    """Each call's seconds, and their ratio to the forward pass."""
    return {
        name: {"seconds": round(x, 4), "to_forward": round(x / seconds["forward"], 4)}
        for name, x in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = args.tokens or (131_072 if args.device == "cuda" else 2048)
    model = model_of(args.device, tokens)
    ids = torch.randint(0, 32_000, (1, tokens), generator=torch.Generator().manual_seed(0)).to(args.device)
    few = min(tokens, ATTRIBUTION_TOKENS)
    rollout = with_ratios(rollout_costs(model, ids, args.device, args.rounds))
    attribution = with_ratios(attribution_costs(model, ids[:, :few], args.device, args.rounds))
    result = {
        "machine": machine(args.device),
        "layers": model.config.num_layers,
        "rollout": {"tokens": tokens} | rollout,
        "attribution": {"tokens": few} | attribution,
    }
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
