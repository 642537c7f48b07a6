"""Speed and memory of attention and of its maps, beside other implementations in one run.

    python -m benchmarks                    on this CPU
    python -m benchmarks --device cuda      on a GPU; needs only PyTorch and Triton
    python -m benchmarks --quick            one length only
    python -m benchmarks --only calls       short calls alone; the other rows of today's file are kept

Prints ratios to the fused forward pass and writes a dated JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks.calls import call_cases
from benchmarks.contenders import DOCUMENT, contenders, mask_by_name
from benchmarks.measure import in_rounds, machine, peak_mib, spread
from regard.maps import Spans

ROOT = Path(__file__).parent
GROUPS = {"look": "look", "call": "calls"}  # the `--only` of each pass; all others are "attend"


def tensors(T: int, D: int, heads: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    return [torch.randn(1, heads, T, D, dtype=dtype, device=device) for _ in range(3)]


def attention_case(
    mask: str, T: int, D: int, heads: int, dtype: torch.dtype, device: str, backward: bool, with_flex: bool
) -> list[dict[str, Any]]:
    """Every implementation of one attention: time, ratio to the fused forward pass, peak memory."""
    q, k, v = tensors(T, D, heads, dtype, device)
    calls: dict[str, Callable[[], Any]] = {}
    rows: list[dict[str, Any]] = []
    for name, run in contenders(mask, T, device, heads, with_flex).items():
        call = _with_backward(run, q, k, v) if backward else _forward(run, q, k, v)
        try:
            call()
        except Exception as error:  # an implementation that fails is a result as well
            rows.append({"who": name, "failed": str(error).splitlines()[0][:200]})
            continue
        calls[name] = call
    times = in_rounds(calls, device, 5 if device == "cuda" or T <= 4096 else 2)
    medians = {name: statistics.median(rounds) for name, rounds in times.items()}
    fused = min((t for name, t in medians.items() if name.startswith("sdpa")), default=medians["attend"])
    rows += [_row(name, rounds, fused, calls[name], device) for name, rounds in times.items()]
    case = {"mask": mask, "T": T, "D": D, "heads": heads, "dtype": str(dtype).removeprefix("torch.")}
    return [case | {"pass": "forward+backward" if backward else "forward"} | row for row in rows]


def _row(who: str, rounds: list[float], fused: float, call: Callable[[], Any], device: str) -> dict[str, Any]:
    ms = statistics.median(rounds)
    return {
        "who": who,
        "ms": ms,
        "spread": spread(rounds),
        "rounds": len(rounds),
        "to_fused": ms / fused,
        "peak_mib": peak_mib(call, device),
    }


def _forward(run: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return run(q, k, v)

    return call


def _with_backward(
    run: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> Callable[[], Any]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    grad = torch.randn_like(v)

    def call() -> Any:
        out = run(q, k, v)
        return torch.autograd.grad(out[0] if isinstance(out, tuple) else out, (q, k, v), grad)

    return call


def map_case(
    mask: str, T: int, D: int, heads: int, dtype: torch.dtype, device: str, bins: int
) -> list[dict[str, Any]]:
    """The cost of a map's overview and statistics, beside the forward pass that made it."""
    q, k, v = tensors(T, D, heads, dtype, device)
    rule = mask_by_name(mask, T)
    documents = regard.documents(torch.arange(T)[None] // DOCUMENT)
    _, lse = regard.attend(q, k, v, mask=rule, return_lse=True)
    m = regard.attention_map(q, k, mask=rule, lse=lse)
    row_weights, one_row = torch.randn(T, device=device), torch.zeros(T, device=device)
    one_row[-1] = 1.0
    u = torch.randn(T, device=device)
    spans = unequal_spans(T, bins)
    methods: dict[str, Callable[[], Any]] = {
        "fused forward": lambda: regard.attend(q, k, v, mask=rule),
        f"pool to {bins}×{bins}, mass and max": lambda: m.pool(bins, bins, "both"),
        "entropy, distance and received together": m.statistics,
        f"all of these: summary({bins}, {bins})": lambda: m.summary(bins, bins),
        f"pool over {len(spans)} unequal spans, mass and max": lambda: m.pool(spans, spans, "both"),
        f"weighted map, pooled to {bins}×{bins}, mass and max": lambda: m.weighted(u).pool(
            bins, bins, "both"
        ),
        "received(w), all rows": lambda: m.received(row_weights),
        "received(w), one row": lambda: m.received(one_row),
        "entropy": m.entropy,
        "received": m.received,
        "diagonal(-1)": lambda: m.diagonal(-1),
        "mass(window(64))": lambda: m.mass(regard.window(64)),
        "mass(documents)": lambda: m.mass(documents),
        "mass(~window(64))": lambda: m.mass(~regard.window(64)),
        "mass(rule(function))": lambda: m.mass(regard.rule(lambda b, h, q, k: (q + k) % 3 == 0)),
        "topk(8)": lambda: m.topk(8),
    }
    if T > 16384:  # a function is asked about each entry, in PyTorch
        del methods["mass(rule(function))"]
    calls = {name: _no_grad(method) for name, method in methods.items()}
    times = in_rounds(calls, device, 5 if device == "cuda" or T <= 4096 else 3)
    case = {
        "mask": mask,
        "T": T,
        "D": D,
        "heads": heads,
        "dtype": str(dtype).removeprefix("torch."),
        "pass": "look",
    }
    fused = statistics.median(times["fused forward"])
    return [case | _row(who, rounds, fused, calls[who], device) for who, rounds in times.items()]


def unequal_spans(T: int, count: int) -> Spans:
    """About `count` spans of T positions, of lengths between 1 and twice the mean."""
    longest = max(1, 2 * T // count - 1)
    lengths = torch.randint(1, longest + 1, (count,), generator=torch.Generator().manual_seed(0))
    inner = lengths.cumsum(0)
    return Spans.from_edges([0, *inner[inner < T].tolist(), T])


def _no_grad(function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return function()

    return call


def plan(
    device: str, quick: bool, only: str | None, length: int | None
) -> list[Callable[[], list[dict[str, Any]]]]:
    """The cases, smallest first; those of one `length` if it is given."""
    cases: list[Callable[[], list[dict[str, Any]]]] = []

    def attention(*args: Any) -> None:
        if only in (None, "attend") and length in (None, args[1]):
            cases.append(lambda: attention_case(*args))

    def map_methods(*args: Any) -> None:
        if only in (None, "look") and length in (None, args[1]):
            cases.append(lambda: map_case(*args))

    if only in (None, "calls") and length is None:
        cases += call_cases(device)

    if device == "cpu":
        f32, bf16 = torch.float32, torch.bfloat16
        for T, heads in ((1024, 12), (4096, 12), (16384, 2)) if not quick else ((1024, 12),):
            for mask in ("causal", "window", "full") if T <= 4096 else ("causal", "window"):
                attention(mask, T, 64, heads, f32, device, False, T == 1024)
            map_methods("causal", T, 64, heads, f32, device, 256)
        if not quick:
            map_methods("full", 4096, 64, 12, f32, device, 256)
            map_methods("causal", 32768, 64, 1, f32, device, 256)
            attention("causal", 4096, 128, 6, f32, device, False, False)
            attention("causal", 1024, 64, 12, f32, device, True, False)
            attention("causal", 4096, 64, 4, f32, device, True, False)
            attention("causal", 1024, 64, 12, bf16, device, False, False)
        return cases
    bf16, f32 = torch.bfloat16, torch.float32
    for T in (1024, 4096, 16384, 65536, 131072) if not quick else (4096,):
        for mask in ("causal", "window", "full") if T <= 16384 else ("causal",):
            attention(mask, T, 128, 32, bf16, device, False, T <= 16384 and mask != "full")
        if T == 16384:
            attention("documents", T, 128, 32, bf16, device, False, True)
            attention("prefix", T, 128, 32, bf16, device, False, True)
        if T <= 16384:
            attention("causal", T, 64, 32, bf16, device, False, False)
            attention("causal", T, 128, 32, bf16, device, True, T == 16384)
        if T <= 4096:
            attention("causal", T, 64, 16, f32, device, False, False)
        map_methods("causal", T, 128, 32, bf16, device, min(1024, T))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="one length only")
    parser.add_argument(
        "--only",
        choices=["attend", "look", "calls"],
        help="measure only these rows, and keep the others of today's file",
    )
    parser.add_argument("--length", type=int, help="measure this length alone, into a file of its own")
    parser.add_argument("--out", type=Path, help="folder of the JSON file (default: benchmarks/results/)")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device: run it on a machine with one, or leave --device out")
    torch.manual_seed(0)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    folder = args.out or ROOT / "results"
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "" if args.length is None else f"length-{args.length}-"
    path = folder / f"{prefix}{args.device}-{today}.json"
    rows: list[dict[str, Any]] = []
    if args.only and path.exists():
        kept = json.loads(path.read_text())["rows"]
        rows = [row for row in kept if GROUPS.get(row["pass"], "attend") != args.only]
    for case in plan(args.device, args.quick, args.only, args.length):
        case_rows = case()
        rows += case_rows
        first = case_rows[0]
        print(f"\n{first['pass']}, {first['mask']}, T {first['T']}, D {first['D']}, {first['heads']} heads, "
              f"{first['dtype']}")  # fmt: skip
        for row in case_rows:
            if "failed" in row:
                print(f"  {row['who']:<42} failed: {row['failed'][:60]}")
            else:
                print(f"  {row['who']:<42} {row['ms']:>10.3f} ms {row['to_fused']:>7.3f}× fused "
                      f"± {row['spread'] / 2:.0%} {row['peak_mib']:>9.1f} MiB", flush=True)  # fmt: skip
        path.write_text(
            json.dumps({"date": today, "machine": machine(args.device), "rows": rows}, indent=1) + "\n"
        )
    print(f"\nwrote {path}; python -m benchmarks.table updates the README from it")


if __name__ == "__main__":
    main()
