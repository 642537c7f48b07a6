"""The error of a map's numbers against float64, beside that of eager attention, for scores from 0.01 to 1e7.

    python -m benchmarks.exactness                    on this CPU
    python -m benchmarks.exactness --device cuda      on a GPU; needs only PyTorch and Triton

Every result of a map is compared with that of the dense float64 matrix, and so is that of eager attention:
scores in the dtype of q and k, softmax in float32. The figure is the ratio of the two largest errors, the
worst over several kinds of heads and masks. A map computes one weight as it computes a row, as
exp(score − lse), so eager's error is that of its softmax or that of exp(score − lse) in float32, whichever is
larger; heads that a map computes in float64 are held to the softmax. It is taken as at least four units in
the last place of 1 in float32 (or of the largest number, if that is more): it is 0 by chance where a row
attends to one key only.
Writes a dated JSON to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.measure import machine
from regard import AttentionMap

ROOT = Path(__file__).parent
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAGNITUDES = [10.0**n for n in range(-2, 8)]
UNITS = 4  # in the last place of float32: the least that eager's error is taken as
H, G = 4, 2
ROWS, COLS = 7, 9  # cells of an overview
REGION = slice(5, 53), slice(3, 40)

Numbers = dict[str, Tensor]


def _normal(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, H, T, D), torch.randn(1, G, S, D)


def _one_hot(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    """Each query is nearly the key at its own position, which gets most of the weight."""
    k = torch.randn(1, G, S, D)
    own = k.repeat_interleave(H // G, 1)[:, :, torch.arange(T) % S]
    return own + 0.1 * torch.randn(1, H, T, D), k


def _ties(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    """Keys in pairs that differ in their last digits."""
    q, k = _normal(T, S, D)
    k[:, :, 1::2] = k[:, :, : S - 1 : 2] * (1 + 1e-6 * torch.randn(1, G, S // 2, 1))
    return q, k


def _offset(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    """All scores of a row are large and nearly equal, as for keys with a large bias."""
    shared = torch.randn(1, 1, 1, D)
    shared = shared / shared.norm()
    q = shared * (1 + torch.rand(1, H, T, 1)) + 1e-3 * torch.randn(1, H, T, D)
    return q, shared + 1e-3 * torch.randn(1, G, S, D)


def _unlike(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    """Heads of one map with very different scores."""
    q, k = _normal(T, S, D)
    return q * torch.tensor([1e-6, 1.0, 1e-3, 0.1]).view(1, H, 1, 1), k


def _cancelling(T: int, S: int, D: int) -> tuple[Tensor, Tensor]:
    """Two large products in every score that cancel each other."""
    q, k = _normal(T, S, D)
    if D > 2:
        q[..., :2], k[..., 0], k[..., 1] = 9.0, 9.0, -9.0
    return q, k


DRAWS = {
    "normal": _normal,
    "one-hot": _one_hot,
    "ties": _ties,
    "offset": _offset,
    "unlike heads": _unlike,
    "cancelling": _cancelling,
}


def draw(kind: str, magnitude: float, T: int, S: int, D: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """q (1, H, T, D) and k (1, G, S, D) whose largest score is about `magnitude`, as far as dtype goes."""
    q, k = DRAWS[kind](T, S, D)
    largest = (q.double() @ k.double().repeat_interleave(H // G, 1).mT).abs().max().item() * D**-0.5
    factor = math.sqrt(magnitude / largest)
    return (q * factor).to(dtype), (k * factor).to(dtype)


def options(name: str, magnitude: float, T: int, S: int) -> dict[str, Any]:
    """Keyword arguments of `regard.attention_map` by name."""
    masks: dict[str, Callable[[], Any]] = {
        "full": lambda: None,
        "causal": lambda: regard.causal,
        "window": lambda: regard.causal & regard.window(12),
        "padding": lambda: regard.padding([S - S // 3]),
        "alibi": lambda: regard.causal & regard.alibi(H),
        "bias": lambda: magnitude * torch.randn(1, H, T, S),
        "softcap": lambda: regard.causal,
        "sinks": lambda: regard.causal,
    }
    arguments: dict[str, Any] = {"mask": masks[name]()}
    if name == "softcap":
        arguments["softcap"] = max(magnitude / 2, 1.0)
    if name == "sinks":
        arguments["sinks"] = magnitude * torch.tensor([1.0, 0.5, -0.1, 0.9])
    return arguments


OPTIONS = ("full", "causal", "window", "padding", "alibi", "bias", "softcap", "sinks")


def masked_scores(
    q: Tensor, k: Tensor, dtype: torch.dtype, rounded: torch.dtype, arguments: dict[str, Any]
) -> Tensor:
    """The masked scores by definition, computed in `dtype` and rounded to `rounded`."""
    (_, _, T, D), S = q.shape, k.shape[2]
    rule = regard.attention.masks.named_masks.as_mask(arguments["mask"])
    place = (range(T), range(S), (1, H, T, S))
    k = k.repeat_interleave(H // G, 1)
    s = (q.to(dtype) @ k.to(dtype).mT * D**-0.5).to(rounded).to(dtype)
    if (cap := arguments.get("softcap")) is not None:
        s = cap * torch.tanh(s / cap)
    if (bias := rule.bias(*place, device=q.device)) is not None:
        s = (s + bias.to(dtype)).to(rounded).to(dtype)
    return s.masked_fill(~rule.tile(*place, device=q.device), -torch.inf)


def with_sinks(s: Tensor, arguments: dict[str, Any]) -> Tensor:
    """Scores (1, H, T, S) with the column of sink logits, if there are any."""
    if (sinks := arguments.get("sinks")) is None:
        return s
    return torch.cat([s, sinks.to(s.dtype).view(1, H, 1, 1).expand(*s.shape[:-1], 1)], -1)


def matrix(s: Tensor, arguments: dict[str, Any]) -> Tensor:
    """The dense matrix of masked scores (1, H, T, S)."""
    return with_sinks(s, arguments).softmax(-1)[..., : s.shape[-1]].nan_to_num(0.0)


def weights_alone(s: Tensor, true: Tensor, large: Tensor, arguments: dict[str, Any]) -> Tensor:
    """exp(score − lse) of each weight alone, from scores s and the lse of the true scores, in float32.

    A map computes a weight so, and eager attention has to if it is asked for one. Heads that are `large`
    (1, H) are exact, as a map computes them in float64.
    """
    lse = with_sinks(true, arguments).logsumexp(-1, keepdim=True)
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    alone = (s.double() - lse.float().double()).exp()
    return alone.where(~large[..., None, None].to(s.device), matrix(true, arguments))


def by_definition(A: Tensor, v: Tensor) -> Numbers:
    """The results of a map, computed from the dense matrix (1, H, T, S)."""
    T, S = A.shape[-2:]
    back = (torch.arange(T, device=A.device)[:, None] + S - T - torch.arange(S, device=A.device)).to(A.dtype)
    mass, most = _pooled(A, ROWS, COLS)
    part, peak = _pooled(A[:, :, REGION[0], REGION[1]], ROWS, COLS)
    values = v.to(A.dtype).repeat_interleave(H // G, 1)
    return {
        "dense": A,
        "rows": A[:, :, 5:23],
        "row": A[0, 1, T // 2],
        "tile": A[:, :, REGION[0], REGION[1]],
        "pool mass": mass,
        "pool max": most,
        "region mass": part,
        "region max": peak,
        "entropy": torch.special.entr(A).sum(-1),
        "distance": (A * back).sum(-1),
        "received": A.sum(-2),
        "topk": A.topk(3).values,
        "product": A @ values,
        "mass": (A * (back < 5)).sum(-1),
        "diagonal": A.diagonal(dim1=-2, dim2=-1),
    }


def _pooled(A: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor]:
    T, S = A.shape[-2:]
    r, c = [i * T // rows for i in range(rows + 1)], [j * S // cols for j in range(cols + 1)]
    cells = [[A[..., r[i] : r[i + 1], c[j] : c[j + 1]] for j in range(cols)] for i in range(rows)]
    mass = torch.stack([torch.stack([x.sum(-1).mean(-1) for x in line], -1) for line in cells], -2)
    return mass, torch.stack([torch.stack([x.amax((-1, -2)) for x in line], -1) for line in cells], -2)


def by_map(m: AttentionMap, v: Tensor) -> Numbers:
    """The same results from a map."""
    T = m.matrix[2]
    pool, region = m.pool(ROWS, COLS, "both"), m.pool(ROWS, COLS, "both", region=REGION)
    statistics = m.statistics()
    return {
        "dense": m.to_dense(),
        "rows": m.tile(slice(5, 23)),
        "row": m[0, 1, T // 2],
        "tile": m[:, :, REGION[0], REGION[1]],
        "pool mass": pool.mass,  # type: ignore[union-attr]
        "pool max": pool.max,  # type: ignore[union-attr]
        "region mass": region.mass,  # type: ignore[union-attr]
        "region max": region.max,  # type: ignore[union-attr]
        "entropy": statistics.entropy,
        "distance": statistics.distance,
        "received": statistics.received,
        "topk": m.topk(3).values,
        "product": m @ v,
        "mass": m.mass(regard.window(5)),
        "diagonal": m.diagonal(),
    }


def ratios(
    kind: str, option: str, magnitude: float, dtype: torch.dtype, T: int, S: int, D: int, device: str = "cpu"
) -> dict[str, float]:
    """The map's largest error over eager's, for each result of a map."""
    q, k = (x.to(device) for x in draw(kind, magnitude, T, S, D, dtype))
    v = torch.randn(1, G, S, 8).to(device)
    arguments = {
        name: x.to(device) if isinstance(x, Tensor) else x
        for name, x in options(option, magnitude, T, S).items()
    }
    m = regard.attention_map(q, k, **arguments)
    exact = masked_scores(q, k, torch.float64, torch.float64, arguments)
    true = by_definition(matrix(exact, arguments), v)
    eager = by_definition(matrix(masked_scores(q, k, torch.float32, dtype, arguments), arguments), v)
    single = masked_scores(q, k, torch.float32, torch.float32, arguments)
    alone = by_definition(weights_alone(single, exact, m.precise.large, arguments), v)
    ours = by_map(m, v)
    out = {}
    for name, right in true.items():
        unit = UNITS * torch.finfo(torch.float32).eps * max(right.abs().max().item(), 1.0)
        error, theirs, single_error = (
            (x[name].double() - right).abs().max().item() for x in (ours, eager, alone)
        )
        theirs = math.inf if math.isnan(theirs) else max(theirs, single_error)  # NaN: too large for float16
        out[name] = math.inf if math.isnan(error) else error / max(theirs, unit)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--widths", default="1,8,64,128", help="head widths, separated by commas")
    parser.add_argument("--quick", action="store_true", help="every other mask and every other magnitude")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, dtype in DTYPES.items():
        for magnitude in MAGNITUDES[:: 2 if args.quick else 1]:
            if dtype == torch.float16 and magnitude > 1e6:
                continue  # q and k would not be finite
            worst: dict[str, tuple[float, str]] = {}
            for D in map(int, args.widths.split(",")):
                for kind in DRAWS:
                    for option in OPTIONS[:: 2 if args.quick else 1]:
                        torch.manual_seed(len(rows) + D)
                        errors = ratios(kind, option, magnitude, dtype, 60, 60, D, args.device)
                        for path, ratio in errors.items():
                            worst[path] = max(worst.get(path, (0.0, "")), (ratio, f"{kind}, {option}, D {D}"))
            rows.append({"dtype": name, "magnitude": magnitude, "worst": worst})
            print(name, f"{magnitude:.0e}", {path: round(ratio, 2) for path, (ratio, _) in worst.items()})
            path, (ratio, where) = max(worst.items(), key=lambda item: item[1][0])
            print(f"    worst: {path}, {ratio:.2f} at {where}", flush=True)
    day = datetime.date.today().isoformat()
    file = ROOT / "results" / f"exactness-{args.device}-{day}.json"
    file.write_text(json.dumps({"machine": machine(args.device), "units": UNITS, "rows": rows}, indent=1))
    print(file)


if __name__ == "__main__":
    main()
