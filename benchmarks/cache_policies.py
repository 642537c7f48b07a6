"""What cache policies lose: curves over budgets of a real model, and the cost of measuring one layer.

    python -m benchmarks.cache_policies --file book.txt [--model smollm2] [--tokens 2048]
        [--out curves.json] [--picture curves.png]
    python -m benchmarks.cache_policies --layer [--device cuda] [--tokens 131072] [--out layer.json]

The first reads the first tokens of a text, and measures for each policy and budget the attention that is
kept, the change of the heads' outputs, and the rise of the loss when the model reads by such a cache; the
loss is that of the tokens after the largest budget, which every budget concerns. The second measures one
layer of random numbers, 32 heads of 128 on 8: its time as a multiple of the layer's forward pass, and its
memory beyond q, k and v.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import regard
from benchmarks.measure import machine, peak_mib, together
from regard import policies
from regard.gpt import GPT
from regard.policies.retention import RetentionCurve

POLICIES = ("streaming", "h2o", "snapkv", "tova", "key_norm", "quest")
BASELINES = ("random", "best")


@torch.no_grad()
def curves(
    name: str, file: Path, tokens: int, budgets: list[int], report: Callable[[dict[str, Any]], None]
) -> None:
    """Measure every policy at every budget: shares and errors, then losses.

    `report` gets the result as far as it is known, after every measurement.
    """
    model = GPT.from_pretrained(name)
    ids = torch.tensor([model.tokenizer.encode(file.read_text(encoding="utf-8")).ids[:tokens]])
    names = [*POLICIES, *BASELINES]
    start = time.perf_counter()
    seen = regard.capture(model, inputs=(ids,), values=True)
    curve = seen.retained(names, budgets, baselines=False)
    assert isinstance(curve, RetentionCurve)
    result: dict[str, Any] = {
        "model": name,
        "tokens": ids.shape[1],
        "budgets": budgets,
        "seconds for shares and errors": round(time.perf_counter() - start),
        "policies": {policy: _summary(curve, policy) for policy in names},
        "curve": curve,
    }
    print(curve, flush=True)
    report(result)
    late = torch.arange(ids.shape[1] - 1) + 1 > max(budgets)  # tokens that every budget concerns
    plain = _loss(model, ids, late)
    result |= {"loss without eviction": round(plain, 5), "loss of tokens after": max(budgets)}
    # The middle budgets first, which say the most if the time is short.
    for budget in sorted(budgets, key=lambda n: abs(budgets.index(n) - len(budgets) // 2 + 1)):
        for policy in names:
            with regard.intervene(model, regard.evict(policy, budget)):
                rise = _loss(model, ids, late) - plain
            result["policies"][policy]["rise of the loss"][budgets.index(budget)] = round(rise, 5)
            print(policy, budget, round(rise, 4), flush=True)
        report(result)


def _loss(model: GPT, ids: Tensor, late: Tensor) -> float:
    """The mean cross entropy of the tokens that `late` (T − 1,) marks."""
    return float(cross_entropy(model(ids)[0, :-1][late].double(), ids[0, 1:][late]))


def _summary(curve: RetentionCurve, policy: str) -> dict[str, Any]:
    n, needed = curve.policies.index(policy), curve.needed(policy)
    return {
        "attention kept": _rounded(curve.shares[n].nan_to_num(1.0).mean(-1)),
        "change of the output": _rounded(curve.errors[n].nan_to_num(0.0).mean(-1)),
        "heads that keep 95 %": [
            sum(x is not None and x <= budget for x in needed) for budget in curve.budgets
        ],
        "rise of the loss": [None] * len(curve.budgets),
        "budget for 95 %": {
            f"{layer}.{head}": need for (layer, head), need in zip(curve.places, needed, strict=True)
        },
    }


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(x, 4) for x in values.tolist()]


@torch.no_grad()
def layer_cost(device: str, tokens: int, budget: int) -> dict[str, Any]:
    """Measure the time and memory of each policy on one layer."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, heads, tokens, 128, device=device, dtype=dtype) for heads in (32, 8, 8))
    m = regard.attention_map(q, k, mask=regard.causal)
    calls: dict[str, Any] = {"forward": lambda: regard.attend(q, k, v, mask=regard.causal)}
    for name in ("streaming", "h2o", "snapkv", "tova", "key_norm", "random"):
        policy = getattr(policies, name)()
        calls[name] = lambda policy=policy: policies.measure(m, v, policy, budget)
    times = together(calls, device, rounds=3)
    return {
        "tokens": tokens,
        "budget": budget,
        "forward ms": round(times["forward"], 2),
        "forwards": {name: round(x / times["forward"], 3) for name, x in times.items() if name != "forward"},
        "peak MiB beyond q, k, v": {name: round(peak_mib(call, device)) for name, call in calls.items()},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layer", action="store_true", help="measure the cost of one layer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--budget", type=int, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.layer:
        tokens = options.tokens or (131_072 if options.device == "cuda" else 4096)
        result = layer_cost(options.device, tokens, (options.budget or [tokens // 32])[0])
        write({"machine": machine(options.device), **result}, options.out)
        return
    tokens = options.tokens or 2048
    budgets = options.budget or [*(tokens // n for n in (32, 16, 8, 4, 2)), tokens * 3 // 4]

    def report(result: dict[str, Any]) -> None:
        curve, known = result["curve"], {key: value for key, value in result.items() if key != "curve"}
        write({"machine": machine(options.device), **known}, options.out)
        if options.picture is not None:
            losses = {name: values["rise of the loss"] for name, values in known["policies"].items()}
            # None leaves a gap in a line.
            gaps = {name: [float("nan") if x is None else x for x in rises] for name, rises in losses.items()}
            curve.figure(gaps).savefig(options.picture, dpi=110)

    curves(options.model, options.file, tokens, budgets, report)


def write(result: dict[str, Any], path: Path | None) -> None:
    """Write a result as JSON, or print it."""
    text = json.dumps(result, indent=1)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
