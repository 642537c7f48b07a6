"""Tells heads that stand in front of the batch, (H, B, T, D) or (H · B, T, D), from texts.

Two things show them: the number of heads that the module names, and the order of the axes in memory, since
heads are cut from the channels of a token. The order is noted when a tensor is copied or its first two axes
are merged, after which its strides do not show it any more. This file knows axes; it does not know attention.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from regard.recorder.sources.structure_of_models.code_names import function_name

HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
"""Attributes that hold a module's number of heads."""
HEADS_FIRST = (
    "its heads seem to stand in front of the batch, where they cannot be told from texts: reshape them to "
    "(B, H, T, D)"
)
COPYING = {"contiguous", "clone", "reshape", "view", "flatten", "reshape_as", "view_as", "to", "_unsafe_view"}


def head_counts(module: nn.Module) -> list[int]:
    """Return the numbers of heads that a module or its configuration names."""
    # Transformers' modules name some of their sizes in their configuration only.
    holders = (module, getattr(module, "config", None))
    counts = (getattr(holder, name, None) for holder in holders for name in HEADS)
    return [n for n in counts if isinstance(n, int) and n > 0]


class HeadOrderError(ValueError):
    """Heads that cannot be told from texts."""


class LeadingAxes(NamedTuple):
    """The first two axes of a tensor (…, T, D), which may have been merged since."""

    sizes: tuple[int, int]
    is_inner_first: bool | None
    """Whether the first axis is cut from the second's entries in memory; None if memory does not show it."""

    def has_heads_first(self, counts: Collection[int]) -> bool:
        """Whether the axes are (H, B) and not (B, H), beside the numbers of heads that a module names."""
        first, second = (n in counts for n in self.sizes)
        # Then memory has to tell, which it does not of an axis of length 1.
        if first == second:
            return self.is_inner_first is True and 1 not in self.sizes
        return first and self.sizes[0] > 1 and self.is_inner_first is not False

    def check(self, counts: Collection[int]) -> None:
        """Raise a `HeadOrderError` if the axes are (H, B)."""
        if self.has_heads_first(counts):
            raise HeadOrderError(HEADS_FIRST)

    def split(self, counts: Collection[int]) -> tuple[int, int] | None:
        """Return the numbers of texts and of heads of axes that were merged; None if they are not known.

        If the axes are (H, B), and there is more than one text, a `HeadOrderError` says so.
        """
        texts, heads = self.sizes
        if heads == 1 and self.is_inner_first and self.has_heads_first(counts):
            return heads, texts
        self.check(counts)
        return self.sizes if heads in counts else None


_noted: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The leading axes of tensors whose strides do not show them."""


def leading_axes(*tensors: Tensor) -> LeadingAxes | None:
    """Return the leading axes of the first of some tensors whose order is known, or else of the first."""
    known = [axes for x in tensors if (axes := _axes_of(x)) is not None]
    return next((axes for axes in known if axes.is_inner_first is not None), known[0] if known else None)


def _axes_of(x: Tensor) -> LeadingAxes | None:
    if x in _noted:
        axes: LeadingAxes = _noted[x]
        return axes
    if x.ndim != 4 or x.is_nested:
        return None
    sizes, (first, second, third, _) = (x.shape[0], x.shape[1]), x.stride()
    # An expanded axis has stride 0.
    is_shown = 0 not in (first, second) and not first >= second >= third
    return LeadingAxes(sizes, first < second if is_shown else None)


def note_axes(function: Any, args: tuple[Any, ...], output: Any) -> None:
    """Note the leading axes of a tensor that a torch function has copied or whose axes it has merged."""
    x = args[0] if args else None
    if function_name(function) not in COPYING or not isinstance(x, Tensor) or output is x:
        return
    if not isinstance(output, Tensor) or (axes := _axes_of(x)) is None:
        return
    is_merged = x.ndim == 4 and output.shape == (axes.sizes[0] * axes.sizes[1], *x.shape[2:])
    if is_merged or (output.shape == x.shape and axes.is_inner_first is not None):
        _noted[output] = axes


def are_packed(shape: Sequence[int] | None, q: Tensor, k: Tensor) -> bool:
    """Whether queries that the model passed as (B, H, 1, D), its `shape`, are now q, (B, G, H / G, D).

    Since 5.23 Transformers does so under a mask (`pack_gqa`): the keys of G heads need not be repeated.
    """
    return (
        shape is not None
        and q.ndim == k.ndim == len(shape) == 4
        and 1 < q.shape[2] == shape[1] // k.shape[1]
        and (q.shape[1] * q.shape[2], 1) == tuple(shape[1:3])
    )


def unpack(
    tensors: tuple[Tensor, ...], mask: Tensor | None, lse: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor | None]:
    """Return q, k, v, the output, the mask and the lse with the heads of the queries on their own axis."""
    q, k, v, output = tensors
    # A mask that all heads share was not packed.
    if mask is not None and mask.shape[1:3] == q.shape[1:3]:
        mask = _with_heads_apart(mask)
    lse = None if lse is None else _with_heads_apart(lse)
    return (_with_heads_apart(q), k, v, _with_heads_apart(output)), mask, lse


def _with_heads_apart(x: Tensor) -> Tensor:
    """Return (B, G, H / G, …) as (B, H, 1, …)."""
    return x.flatten(1, 2).unsqueeze(2)
