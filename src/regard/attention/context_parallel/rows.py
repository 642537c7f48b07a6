"""Which rows of a sequence each rank holds, as runs of consecutive positions.

Contiguous: rank r holds the rows after those of rank r − 1. Under a causal mask the last rank then has the
most to do. Head-tail: the sequence is cut into 2n chunks, and rank r of n holds chunk r and chunk 2n − 1 − r,
so that each rank has as much to do as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.context_parallel.transfer import Ring

Order = Literal["contiguous", "head-tail"]
"""How the rows of a sequence are spread over the ranks."""
ORDERS: tuple[str, ...] = get_args(Order)


def check_order(order: str) -> str:
    """Return the name of an order of rows, or raise ValueError."""
    if order not in ORDERS:
        raise ValueError(f"order: expected one of {', '.join(map(repr, ORDERS))}, got {order!r}")
    return order


def split_rows(T: int, ranks: int, order: str) -> list[list[range]]:
    """The runs of positions that each rank holds if T rows are spread as evenly as they can be."""
    chunks = ranks if order == "contiguous" else 2 * ranks
    sizes = [T // chunks + (i < T % chunks) for i in range(chunks)]
    runs = [range(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]
    if order == "contiguous":
        return [[run] for run in runs]
    return [[runs[rank], runs[-1 - rank]] for rank in range(ranks)]


def find_runs(name: str, lengths: Sequence[int], order: str) -> list[list[range]]:
    """The runs of positions of ranks that hold so many rows each; `name` is what errors call the rows.

    In contiguous order the ranks may hold any number of rows, in head-tail order only those of `split_rows`.
    """
    if order == "contiguous":
        return [[range(a, b)] for a, b in pairwise(accumulate(lengths, initial=0))]
    runs = split_rows(sum(lengths), len(lengths), order)
    expected = [sum(map(len, of_rank)) for of_rank in runs]
    if expected != list(lengths):
        raise ValueError(
            f"{name}: expected {expected} rows on the ranks, as "
            f"regard.attention.ring_positions({sum(lengths)}, …) spreads {sum(lengths)} rows in head-tail "
            f"order, got {list(lengths)}"
        )
    return runs


def join_rows(parts: Sequence[Tensor], runs: Sequence[Sequence[range]]) -> Tensor:
    """The parts (B, heads, rows, …) of all ranks, which hold these runs, in the order of their positions."""
    whole = torch.cat(list(parts), 2)
    positions = torch.cat(
        [torch.arange(run.start, run.stop, device="cpu") for of_rank in runs for run in of_rank]
    )
    return whole[:, :, positions.argsort().to(whole.device)]


def ring_positions(T: int, group: object, *, order: Order = "contiguous") -> Tensor:
    """The positions that this rank of a process group holds of a sequence of T rows, (rows,) and increasing.

    `x[:, ring_positions(T, group)]` is this rank's part of a sequence x (B, T, width), and the positions are
    what its rotary embedding needs.

    - `T`: the number of rows of the whole sequence.
    - `group`: a process group of `torch.distributed`, or a `DeviceMesh` of one dimension.
    - `order`: "contiguous", or "head-tail", by which every rank has as much to do under a causal mask.
    """
    ring = Ring.of(group)
    runs = split_rows(check_whole_number("T", T, 0), ring.size, check_order(order))[ring.rank]
    return torch.cat([torch.arange(run.start, run.stop, device="cpu") for run in runs])
