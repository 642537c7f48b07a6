"""The whole computation of one row of attention, step by step, with the actual numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import grid
from regard.maps import AttentionMap

STRONGEST = 12  # keys that are shown, besides the first and the nearest


def working(m: AttentionMap, values: Tensor | None, row: int, H: int, G: int) -> dict[str, Any]:
    """One row of a head's map (1, 1, T, S) with values (S, E): what JSON holds of every step.

    `keys` are the strongest, the first and the query's own, in order: for each its k, the score q·k,
    `scaled`, `capped` (the same if there is no cap), what the mask `added`, whether it is `visible`, its
    weight and its v.
    `sum` is that of all the row's weights, which a sink makes less than 1.
    """
    _, _, T, S = m.matrix
    if not 0 <= row < T:
        raise KeyError(f"row: expected a number from 0 to {T - 1}, got {row}")
    at = slice(row, row + 1)
    q, k = m.q[0, 0, row].double().cpu(), m.k[0, 0].double().cpu()  # (D,), (S, D)
    weights = m.tile(at).reshape(S).double().cpu()
    where = grid(at, slice(0, S), m.matrix, m.device)
    visible = m.mask.allowed(where).expand(1, 1, 1, S).reshape(S).cpu()
    bias = m.mask.score_bias(where)
    added = (
        torch.zeros(S).double()
        if bias is None
        else bias.detach().expand(1, 1, 1, S).reshape(S).double().cpu()
    )
    score = k @ q
    scaled = score * m.scale
    capped = scaled if m.softcap is None else m.softcap * torch.tanh(scaled / m.softcap)
    position = row + S - T
    strongest = torch.sort(weights, descending=True, stable=True).indices[:STRONGEST].tolist()
    chosen = sorted({0, min(max(position, 0), S - 1), *strongest})
    v = None if values is None else values.double().cpu()
    output = None if v is None else (weights @ v.masked_fill(weights[:, None] == 0, 0)).tolist()
    lse = float(m.precise_lse(at))
    return {
        "row": row,
        "position": position,
        "q": q.tolist(),
        "keys": [
            {
                "key": j,
                "k": k[j].tolist(),
                "score": float(score[j]),
                "scaled": float(scaled[j]),
                "capped": float(capped[j]),
                "added": float(added[j]) if bool(visible[j]) else 0.0,
                "visible": bool(visible[j]),
                "weight": float(weights[j]),
                "v": None if v is None else v[j].tolist(),
            }
            for j in chosen
        ],
        "output": output,
        "visible": int(visible.sum()),
        "lse": lse if math.isfinite(lse) else None,
        "sum": float(weights.sum()),
        "scale": m.scale,
        "softcap": m.softcap,
        "shapes": {"T": T, "S": S, "D": len(q), "E": None if v is None else v.shape[-1], "H": H, "G": G},
    }
