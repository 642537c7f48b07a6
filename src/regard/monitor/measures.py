"""What the heads of one layer do in some rows of its map, from the scores of those rows alone.

The softmax of the rows is computed again by its definition, in float32 at least, so that the numbers hold for
any kernel. They are sums over the rows that count and maxima, which can be added up over data-parallel ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.grid import grid
from regard.maps import AttentionMap
from regard.maps.data import MapData
from regard.maps.tile_passes.dense_rows import tile_scores
from regard.monitor.history import MEASURES

MEANS = ("entropy", "relative_entropy", "distance", "across", "padding", "gate")  # over the rows that count
NUMBERS = 1 << 24  # scores that are computed at a time: 64 MiB in float32
GOLDEN = 0.6180339887498949  # its multiples never repeat an offset, and are spread evenly


@dataclass(frozen=True)
class BatchTokens:
    """What is known of the tokens of a batch; None where nothing is."""

    real: Tensor | None = None  # boolean (B, T), False for padding
    documents: Tensor | None = None  # (B, T)


@dataclass
class HeadReading:
    """Sums and maxima of every head of a layer over the rows that count: not padding, with a visible key."""

    sums: dict[str, Tensor]
    """The number of rows and what adds up over them, (H,) each; "received" and "seen" by key, (H, S)."""
    maxima: dict[str, Tensor]
    """All of which the largest counts, (H,) each; the least lse is turned around."""
    unknown: tuple[str, ...]
    """The measures that the batch or the layer says nothing of."""

    def values(self) -> dict[str, list[float | None]]:
        """The numbers of every head by name: means over the rows, and extremes. None where no row counts."""
        rows, received, seen = (self.sums[name] for name in ("rows", "received", "seen"))
        # A key that few rows see could have a large mean by chance.
        often = seen >= seen.amax(-1, keepdim=True).clamp(min=2) / 2
        sink, key = (received / seen.clamp(min=1)).masked_fill(~often, 0.0).max(-1)
        found = {"sink": sink, "sink_key": key.to(sink.dtype)} | self.maxima
        found["min_lse"] = -found["min_lse"]
        found |= {name: self.sums[name] / rows.clamp(min=1) for name in MEANS}
        found |= {name: torch.full_like(sink, torch.nan) for name in self.unknown}
        table = torch.stack([found[name].masked_fill(rows == 0, torch.nan) for name in MEASURES]).tolist()
        return {
            # JSON has neither NaN nor infinity.
            name: [x if math.isfinite(x) else None for x in row]
            for name, row in zip(MEASURES, table, strict=True)
        }


def choose_rows(T: int, rows: int, turn: int) -> Tensor:
    """Choose some of T rows, spread evenly; every turn begins at another offset."""
    count = min(rows, T)
    step = T / count if count else 1.0
    first = turn * GOLDEN % 1.0 * step
    return torch.arange(count, device="cpu").mul(step).add(first).long().clamp(max=max(T - 1, 0))


@torch.no_grad()
def read(m: AttentionMap, rows: Tensor, tokens: BatchTokens) -> HeadReading:
    """Read some rows (n,) of a layer's map (B, H, T, S)."""
    B, H, T, S = m.matrix
    rows = rows.to(m.device)
    real, documents = tokens.real, tokens.documents
    # BatchTokens of another length than the keys, as those of an encoder, say nothing of this layer's keys.
    real = None if real is None or real.shape != (B, S) else real.to(m.device)
    documents = None if documents is None or documents.shape != (B, S) else documents.to(m.device)
    q_norm = torch.linalg.vector_norm(m.q.index_select(2, rows).float(), dim=-1).amax((0, 2))
    lengths = torch.linalg.vector_norm(m.k.float(), dim=-1)  # (B, G, S)
    if real is not None:
        lengths = lengths.masked_fill(~real[:, None], 0.0)
    k_norm = lengths.amax((0, 2)).repeat_interleave(H // m.k.shape[1])
    zeros = m.lse.new_zeros(1 + len(MEANS), H, dtype=m.dtype)
    by_key = m.lse.new_zeros(2, H, S, dtype=m.dtype)
    lowest = m.lse.new_full((3, H), -torch.inf, dtype=m.dtype)
    known = {"padding": real, "across": documents, "gate": m.sinks}
    reading = HeadReading(
        dict(zip(("rows", *MEANS, "received", "seen"), (*zeros, *by_key), strict=True)),
        dict(zip(("max_score", "max_lse", "min_lse"), lowest, strict=True))
        | {"q_norm": q_norm, "k_norm": k_norm},
        tuple(name for name, x in known.items() if x is None),
    )
    for b, heads, some in _parts(m, rows):
        part = m.select(slice(b, b + 1), heads)
        of_text = BatchTokens(None if real is None else real[b], None if documents is None else documents[b])
        _add(reading, part, heads, some, of_text, S - T)
    return reading


def _parts(m: AttentionMap, rows: Tensor) -> Iterator[tuple[int, slice, Tensor]]:
    """Texts, heads and rows whose scores fit in memory together; the heads of a key/value head together."""
    B, H, _, S = m.matrix
    group = H // m.k.shape[1]
    heads = max(NUMBERS // max(group * len(rows) * S, 1), 1) * group
    count = max(NUMBERS // max(heads * S, 1), 1)
    for b in range(B):
        for first in range(0, H, heads):
            for some in torch.split(rows, count):
                yield b, slice(first, min(first + heads, H)), some


def _add(
    reading: HeadReading, m: MapData, heads: slice, rows: Tensor, tokens: BatchTokens, shift: int
) -> None:
    """Add some rows of some heads of one text to a reading; query i stands at key i + shift."""
    S = m.matrix[3]
    scores = tile_scores(m, grid(rows, slice(0, S), m.matrix, m.device), m.dtype)[0]  # (h, n, S)
    visible = scores > -torch.inf
    counts = visible.any(-1)  # (h, n)
    if tokens.real is not None:
        counts &= tokens.real[(rows + shift).clamp(0, S - 1)]
    top = scores.amax(-1)
    sinks = None if m.sinks is None else m.sinks.to(scores).view(-1, 1)
    anchor = top if sinks is None else torch.maximum(top, sinks)
    anchor = anchor.clamp(min=torch.finfo(scores.dtype).min)  # −inf − −inf would be NaN
    weights = (scores - anchor.unsqueeze(-1)).exp_()
    total = weights.sum(-1)
    total = total if sinks is None else total + (sinks - anchor).exp()
    lse = anchor + total.log()
    weights /= total.unsqueeze(-1).clamp(min=torch.finfo(scores.dtype).tiny)
    weights.masked_fill_(~counts.unsqueeze(-1), 0.0)

    for name, of_rows in (("max_score", top), ("max_lse", lse), ("min_lse", -lse)):
        highest = of_rows.masked_fill(~counts, -torch.inf).amax(-1)
        reading.maxima[name][heads] = torch.maximum(reading.maxima[name][heads], highest)

    entropy = torch.special.entr(weights).sum(-1)
    keys = visible.sum(-1)
    positions = torch.arange(S, device=m.device)
    back = (rows + shift)[:, None] - positions
    # A row that sees one key has all the entropy that it can have.
    relative = (entropy / keys.clamp(min=2).log()).where(keys > 1, counts.to(entropy))
    added = {
        "rows": counts.sum(-1),
        "entropy": entropy.sum(-1),
        "relative_entropy": relative.sum(-1),
        "distance": (weights * back).sum((-1, -2)),
        "received": weights.sum(-2),
        "seen": (visible & counts.unsqueeze(-1)).sum(-2),
    }
    if sinks is not None:
        added["gate"] = (sinks - lse).exp().masked_fill(~counts, 0.0).sum(-1)
    if tokens.real is not None:
        added["padding"] = weights[..., ~tokens.real].sum((-1, -2))
    if tokens.documents is not None:
        own = tokens.documents[(rows + shift).clamp(0, S - 1)]
        added["across"] = (weights * (own[:, None] != tokens.documents)).sum((-1, -2))
    for name, x in added.items():
        reading.sums[name][heads] += x
