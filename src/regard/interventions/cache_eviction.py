"""`evict`: runs a model as if its cache held some of the keys only, by a policy of `regard.policies`.

Every layer chooses by its own queries and keys, those of the edited run, as a serving engine would: what the
layers below have lost is part of what it sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.interventions.edit import CallPlace, Edit, check_no_dropout, replace_output
from regard.interventions.head_selection import HeadSelection, Layer, select_heads
from regard.policies.measurement import attend_kept
from regard.policies.named_policies import find_policy
from regard.policies.policy import Policy, policy_of_layer
from regard.recorder.attention_call import AttentionCall


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

    def apply(self, call: AttentionCall, heads: list[int], place: CallPlace) -> AttentionCall:
        check_no_dropout(call, place, "keys are evicted")
        output = call.output if call.used is None else call.used
        new, changed = output.clone(), False
        policy = policy_of_layer(self.policy, place.layer)
        for rows, kept in attend_kept(call.attention_map(), call.v, policy, self.budget, self.every):
            new[:, :, rows], changed = kept.to(new.dtype), True
        return replace_output(call, heads, new[:, heads], None) if changed else call

    def __str__(self) -> str:
        return f"{self.selection} with {self.budget} keys by {self.policy}"
