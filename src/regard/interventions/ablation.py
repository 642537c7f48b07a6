"""`ablate` and `evict`: other outputs of heads, before the output projection.

`ablate` replaces them by zeros, means or a tensor. `evict` gives what the heads would if their cache held
some of the keys only, by a policy of `regard.policies`: every layer chooses by its own queries and keys,
those of the edited run, as a serving engine would: what the layers below have lost is part of what it sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.interventions.edit import CallPlace, Edit, Positions, PositionSet, check_no_dropout
from regard.interventions.head_selection import Heads, HeadSelection, Layer, select_heads
from regard.policies.measurement import attend_kept
from regard.policies.named_policies import find_policy
from regard.policies.policy import Policy, policy_of_layer
from regard.recorder.attention_call import AttentionCall

Replacement = Literal["zero"] | Mapping[int | str, Tensor] | Tensor
"""What stands in for an output: zeros, the means by layer of `mean_outputs`, or a tensor."""


def ablate(
    layer: Layer | None = None,
    head: int | Sequence[int] | None = None,
    by: Replacement = "zero",
    *,
    heads: Heads | None = None,
    positions: Positions | None = None,
) -> Edit:
    """An edit that replaces the output of a head, before the output projection.

    - `layer`: the layer's number, or its key such as "decoder.3" where the model has several stacks.
    - `head`: the head's number, several, or None for all heads of the layer.
    - `by`: "zero"; the means of `regard.interventions.mean_outputs(model, texts)`; or a tensor that
      broadcasts to (B, T, E) for one head and to (B, heads, T, E) for several, where E is the width of a
      value.
    - `heads`: instead of layer and head: pairs (layer, head), rows of a table such as
      `seen.heads().where(label="sink")`, or a label such as "induction", whose heads are found by reading
      random tokens that are repeated.
    - `positions`: the queries at which the output is replaced; None for all.

    >>> import regard
    >>> print(regard.ablate(5, 3))
    head 5.3 set to zero
    """
    if not (isinstance(by, Tensor | Mapping) or (isinstance(by, str) and by == "zero")):
        raise ValueError(
            f'by: expected "zero", the means of regard.interventions.mean_outputs or a tensor, got {by!r:.80}'
        )
    at = None if positions is None else PositionSet.of("positions", positions)
    return Ablation(select_heads(layer, head, heads), by, positions=at)


@dataclass(frozen=True)
class Ablation(Edit):
    """Replaces the output of heads; see `ablate`."""

    by: Replacement

    def new_output(self, call: AttentionCall, heads: list[int], place: CallPlace) -> Tensor:
        B, H, T, E = call.output.shape
        if isinstance(self.by, str):
            return call.output.new_zeros(())
        if isinstance(self.by, Tensor):
            new = self.by.to(call.output.device)
            new = new.unsqueeze(-3) if len(heads) == 1 and new.ndim == 3 else new
            try:
                return new.expand(B, len(heads), T, E)
            except RuntimeError:
                expected = f"({B}, {T}, {E})" if len(heads) == 1 else f"({B}, {len(heads)}, {T}, {E})"
                raise ValueError(
                    f"by: expected a tensor that broadcasts to {expected}, got {tuple(new.shape)}"
                ) from None
        means = self.by.get(place.layer)
        if means is None:
            keys = ", ".join(map(repr, self.by))
            raise ValueError(f"by: expected means of layer {place.layer!r}, got those of {keys}")
        if tuple(means.shape) != (H, E):
            raise ValueError(
                f"by: expected means ({H}, {E}) for layer {place.layer}, a mean a head, "
                f"got {tuple(means.shape)}"
            )
        return means.to(call.output.device)[heads].unsqueeze(1)  # (heads, 1, E)

    def __str__(self) -> str:
        to = "zero" if isinstance(self.by, str) else "a tensor" if isinstance(self.by, Tensor) else "its mean"
        where = "" if self.positions is None else f" at {self.positions}"
        return f"{self.selection} set to {to}{where}"


def evict(policy: Any, budget: int, *, layer: Layer | None = None, every: int | None = None) -> Edit:
    """An edit that lets queries read only the keys that a cache policy has kept.

    - `policy`: a name such as "h2o", one of `regard.policies` with its settings, or a function of a
      `regard.policies.CacheState`. For a fixed mask, write `regard.block`.
    - `budget`: the number of keys that a cache has room for, for each key/value head.
    - `layer`: the layer's number or key; None for all layers.
    - `every`: how many keys are evicted at a time, by default an eighth of the budget.

    The text is read in one forward pass, in which each query sees what the cache would hold at its time.

    >>> import regard
    >>> print(regard.evict("h2o", 256))
    all layers with 256 keys by h2o
    """
    found = find_policy(policy)
    if isinstance(found, str | Mask):
        raise ValueError(f"policy: expected one with a budget, got {found}: write regard.block for a mask")
    budget = check_whole_number("budget", budget)
    every = None if every is None else check_whole_number("every", every, 1, budget)
    selection = HeadSelection(everything=True) if layer is None else select_heads(layer)
    return CacheEviction(selection, found, budget, every)


@dataclass(frozen=True)
class CacheEviction(Edit):
    """Lets queries read only the keys that a policy keeps; see `evict`."""

    policy: Policy
    budget: int
    every: int | None = None

    def new_output(self, call: AttentionCall, heads: list[int], place: CallPlace) -> Tensor | None:
        check_no_dropout(call, place, "keys are evicted")
        new, changed = call.used.clone(), False
        policy = policy_of_layer(self.policy, place.layer)
        for rows, kept in attend_kept(call.attention_map(), call.v, policy, self.budget, self.every):
            new[:, :, rows], changed = kept.to(new.dtype), True
        return new[:, heads] if changed else None

    def __str__(self) -> str:
        return f"{self.selection} with {self.budget} keys by {self.policy}"
