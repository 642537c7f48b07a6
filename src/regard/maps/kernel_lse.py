"""Reads the row log-sum-exp that a kernel returned: its shape, and what it says of rows that see no key.

FlashAttention, FlexAttention, cuDNN and PyTorch's kernels all give the natural logarithm, in shapes of their
own. A row without a visible key has an lse of −inf; some kernels write +inf or 0 there instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.tensors import check_floats

ROWS = 64  # rows whose visibility is asked for at once


def read_lse(lse: Tensor, q: Tensor, mask: Mask, matrix: tuple[int, int, int, int]) -> Tensor:
    """The lse (B, H, T) of queries q (…, T, D) under a mask; an error says how to mend its shape."""
    lse = _shaped(check_floats("lse", lse), tuple(q.shape[:-1]))
    if lse.device != q.device:
        raise ValueError(f"lse: expected it on {q.device}, where q is, got {lse.device}")
    return _with_empty_rows(lse.detach().reshape(matrix[:3]), mask, matrix)


def _shaped(lse: Tensor, expected: tuple[int, ...]) -> Tensor:
    """The lse in the shape that is expected; cuDNN's has a last dimension of one."""
    got, hint = tuple(lse.shape), ""
    if got == (*expected, 1):
        return lse.squeeze(-1)
    if got == expected:
        return lse
    # PyTorch's memory-efficient kernel pads the rows of its lse to a multiple of 32.
    if got[:-1] == expected[:-1] and got[-1] > expected[-1]:
        hint = f": pass lse[..., :{expected[-1]}] if the kernel has padded its rows"
    elif len(got) > 1 and tuple(lse.mT.shape) == expected:
        hint = ": pass lse.mT"
    raise ValueError(f"lse: expected {expected}, one number a query, got {got}{hint}")


def _with_empty_rows(lse: Tensor, mask: Mask, matrix: tuple[int, int, int, int]) -> Tensor:
    """The lse with −inf in the rows that see no key, where kernels write +inf or 0."""
    # 0 may also be the true lse of a row: the mask is asked about each such row.
    doubtful = ((lse == torch.inf) | (lse == 0)).flatten(0, 1).any(0).nonzero().flatten()
    if not mask.hides or not len(doubtful):
        return lse
    # The lse is the caller's tensor.
    lse = lse.clone()
    for rows in torch.split(doubtful, ROWS):
        visible = mask.tile(rows, slice(0, matrix[3]), matrix, device=lse.device).any(-1)
        visible = visible.expand(*matrix[:2], len(rows))
        lse[:, :, rows] = lse[:, :, rows].masked_fill(~visible, -torch.inf)
    return lse
