"""Finds the heads whose scores are too large for float32.

A weight is exp(score − lse), and the score is computed again, by another kernel than the one that computed
the lse. Float32 holds either to a few units in its last place, so the weight of a score of 1,000 is off by
1e-4, where the softmax of eager attention subtracts a rounding error from itself. The size of the lse tells
which heads have such scores; `precision.py` computes their weights in float64. A soft cap hides the size of
the scores from lse, so there the lengths of q and k tell. Otherwise this file reads lse and mask only: q and
k may lie in a file.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Blocks, Mask, full
from regard.attention.masks.memo import memoize_on_mask

# A row that spreads its attention over n keys with scores of about 1 has lse = ln n + ½, and its weights are
# small, and so is their error. Above these limits some key may have most of the weight, and a score whose
# last digits matter. `benchmarks/exactness.py` shows what a limit does.
MARGIN = 1.4  # of lse above ln n
MIN_LIMIT = 5.5  # of lse, where few keys are visible
# On a GPU the kernels for half precision are many times as fast as float64, and eager attention, which rounds
# its scores to half precision, errs a thousand times as much as they do.
MIN_LIMIT_FOR_KERNELS = 24.0


class PreciseHeads(NamedTuple):
    """The heads that are computed in float64, and their row log-sum-exp as far as it has been computed."""

    large: Tensor  # (B, H) booleans, on the CPU
    lse: Tensor | None  # (B, H, T) float64, NaN where it is not computed yet; None if no head is large

    def select(self, batch: slice, heads: slice) -> PreciseHeads:
        """Select sequences and heads. The lse is a view, so what is computed there is known here, too."""
        large = self.large[batch, heads]
        lse = None if self.lse is None or not bool(large.any()) else self.lse[batch, heads]
        return PreciseHeads(large, lse)

    def select_rows(self, rows: slice) -> PreciseHeads:
        """Select rows; the lse is a view."""
        return self if self.lse is None else self._replace(lse=self.lse[:, :, rows])

    def to(self, device: torch.device) -> PreciseHeads:
        """Move the lse to a device."""
        return self if self.lse is None else self._replace(lse=self.lse.to(device))


def no_large_heads(B: int, H: int) -> PreciseHeads:
    """The `PreciseHeads` of a map in which float32, or float64 already, serves every head."""
    return PreciseHeads(torch.zeros(B, H, dtype=torch.bool, device="cpu"), None)


def find_large_heads(
    lse: Tensor,
    mask: Mask,
    S: int,
    first_position: int,
    half_precision: bool,
    uncapped: Tensor | None = None,
) -> PreciseHeads:
    """Find the heads with scores too large for float32.

    `lse` (B, H, T) is the row log-sum-exp of a map with S keys, `first_position` the position of its first
    query among them; `half_precision` says that q and k are float16 or bfloat16. `uncapped` (B, H) is the
    size of the scores before a soft cap.
    """
    large = has_large_lse(lse, mask, S, first_position, half_precision).cpu()
    if uncapped is not None:
        on_kernels = lse.device.type == "cuda" and half_precision
        large |= uncapped.cpu() > (MIN_LIMIT_FOR_KERNELS if on_kernels else MIN_LIMIT)
    if not bool(large.any()):
        return PreciseHeads(large, None)
    with torch.inference_mode(False):  # it is written to later, perhaps outside of that mode
        unknown = torch.full(lse.shape, torch.nan, dtype=torch.float64, device=lse.device)
    return PreciseHeads(large, unknown)


def has_large_lse(lse: Tensor, mask: Mask, S: int, first_position: int, half_precision: bool) -> Tensor:
    """Whether the lse of some row is too large for float32, (B, H); the arguments of `find_large_heads`."""
    magnitude = lse.nan_to_num(0.0, 0.0, 0.0).abs()  # (B, H, T)
    return (magnitude > _limits(lse, mask, S, first_position, half_precision)).any(-1)


def score_size(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The size of a score of the longest query and the longest key if they are unrelated, (B, H)."""
    # float32, since squares of float16 overflow beyond 255.
    lengths = (torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32) for x in (q, k))
    longest_q, longest_k = (x.nan_to_num(0.0, 0.0).amax(-1) for x in lengths)  # padding may hold anything
    longest_k = longest_k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    size: Tensor = longest_q * longest_k * abs(scale) * q.shape[-1] ** -0.5
    return size


def _limits(lse: Tensor, mask: Mask, S: int, first_position: int, half_precision: bool) -> Tensor | float:
    """The largest |lse| that float32 serves, for every row (T,) or one for all."""
    T = lse.shape[2]
    if lse.device.type == "cuda" and half_precision:
        return max(MIN_LIMIT_FOR_KERNELS, math.log(S) + MARGIN)
    if mask is full:
        return max(MIN_LIMIT, math.log(S) + MARGIN)
    key = ("limits", T, S, first_position, lse.dtype, lse.device)
    return memoize_on_mask(mask, key, lambda: _limits_of_mask(lse, mask, S, first_position))


def _limits_of_mask(lse: Tensor, mask: Mask, S: int, first_position: int) -> Tensor | float:
    """The limits of a mask that hides something."""
    # Under a causal mask a row sees as many keys as its position has; other masks may show all of them to any
    # row.
    T = lse.shape[2]
    if _sees_later_keys(mask, T, S, first_position, lse.device):
        return max(MIN_LIMIT, math.log(S) + MARGIN)
    visible = torch.arange(first_position + 1, first_position + 1 + T, device=lse.device).clamp(1, S)
    return visible.to(lse.dtype).log_().add_(MARGIN).clamp_(min=MIN_LIMIT)


def _sees_later_keys(mask: Mask, T: int, S: int, first_position: int, device: torch.device) -> bool:
    """Whether the first query may see a key after its own position, or the mask cannot tell."""
    own = min(max(first_position, 0), S - 1)
    if own == S - 1:
        return True
    # A mask of T queries and S keys numbers its first query S − T.
    edges = (S - T, S - T, own + 1, S - 1)
    q_first, q_last, k_first, k_last = (torch.tensor([[n]], device=device) for n in edges)
    return bool(mask.block_bounds(Blocks(q_first, q_last, k_first, k_last, T, S))[0].any())
