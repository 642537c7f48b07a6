"""`AttentionCall`: the inputs and the output of one attention call, whichever implementation computed it.

A linear-attention or state-space layer makes such a call, too, with a `Recurrence` in place of the softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal
from regard.maps import AttentionMap, LinearAttentionMap, linear_attention_map
from regard.maps.tile_passes.kept_overview import KeptOverview
from regard.recorder.certificates.certificate import OWN_OUTPUT
from regard.recorder.placement import Placement

Part = Literal["beside", "rows"]
"""How a call belongs to its module's earlier ones: tokens that do not see theirs, or the next rows."""


class Recurrence(NamedTuple):
    """What a linear layer has in place of the softmax, by the names of `regard.maps.linear_attention_map`."""

    decay: Tensor | None  # (B, H, T) or (B, H, T, D)
    beta: Tensor | None = None  # (B, H, T)
    skip: Tensor | None = None  # (H,)
    delta_rule: bool = False
    qk_norm: float | None = None
    initial_state: Tensor | None = None  # (B, H, D, E), None for zeros
    final_state: Tensor | None = None  # (B, H, D, E), None if it was not returned
    gate: Tensor | None = None  # (B, H, T, E), by which the kernel has multiplied the output
    convolution: int | None = None  # tokens over which a short convolution ran before

    def call(self, q: Tensor, k: Tensor, v: Tensor, output: Tensor, *, scale: float = 1.0) -> AttentionCall:
        """Return the call that computes an output (B, H, T, E) with it."""
        return AttentionCall(q, k, v, output, None, causal, scale, recurrence=self)

    def attention_map(self, q: Tensor, k: Tensor, scale: float) -> LinearAttentionMap:
        """Return the map of a call with queries and keys (B, G, T, D), without gradients."""
        return linear_attention_map(
            q,
            k,
            decay=self.decay,
            beta=self.beta,
            delta_rule=self.delta_rule,
            skip=self.skip,
            scale=scale,
            qk_norm=self.qk_norm,
        )


class AttentionCall(NamedTuple):
    """The inputs of one attention call and the output of the model's own implementation.

    With a recurrence, q and k are (B, G, T, D) and v is (B, H, T, E).
    """

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
    edited: Tensor | None = None  # (B, H, T, E) the output that an edit has put in place of this one
    replaced: Tensor | None = None  # boolean (H, T), where an edit put another output in place of the head's
    heads: tuple[int, ...] | None = None  # the numbers in the model of the heads, where ranks share them
    placement: Placement | None = None  # where it is in the model's layer, where ranks share the layer
    # Of all rows of the layer, where this rank has some of them; k has all keys.
    whole_mask: Mask | None = None
    kept: KeptOverview | None = None  # the overview that was computed with the output, by Regard's kernel
    recurrence: Recurrence | None = None  # of a linear layer; None for softmax attention
    against: str = OWN_OUTPUT  # a name for the output
    part: Part | None = None  # set if the module makes several calls, and this is not the first of them
    again: bool = False  # whether it applies the weights of an earlier call to other values
    if_unused: tuple[Callable[[], None], ...] = ()  # what to call if its module does not use the output

    @property
    def used(self) -> Tensor:
        """The output (B, H, T, E) with which the model goes on."""
        return self.output if self.edited is None else self.edited

    @property
    def num_heads(self) -> int:
        """The number of heads of the call."""
        return self.output.shape[1]

    @property
    def total_heads(self) -> int:
        """The number of heads of the layer in the model."""
        return self.num_heads if self.placement is None else self.placement.total_heads

    def numbers(self, heads: Sequence[int]) -> list[int]:
        """Return the numbers in the model of heads of this call."""
        return list(heads) if self.heads is None else [self.heads[head] for head in heads]

    def local_heads(self, numbers: Iterable[int]) -> list[int]:
        """Return which heads of this call have these numbers in the model: those that this rank has."""
        heads = range(self.num_heads) if self.heads is None else self.heads
        return [heads.index(number) for number in numbers if number in heads]

    def own_part(
        self, m: AttentionMap | LinearAttentionMap, v: Tensor
    ) -> tuple[AttentionMap | LinearAttentionMap, Tensor]:
        """Return what this rank keeps of its map and values: if ranks share the rows, its own keys only.

        Its mask is then that of all rows.
        """
        if self.whole_mask is None or self.placement is None or self.placement.keys is None:
            return m, v
        keys = torch.cat([torch.arange(*run, device="cpu") for run in self.placement.keys]).to(v.device)
        return m._with(k=m.k[:, :, keys], mask=self.whole_mask), v[:, :, keys]

    def attention_map(self) -> AttentionMap:
        """Return the map of a call of softmax attention, without gradients."""
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
            # Any values do for the lse; the keys are at hand.
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

    @property
    def edited(self) -> None:
        """No edit changes its output."""


Call = AttentionCall | UnreadableCall


def dropout_problem(p: float) -> str | None:
    """Return why an attention with dropout probability `p` cannot be certified, or None if `p` is 0."""
    return f"dropout {p} was on, which a map does not show" if p else None
