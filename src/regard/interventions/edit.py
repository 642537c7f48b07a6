"""`Edit`: a change of some heads of a model, and what every kind of edit has in common.

Positions of tokens are named as one, several, a slice, spans, or one span.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.tensor_masks import TensorMask
from regard.interventions.head_selection import HeadSelection
from regard.maps.spans import NamedSpan, Spans
from regard.recorder.attention_call import AttentionCall
from regard.support.cell_output import PrintedOutput

Positions = int | slice | range | Sequence[int] | Tensor | Spans | NamedSpan
"""One position, several, a slice of positions, or all positions of spans; −1 is the last token."""
PATCHED = "its pattern was patched, and differs from what its own queries and keys give"
"""The problem of a call whose map cannot show the pattern that was patched."""


@dataclass(frozen=True)
class PositionSet:
    """Positions of tokens: runs of them, and what they are called.

    >>> [str(PositionSet.of("positions", x)) for x in (slice(None), slice(3, 8), slice(3, None), [2, -1])]
    ['all', '3–7', '3–', '2, -1']
    """

    runs: tuple[slice, ...]
    text: str

    @classmethod
    def of(cls, name: str, positions: Any) -> PositionSet:
        """Return positions as runs; a ValueError says what was expected if they are something else."""
        if isinstance(positions, Spans):
            return cls(tuple(slice(start, stop) for start, stop, _ in positions), f"{len(positions)} spans")
        if isinstance(positions, NamedSpan):
            positions = slice(positions.start, positions.stop)
        if isinstance(positions, slice):
            start, stop, step = positions.start, positions.stop, positions.step
            if step not in (None, 1):
                raise ValueError(f"{name}: expected a slice without a step, got {positions}")
            if not all(end is None or hasattr(end, "__index__") for end in (start, stop)):
                raise ValueError(f"{name}: expected a slice of whole numbers, got {positions}")
            start = start or 0
            if stop is None:
                return cls((positions,), f"{start}–" if start else "all")
            return cls((positions,), str(start) if stop - start == 1 else f"{start}–{stop - 1}")
        if isinstance(positions, Tensor) and positions.dtype == torch.bool:
            raise ValueError(
                f"{name}: expected positions as numbers, got booleans: write x.nonzero().flatten()"
            )
        try:
            numbers = positions.tolist() if isinstance(positions, Tensor) else positions
            # NumPy's whole numbers are taken as well.
            several = numbers if isinstance(numbers, Sequence | range) else [numbers]
            several = [operator.index(i) for i in several]
        except TypeError:
            raise ValueError(
                f"{name}: expected a position, several, a slice or spans, got {type(positions).__name__}"
            ) from None
        text = ", ".join(map(str, several)) if len(several) < 5 else f"{len(several)} positions"
        return cls(tuple(slice(i, i + 1 or None) for i in several), text)

    def flags(self, n: int, device: torch.device) -> Tensor:
        """Return booleans (n,), True at the positions; those outside of the n positions are left out."""
        flags = torch.zeros(n, dtype=torch.bool, device=device)
        for run in self.runs:
            flags[run] = True
        return flags

    def __str__(self) -> str:
        return self.text


class CallPlace(NamedTuple):
    """Where the queries and keys of an attention call are among all tokens so far.

    The call's query i is token `first_row + i` of T, and its key j is token `first_key + j` of S.
    """

    layer: int | str
    """The key of the layer."""
    first_row: int
    first_key: int
    T: int
    S: int
    unknown: str | None = None
    """Why the positions are not known, or None if they are."""

    def check(self) -> None:
        """Raise a RuntimeError if the positions are not known."""
        if self.unknown is not None:
            raise RuntimeError(
                f"layer {self.layer}: an edit at positions cannot be made, since {self.unknown}"
            )


@dataclass(frozen=True)
class Edit(PrintedOutput):
    """A change of some heads. Made by `regard.ablate`, `regard.block` or `regard.patch`.

    `selection` says which heads of which layers, and `positions` at which queries; None at all of them.
    """

    selection: HeadSelection
    positions: PositionSet | None = field(default=None, kw_only=True)

    rank = 2
    """Where it comes among edits of one head: 0 for whole patterns, 1 for edges of them, 2 for outputs."""

    def resolved(self, model: nn.Module) -> Self:
        """Return the edit with its label, if it has one, replaced by the heads of a model."""
        return replace(self, selection=self.selection.resolved(model))

    def apply(self, call: AttentionCall, heads: list[int], place: CallPlace) -> AttentionCall:
        """Return a call as it is with these heads edited, or the call itself if nothing in it changes."""
        rows: Tensor | None = None
        if self.positions is not None:
            place.check()
            T, device = call.output.shape[2], call.output.device
            rows = self.positions.flags(place.T, device)[place.first_row : place.first_row + T]
            if not bool(rows.any()):
                return call
        if self.rank < 2:
            return self.with_weights(call, heads, place, rows)
        new = self.new_output(call, heads, place)
        return call if new is None else replace_output(call, heads, new, rows)

    def new_output(self, call: AttentionCall, heads: list[int], place: CallPlace) -> Tensor | None:
        """Return other outputs of some heads, which broadcast to (B, heads, T, E); None for no change."""
        raise NotImplementedError

    def with_weights(
        self, call: AttentionCall, heads: list[int], place: CallPlace, rows: Tensor | None
    ) -> AttentionCall:
        """Return a call with other weights of some heads at some rows, and with the output that they give."""
        raise NotImplementedError


def check_no_dropout(call: AttentionCall, place: CallPlace, what: str) -> None:
    """Raise a RuntimeError if dropout was on in a call, since `what` the edit does has none."""
    if call.problem is not None and "dropout" in call.problem:
        raise RuntimeError(f"layer {place.layer}: {what} without dropout: write model.eval() first")


def replace_output(call: AttentionCall, heads: list[int], new: Tensor, rows: Tensor | None) -> AttentionCall:
    """Return a call after which the model goes on with another output of some heads.

    `new` broadcasts to (B, heads, T, E); `rows`, boolean (T,), are the queries that change, None for all.
    """
    output = call.used  # (B, H, T, E)
    new = new.to(output).expand(len(output), len(heads), *output.shape[2:])
    if rows is not None:
        new = torch.where(rows[:, None], new, output[:, heads])
    replaced = torch.zeros(output.shape[1:3], dtype=torch.bool, device=output.device)  # (H, T)
    replaced[heads] = True if rows is None else rows
    replaced = replaced if call.replaced is None else replaced | call.replaced
    return call._replace(edited=with_heads(output, heads, new), replaced=replaced)


def replace_weights(
    call: AttentionCall, heads: list[int], output: Tensor, dense: Callable[[], Tensor] | None
) -> AttentionCall:
    """Return a call in which the weights of some heads are others, with the output (B, heads, T, E) of them.

    `dense` returns the weights as matrices, for models that return theirs; None leaves these alone. An output
    that an edit has replaced stays: edits of weights come before those of outputs, also of a block opened
    earlier.
    """
    weights = call.weights
    if weights is not None and dense is not None:
        weights = with_heads(weights, heads, dense())
    used, new = call.used, output
    if call.replaced is not None:
        new = torch.where(call.replaced[heads].unsqueeze(-1), used[:, heads], output.to(used))
    output = with_heads(call.output, heads, output)
    return call._replace(output=output, edited=with_heads(used, heads, new), weights=weights)


def head_mask(call: AttentionCall, heads: list[int]) -> Mask:
    """Return the mask that shows everything to some heads of a call, and nothing to the others."""
    flags = torch.zeros(call.q.shape[1], dtype=torch.bool, device=call.q.device)
    flags[heads] = True
    return TensorMask(flags.view(1, -1, 1, 1))


def with_heads(x: Tensor, heads: list[int], new: Tensor) -> Tensor:
    """Return x (B, H, …) with other numbers for some heads."""
    # The model's own output is compared with the map, and stays as it was.
    x = x.clone()
    x[:, heads] = new.to(x.dtype)
    return x
