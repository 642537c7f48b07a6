"""What cache policies lose: curves over budgets of a real model, and the cost of measuring one layer.

    python -m benchmarks.cache_policies [--file book.txt] [--model smollm2] [--tokens 2048]
        [--device cuda] [--dtype bfloat16] [--jobs 4] [--out curves.json]
    python -m benchmarks.cache_policies --draw curves.json --picture curves.png
    python -m benchmarks.cache_policies --layer [--device cuda] [--tokens 131072] [--out layer.json]

The first reads the first tokens of a text, by default the topics of Python's own help (`pydoc_data.topics`),
and measures for each policy and budget the attention that is kept, the change of the heads' outputs, and the
rise of the loss when the model reads by such a cache; the loss is that of the tokens after the largest
budget, which every budget concerns. Several `--jobs` are processes that share the GPU, each with a copy of
the model. What is known is written after every policy and budget, and a policy that the file has at all
budgets is not measured again. "smollm2" is the file that
`regard data smollm2` puts into $REGARD_CACHE, or ~/.cache/regard.

The second draws what the first has written.

The third measures one layer of random numbers, 32 heads of 128 on 8: the time of each policy as a multiple of
the layer's forward pass, and its memory beyond q, k and v. Selection policies look at every weight, and are
measured on a sixteenth of the tokens.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import regard
from benchmarks.measure import machine, peak_mib, together
from regard import policies
from regard.gpt import GPT
from regard.policies.picture import draw_curve
from regard.policies.retention import RetentionCurve

POLICIES = ("streaming", "h2o", "snapkv", "tova", "key_norm", "quest")
BASELINES = ("random", "best")
EVICTIONS = ("streaming", "h2o", "snapkv", "tova", "key_norm", "random")
SELECTIONS = ("quest", "best")


class Point(NamedTuple):
    """What one policy loses at one budget."""

    policy: str
    budget: int
    places: list[tuple[int | str, int]]  # layer and head
    shares: list[float]  # of each head, NaN where it loses nothing
    errors: list[float]
    loss: float
    seconds: float


class Reading:
    """A model with a text that it has read, on which policies are measured."""

    def __init__(self, options: argparse.Namespace, latest: int) -> None:
        dtype = getattr(torch, options.dtype)
        self.model = GPT.from_pretrained(options.model, dtype=dtype, device=options.device)
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        self.ids = torch.tensor([tokenizer.encode(read_text(options)).ids[: options.tokens]])
        if self.ids.shape[1] < options.tokens:
            raise SystemExit(f"--file: expected {options.tokens:,} tokens, got {self.ids.shape[1]:,}")
        self.ids = self.ids.to(options.device)
        self.seen = regard.capture(self.model, inputs=(self.ids,), values=True)
        # The tokens that every budget concerns.
        self.late = torch.arange(options.tokens - 1, device=options.device) + 1 > latest

    def loss(self) -> float:
        """The mean cross entropy of the late tokens."""
        logits = self.model(self.ids)[0, :-1][self.late]
        return float(cross_entropy(logits.double(), self.ids[0, 1:][self.late]))

    def point(self, policy: str, budget: int) -> Point:
        """Measure one policy at one budget."""
        start = time.perf_counter()
        curve = self.seen.retained([policy], [budget], baselines=False)
        assert isinstance(curve, RetentionCurve)
        with regard.intervene(self.model, regard.evict(policy, budget)):
            loss = self.loss()
        shares, errors = curve.shares[0, 0].tolist(), curve.errors[0, 0].tolist()
        seconds = time.perf_counter() - start
        return Point(policy, budget, list(curve.places), shares, errors, loss, seconds)


def read_text(options: argparse.Namespace) -> str:
    """The text to read: a file, or the topics of Python's help in the order of their names."""
    if options.file is not None:
        return str(options.file.read_text(encoding="utf-8"))
    return "\n\n".join(topics[name] for name in sorted(topics))


_reading: Reading | None = None  # that of a worker process


@torch.no_grad()
def _open(options: argparse.Namespace) -> None:
    global _reading
    if options.jobs > 1:
        torch.set_num_threads(1)
    _reading = Reading(options, max(options.budget))


