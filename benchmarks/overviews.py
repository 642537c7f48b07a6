"""The attention that hands out an overview with its output, beside cuDNN's forward pass and two passes.

    python -m benchmarks.overviews [--rounds 7] [--out overviews.json]

Needs a GPU with PyTorch and Triton. 32 heads of width 128, bfloat16, causal; cells as a capture keeps them.
The calls take turns in every round; a ratio is the median over the rounds, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.measure import machine
from regard.attention.backends.problem import prepare
from regard.attention.backends.triton import launch
from regard.maps.tile_passes.kept_overview import cell_size

HEADS, WIDTH = 32, 128
LENGTHS = (16_384, 65_536, 131_072)
FORWARD = "cuDNN's forward"


@torch.no_grad()
def measure(tokens: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, tokens, WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    problem, size = prepare(q, k, v, mask=regard.causal), cell_size(tokens, tokens)
    m = regard.attention_map(q, k, mask=regard.causal, lse=launch.run(problem)[1])
    cells = tokens // size

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    calls: dict[str, Callable[[], Any]] = {
        FORWARD: cudnn,
        "Triton's forward": lambda: launch.run(problem),
        "forward and both overviews in one pass": lambda: launch.run_with_cells(problem, size),
        f"both overviews of a finished capture, {cells}×{cells}": lambda: m.pool(cells, cells, "both"),
        "both overviews of a finished capture, 1024×1024": lambda: m.pool(1024, 1024, "both"),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    repeats = max(1, 2 * LENGTHS[1] // tokens) ** 2
    for _ in range(rounds + 1):
        events = {name: _queue(call, repeats) for name, call in calls.items()}
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end) / repeats)
    times = {name: rounds_of[1:] for name, rounds_of in times.items()}  # the first one was a warm-up
    result: dict[str, Any] = {
        "tokens": tokens,
        "cell": size,
        f"{FORWARD}, ms": round(statistics.median(times[FORWARD]), 3),
    }
    for name in list(calls)[1:]:
        ratios = [ms / forward for ms, forward in zip(times[name], times[FORWARD], strict=True)]
        result[name] = {
            "ratio": round(statistics.median(ratios), 3),
            "least": round(min(ratios), 3),
            "greatest": round(max(ratios), 3),
        }
    return result


def _queue(call: Callable[[], Any], repeats: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Queue a call several times, so that the GPU never waits for Python, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    return start, end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for tokens in args.tokens:
        rows.append(measure(tokens, args.rounds))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    result = {"machine": machine("cuda"), "rounds": args.rounds, "rows": rows}
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
