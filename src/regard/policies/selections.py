"""Policies that keep every key and choose, for each query, the blocks of keys that it reads."""

from __future__ import annotations

from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.policies.policy import Selection, SelectionState


def quest(page: int = 16) -> Selection:
    """Read the pages with the greatest possible score (Quest, Tang et al. 2024, arXiv:2406.10774).

    The bound follows from the smallest and greatest entry of every channel among the keys of a page. `page`
    is the number of keys in one; a budget that is smaller has pages of its own size.
    """

    def score(state: SelectionState) -> Tensor:
        keys, q = state.key_blocks(), state.queries  # (B, G, blocks, block, D)
        above = state.products(keys.amax(3), q.clamp(min=0))
        return state.choose_newest(above + state.products(keys.amin(3), q.clamp(max=0)))

    return Selection("quest", score, check_whole_number("page", page, 1), "arXiv:2406.10774")


def blocks(size: int = 64) -> Selection:
    """Read the blocks whose mean key fits the query best (MoBA, Lu et al. 2025, arXiv:2502.13189).

    `size` is the number of keys in a block; a budget that is smaller has blocks of its own size. MInference
    and NSA choose blocks by pooled keys, too.
    """

    def score(state: SelectionState) -> Tensor:
        return state.choose_newest(state.products(state.key_blocks().mean(3)))

    return Selection("blocks", score, check_whole_number("size", size, 1), "arXiv:2502.13189")


def best() -> Selection:
    """Read the keys with the largest weights, of every query and head: no policy can hold a greater share."""
    return Selection("best", lambda state: state.map.tile(state.rows, state.keys))