@torch.no_grad()
def _measure(policy: str | None, budget: int) -> Point | float:
    assert _reading is not None
    return _reading.loss() if policy is None else _reading.point(policy, budget)


def points(options: argparse.Namespace, names: list[str]) -> Iterator[Point | float]:
    """The loss without eviction, then every policy at every budget, as soon as it is measured."""
    budgets = options.budget
    # The middle budgets first, which say the most if the time is short.
    order = sorted(budgets, key=lambda n: abs(budgets.index(n) - len(budgets) // 2 + 1))
    tasks = [(name, budget) for budget in order for name in names]
    if options.jobs == 1:
        _open(options)
        yield _measure(None, 0)
        yield from (_measure(*task) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(options.jobs, spawn, _open, (options,)) as pool:
        yield pool.submit(_measure, None, 0).result()
        for done in as_completed([pool.submit(_measure, *task) for task in tasks]):
            yield done.result()


def curves(options: argparse.Namespace, report: Callable[[dict[str, Any]], None]) -> None:
    """Measure every policy at every budget: shares, errors and losses.

    `report` gets the result as far as it is known, after every measurement.
    """
    start, budgets = time.perf_counter(), tuple(options.budget)
    earlier = read_earlier(options)
    names = tuple(name for name in (*POLICIES, *BASELINES) if name not in earlier)
    measured = points(options, list(names))
    plain = next(measured)
    assert isinstance(plain, float)
    text = read_text(options)
    result: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "text": "pydoc_data.topics" if options.file is None else options.file.name,
        "sha256 of the text": hashlib.sha256(text.encode()).hexdigest(),
        "tokens": options.tokens,
        "budgets": budgets,
        "jobs": options.jobs,
        "loss without eviction": round(plain, 5),
        "loss of tokens after": max(budgets),
    }
    rises = {name: [math.nan] * len(budgets) for name in names}
    shares = errors = torch.empty(0)
    for count, point in enumerate(measured, 1):
        assert isinstance(point, Point)
        if count == 1:
            shares = torch.full((len(names), len(budgets), len(point.places)), math.nan)
            errors = shares.clone()
        row, column = names.index(point.policy), budgets.index(point.budget)
        shares[row, column], errors[row, column] = torch.tensor(point.shares), torch.tensor(point.errors)
        rises[point.policy][column] = point.loss - plain
        seconds = time.perf_counter() - start
        print(
            f"{count}/{len(names) * len(budgets)} {point.policy} {point.budget}: attention kept "
            f"{shares[row, column].nanmean():.4f}, rise of the loss {rises[point.policy][column]:.4f}; "
            f"{point.seconds:.1f} s, {seconds:.0f} s in all",
            flush=True,
        )
        curve = RetentionCurve(names, budgets, tuple(point.places), shares, errors)
        measured_now = {name: _summary(curve, name, rises[name]) for name in names}
        # In the order of the picture.
        summaries = {name: (earlier | measured_now)[name] for name in (*POLICIES, *BASELINES)}
        report(result | {"seconds": round(seconds), "policies": summaries})
    print(curve)


def read_earlier(options: argparse.Namespace) -> dict[str, Any]:
    """The policies that an earlier run with the same settings has measured at all budgets, from its file."""
    if options.out is None or not options.out.exists():
        return {}
    result = json.loads(options.out.read_text(encoding="utf-8"))
    same = all(result[name] == getattr(options, name) for name in ("model", "dtype", "tokens"))
    if not same or result["budgets"] != options.budget:
        raise SystemExit(f"--out: expected a file of these settings, or a new one, got {options.out}")
    return {
        name: policy for name, policy in result["policies"].items() if None not in policy["rise of the loss"]
    }


def _summary(curve: RetentionCurve, policy: str, rises: list[float]) -> dict[str, Any]:
    """One policy's row of the result, None where it has not been measured."""
    n, known = curve.policies.index(policy), [not math.isnan(rise) for rise in rises]
    budgets = [budget for budget, here in zip(curve.budgets, known, strict=True) if here]
    # NaN is a head that loses nothing, and a budget that has not been measured yet.
    measured = RetentionCurve(
        (policy,), tuple(budgets), curve.places, curve.shares[n : n + 1, known], curve.errors
    )
    needed = measured.needed(policy)
    counts = [sum(x is not None and x <= budget for x in needed) for budget in curve.budgets]
    return {
        "attention kept": _rounded(curve.shares[n].nan_to_num(1.0).mean(-1), known),
        "change of the output": _rounded(curve.errors[n].nan_to_num(0.0).mean(-1), known),
        "heads that keep 95 %": _rounded(torch.tensor(counts), known),
        "rise of the loss": _rounded(torch.tensor(rises), known),
        "budget for 95 %": {
            f"{layer}.{head}": need for (layer, head), need in zip(curve.places, needed, strict=True)
        },
    }


def _rounded(values: Tensor, known: list[bool]) -> list[float | None]:
    return [round(x, 5) if here else None for x, here in zip(values.tolist(), known, strict=True)]


@torch.no_grad()
def layer_cost(device: str, tokens: int, budgets: list[int]) -> dict[str, Any]:
    """Measure the time and memory of each eviction policy on one layer, and of selections on a part of it."""
    few = tokens // 16
    return {
        "evictions": [_policy_costs(device, tokens, EVICTIONS, budget) for budget in budgets],
        "selections": [_policy_costs(device, few, SELECTIONS, max(few // 32, 1))],
    }


def _policy_costs(device: str, tokens: int, names: tuple[str, ...], budget: int) -> dict[str, Any]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, heads, tokens, 128, device=device, dtype=dtype) for heads in (32, 8, 8))
    m = regard.attention_map(q, k, mask=regard.causal)
    calls: dict[str, Any] = {"forward": lambda: regard.attend(q, k, v, mask=regard.causal)}
    for name in names:
        policy = getattr(policies, name)()
        calls[name] = lambda policy=policy: policies.measure(m, v, policy, budget)
    times = together(calls, device, rounds=3)
    result = {
        "tokens": tokens,
        "budget": budget,
        "forward ms": round(times["forward"], 2),
        "forwards": {name: round(times[name] / times["forward"], 3) for name in names},
        "peak MiB beyond q, k, v": {name: round(peak_mib(call, device)) for name, call in calls.items()},
    }
    print(json.dumps(result), flush=True)
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layer", action="store_true", help="measure the cost of one layer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="of the model: bfloat16 on a GPU, float32 otherwise")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--budget", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="draw a result, with --picture")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    if options.draw is not None:
        draw(json.loads(options.draw.read_text(encoding="utf-8")), options.picture)
    elif options.layer:
        tokens = options.tokens or (131_072 if options.device == "cuda" else 4096)
        result = layer_cost(options.device, tokens, options.budget or [tokens // 32])
        write({"machine": machine(options.device), **result}, options.out)
    else:
        # bfloat16, since SmolLM2's scores are large: in float32, a GPU has to compute most heads in float64.
        options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
        tokens = options.tokens = options.tokens or 2048
        options.budget = options.budget or [*(tokens // n for n in (32, 16, 8, 4, 2)), tokens * 3 // 4]
        about = machine(options.device)
        curves(options, lambda result: write({"machine": about, **result}, options.out))


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw a written result; what was not measured is a gap in a line."""

    def rows(key: str, whole: int = 1) -> list[list[float]]:
        values = (policy[key] for policy in result["policies"].values())
        return [[math.nan if x is None else x / whole for x in row] for row in values]

    names = list(result["policies"])
    heads = len(result["policies"][names[0]]["budget for 95 %"])
    losses = dict(zip(names, rows("rise of the loss"), strict=True))
    enough = rows("heads that keep 95 %", heads)
    draw_curve(names, result["budgets"], rows("attention kept"), enough, losses).savefig(path, dpi=110)


def write(result: dict[str, Any], path: Path | None) -> None:
    """Write a result as JSON, or print it."""
    text = json.dumps(result, indent=1)
    if path is None:
        print(text)
    else:
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
