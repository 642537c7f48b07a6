"""The whole computation of one row of attention, step by step, with the actual numbers.

This file knows one head's map and its values; the page's `row_steps` computes the same in a saved file.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import grid
from regard.maps import AttentionMap

STRONGEST = 12  # keys that are shown, beside the first one and the query's own


def trace_row(m: AttentionMap, values: Tensor | None, row: int, H: int, G: int) -> dict[str, Any]:
    """Return every step from one query to its output, as plain data.

    Arguments:
        m: one head's map, (1, 1, T, S).
        values: the head's values, (S, E), or None if they were not captured; then there is no output.
        row: the query.
        H, G: the layer's numbers of query heads and of key/value heads, which are passed on.

    `keys` holds the strongest keys, the first one and the query's own, in order. Each has its vector `k`, the
    score q·k, the score `scaled` and `capped` (the same if there is no soft cap), the bias that the mask
    `added`, whether it is `visible`, its weight and its vector `v`. `sum` is the sum of the row's weights,
    which a sink logit makes less than 1.
    """
    _, _, T, S = m.matrix
    if not 0 <= row < T:
        raise KeyError(f"row: expected a number from 0 to {T - 1}, got {row}")
    # All numbers of the row in float64.
    rows = slice(row, row + 1)
    q, k = m.q[0, 0, row].double().cpu(), m.k[0, 0].double().cpu()  # (D,), (S, D)
    weights = m.tile(rows).reshape(S).double().cpu()
    cells = grid(rows, slice(0, S), m.matrix, m.device)
    visible = m.mask.allowed(cells).expand(1, 1, 1, S).reshape(S).cpu()
    bias = m.mask.score_bias(cells)
    if bias is None:
        added = torch.zeros(S, device="cpu").double()
    else:
        added = bias.detach().expand(1, 1, 1, S).reshape(S).double().cpu()
    score = k @ q  # (S,)
    scaled = score * m.scale
    capped = scaled if m.softcap is None else m.softcap * torch.tanh(scaled / m.softcap)
    # The keys that are shown.
    position = row + S - T
    # stable, so that of equal weights the first keys are shown, as the page's own row_steps does.
    strongest = torch.sort(weights, descending=True, stable=True).indices[:STRONGEST].tolist()
    shown = sorted({0, min(max(position, 0), S - 1), *strongest})
    v = None if values is None else values.double().cpu()
    output = (
        None if v is None else (weights @ v.masked_fill(weights[:, None] == 0, 0)).tolist()
    )  # 0 · NaN is NaN
    lse = float(m.precise_lse(rows))
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
                # A hidden key's bias is −inf, which JSON does not have; `visible` says it.
                "added": float(added[j]) if bool(visible[j]) else 0.0,
                "visible": bool(visible[j]),
                "weight": float(weights[j]),
                "v": None if v is None else v[j].tolist(),
            }
            for j in shown
        ],
        "output": output,
        "visible": int(visible.sum()),
        "lse": lse if math.isfinite(lse) else None,
        "sum": float(weights.sum()),
        "scale": m.scale,
        "softcap": m.softcap,
        "shapes": {"T": T, "S": S, "D": len(q), "E": None if v is None else v.shape[-1], "H": H, "G": G},
    }
