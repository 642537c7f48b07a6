"""The cost of an intervention beside the plain forward pass, on a GPT with random weights.

    python -m benchmarks.interventions [--device cuda] [--tokens 16384] [--out interventions.json]

On a GPU the model has the sizes of an 8B Llama in bfloat16, on a CPU those of GPT-2 small. All calls take
turns in one run, and every number is the ratio of a forward pass with an edit to the plain one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.measure import machine, together
from regard.gpt import GPT, Config
from regard.interventions import Edit

SMALL = {"num_layers": 12, "num_heads": 12, "d_model": 768, "vocab_size": 50257}
LARGE = {
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "d_model": 4096,
    "vocab_size": 32000,
    "intermediate_size": 14336,
    "norm": "rms",
    "positions": "rotary",
    "activation": "swiglu",
}


def build(device: str, tokens: int) -> GPT:
    sizes: dict[str, Any] = LARGE if device == "cuda" else SMALL
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            return GPT(Config(context_length=tokens, **sizes)).eval()
    finally:
        torch.set_default_dtype(before)


@torch.no_grad()
def measure(device: str, tokens: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = build(device, tokens)
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=device)
    layer, layers = model.config.num_layers // 2, range(model.config.num_layers)
    to_first = (slice(1, None), 0)
    edits: dict[str, list[Edit]] = {
        "one head set to zero": [regard.ablate(layer, 3)],
        "one head of every layer set to zero": [regard.ablate(heads=[(number, 3) for number in layers])],
        "one head without the edges to the first token": [regard.block(layer, 3, edges=to_first)],
        "one head without the edges of a window": [regard.block(layer, 3, edges=regard.window(64))],
        "all heads of a layer without the edges to the first token": [regard.block(layer, edges=to_first)],
    }

    def edited(some: list[Edit]) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with regard.intervene(model, *some):
                return model(ids)

        return run

    calls: dict[str, Callable[[], Any]] = {"plain": lambda: model(ids)}
    times = together(calls | {name: edited(some) for name, some in edits.items()}, device)
    return {
        "model": "8B sizes, bfloat16" if device == "cuda" else "GPT-2 small sizes, float32",
        "tokens": tokens,
        "plain forward ms": round(times["plain"], 2),
        "ratios to the plain forward": {name: round(times[name] / times["plain"], 4) for name in edits},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=None, help="by default 1,024, on a GPU 16,384")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    tokens = args.tokens or (16384 if args.device == "cuda" else 1024)
    result = {"machine": machine(args.device), "interventions": measure(args.device, tokens)}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
