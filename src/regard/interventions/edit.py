"""`Edit`: a change of some heads of a model, and what every kind of edit has in common.

Positions of tokens are named as one, several, a slice, spans, or one span.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    def rows_of(self, positions: Positions | None, T: int, device: torch.device) -> Tensor | None:
        """Return which of the call's T queries are at some positions, boolean (T,); None for all of them."""
        if positions is None:
            return None
        self.check()
        return position_flags(positions, self.T, device)[self.first_row : self.first_row + T]


@dataclass(frozen=True)
class Edit(PrintedOutput):
    """A change of some heads. Made by `regard.ablate`, `regard.block` or `regard.patch`.

    `selection` says which heads of which layers.
    """

    selection: HeadSelection

    changes_weights = False
    """Whether it changes the weights of a head, and through them its output."""

    @property
    def rank(self) -> int:
        """Where it comes among edits of one head: whole patterns, edges of them, outputs."""
        return 1 if self.changes_weights else 2

    def resolved(self, model: nn.Module) -> Self:
        """Return the edit with its label, if it has one, replaced by the heads of a model."""
        return replace(self, selection=self.selection.resolved(model))

    def apply(self, call: AttentionCall, heads: list[int], place: CallPlace) -> AttentionCall:
        """Return a call as it is with these heads edited, or the call itself if nothing in it changes."""
        raise NotImplementedError


def check_no_dropout(call: AttentionCall, place: CallPlace, what: str) -> None:
    """Raise a RuntimeError if dropout was on in a call, since `what` the edit does has none."""
    if call.problem is not None and "dropout" in call.problem:
        raise RuntimeError(f"layer {place.layer}: {what} without dropout: write model.eval() first")


def replace_output(call: AttentionCall, heads: list[int], new: Tensor, rows: Tensor | None) -> AttentionCall:
    """Return a call after which the model goes on with another output of some heads.

    `new` broadcasts to (B, heads, T, E); `rows`, boolean (T,), are the queries that change, None for all.
    """
    output = call.output if call.used is None else call.used  # (B, H, T, E)
    new = new.to(output).expand(len(output), len(heads), *output.shape[2:])
    if rows is not None:
        new = torch.where(rows[:, None], new, output[:, heads])
    replaced = torch.zeros(output.shape[1:3], dtype=torch.bool, device=output.device)  # (H, T)
    replaced[heads] = True if rows is None else rows
    replaced = replaced if call.replaced is None else replaced | call.replaced
    return call._replace(used=with_heads(output, heads, new), replaced=replaced)


def used_after(call: AttentionCall, heads: list[int], output: Tensor) -> Tensor:
    """Return what a model goes on with once the weights of some heads have changed, (B, H, T, E).

    It is their new `output` (B, heads, T, E), except where an edit has replaced the output already: an edit
    of a head's weights comes before one of its output, also where the latter is of a block opened earlier.
    """
    used = call.output if call.used is None else call.used
    if call.replaced is not None:
        output = torch.where(call.replaced[heads].unsqueeze(-1), used[:, heads], output.to(used))
    return with_heads(used, heads, output)


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


def check_positions(name: str, positions: Any) -> Positions:
    """Return positions as they are; a ValueError says what was expected if they are something else."""
    if isinstance(positions, slice):
        if positions.step not in (None, 1):
            raise ValueError(f"{name}: expected a slice without a step, got {positions}")
        if not all(end is None or hasattr(end, "__index__") for end in (positions.start, positions.stop)):
            raise ValueError(f"{name}: expected a slice of whole numbers, got {positions}")
        return positions
    if isinstance(positions, Spans):
        return positions
    if isinstance(positions, NamedSpan):
        return slice(positions.start, positions.stop)
    if isinstance(positions, Tensor) and positions.dtype == torch.bool:
        raise ValueError(f"{name}: expected positions as numbers, got booleans: write x.nonzero().flatten()")
    try:
        numbers = positions.tolist() if isinstance(positions, Tensor) else positions
        if not isinstance(numbers, Sequence | range):
            # NumPy's whole numbers are taken as well.
            return operator.index(numbers)
        return [operator.index(i) for i in numbers]
    except TypeError:
        raise ValueError(
            f"{name}: expected a position, several, a slice or spans, got {type(positions).__name__}"
        ) from None


def position_flags(positions: Positions, n: int, device: torch.device) -> Tensor:
    """Return booleans (n,), True at the positions; those outside of the n positions are left out."""
    flags = torch.zeros(n, dtype=torch.bool, device=device)
    if isinstance(positions, Spans):
        for start, stop, _ in positions:
            flags[start:stop] = True
    elif isinstance(positions, slice):
        flags[positions] = True
    else:
        numbers = [positions] if isinstance(positions, int) else list(positions)
        inside = [i % n for i in numbers if n and -n <= i < n]
        flags[inside] = True
    return flags


def describe_positions(positions: Positions) -> str:
    """Return positions in short, as `3`, `3–7`, `all` or `12 positions`.

    >>> describe_positions(slice(None)), describe_positions(slice(3, 8)), describe_positions(slice(3, None))
    ('all', '3–7', '3–')
    """
    if isinstance(positions, int):
        return str(positions)
    if isinstance(positions, Spans):
        return f"{len(positions)} spans"
    if isinstance(positions, slice):
        start, stop = positions.start or 0, positions.stop
        if stop is None:
            return f"{start}–" if start else "all"
        return str(start) if stop - start == 1 else f"{start}–{stop - 1}"
    numbers = list(positions)
    return ", ".join(map(str, numbers)) if len(numbers) < 5 else f"{len(numbers)} positions"
