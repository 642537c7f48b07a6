"""`AttentionCall`: the inputs and the output of one attention call, whichever implementation computed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.maps import AttentionMap
from regard.maps.kept_overview import KeptOverview
from regard.recorder.placement import Placement


class AttentionCall(NamedTuple):
    """The inputs of one attention call and the output of the model's own implementation."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    output: Tensor  # (B, H, T, E), before any projection
    lse: Tensor | None  # (B, H, T), −inf for a query without a visible key; None if it was not computed
    mask: Mask
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    weights: Tensor | None = None  # (B, H, T, S), if the implementation returns them
    own_lse: bool = False  # whether lse comes from the implementation, and was not computed from q and k
    softly_masked_rows: bool = False  # whether finite biases mask every key of some query
    problem: str | None = None  # a reason why the call cannot be certified, if one is known
    unplaced: str | None = None  # why its axes are not known to be texts, heads and tokens, if they are not
    used: Tensor | None = None  # (B, H, T, E) the output with which the model goes on, if an edit changed it
    replaced: Tensor | None = None  # boolean (H, T), where an edit put another output in place of the head's
    heads: tuple[int, ...] | None = None  # the numbers in the model of the heads, where ranks share them
    placement: Placement | None = None  # where it is in the model's layer, where ranks share the layer
    whole_mask: Mask | None = (
        None  # of all rows of the layer, where this rank has some of them; k has all keys
    )

    kept: KeptOverview | None = None  # the overview that was computed with the output, by Regard's kernel

    @property
    def total_heads(self) -> int:
        """The number of heads of the layer in the model."""
        return self.q.shape[1] if self.placement is None else self.placement.total_heads

    def numbers(self, heads: Sequence[int]) -> list[int]:
        """Return the numbers in the model of heads of this call."""
        return list(heads) if self.heads is None else [self.heads[head] for head in heads]

    def local_heads(self, numbers: Iterable[int]) -> list[int]:
        """Return which heads of this call have these numbers in the model: those that this rank has."""
        heads = range(self.q.shape[1]) if self.heads is None else self.heads
        return [heads.index(number) for number in numbers if number in heads]

    def own_part(self, m: AttentionMap, v: Tensor) -> tuple[AttentionMap, Tensor]:
        """Return what this rank keeps of its map and values: if ranks share the rows, its own keys only.

        Its mask is then that of all rows.
        """
        if self.whole_mask is None or self.placement is None or self.placement.keys is None:
            return m, v
        keys = torch.cat([torch.arange(*run, device="cpu") for run in self.placement.keys]).to(v.device)
        return m._with(k=m.k[:, :, keys], mask=self.whole_mask), v[:, :, keys]

    def attention_map(self) -> AttentionMap:
        """Return the map of the call, without gradients."""
        call = self.with_lse()
        assert call.lse is not None
        return AttentionMap(
            q=call.q.detach(),
            k=call.k.detach(),
            lse=call.lse.detach().to(working_dtype(call.q.dtype)),
            mask=call.mask,
            scale=call.scale,
            softcap=call.softcap,
            sinks=None if call.sinks is None else call.sinks.detach(),
            kept=call.kept,
        )

    def with_lse(self) -> AttentionCall:
        """Return the call with its lse, computed from q and k if the implementation gave none."""
        if self.lse is not None:
            return self
        with torch.no_grad():
            return self._replace(lse=self.attend_to(self.k)[1])

    def attend_to(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the attention of the call on values v (B, G, S, E): its output and its lse."""
        return attend(
            self.q,
            self.k,
            v,
            mask=self.mask,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            return_lse=True,
        )


class UnreadableCall(NamedTuple):
    """An attention call whose arguments could not be interpreted."""

    reason: str


def dropout_problem(p: float) -> str | None:
    """Return why an attention with dropout probability `p` cannot be certified, or None if `p` is 0."""
    return f"dropout {p} was on, which a map does not show" if p else None
