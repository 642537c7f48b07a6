"""The right output for a learner's own projections, computed here, and what usual mistakes give in its place.

The checker leaves what surrounds the attention alone, such as a residual; a lesson asks for an exact output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from regard.learn.judges.common.relations import TOLERANCE, is_equal, largest_difference
from regard.learn.judges.common.verdicts import Variant, attend, reject_variants
from regard.learn.lesson import NotDoneError, Outcome

NAN = 9.0  # in place of NaN, and no weight
Turn = Callable[[Tensor], Tensor]
MERGED = "the heads side by side, none of them added: .transpose(1, 2).reshape(B, T, H * head_dim)"
ONE_MAP_EACH = (
    "a map for each head, and the heads stand after the texts: torch.stack(…, dim=1) of one map each"
)
OWN_CHANNELS = "head h takes the channels h * head_dim to (h + 1) * head_dim of q, of k and of v"


def check_output(
    layer: Any, x: Tensor, num_heads: int, formula: str, outcome: Outcome, turn: Turn = lambda t: t
) -> None:
    """Compare the results of a causal layer with those of its own projections; raise what is wrong.

    Arguments:
        layer: the learner's module, with `W_q`, `W_k`, `W_v` and perhaps `W_o`.
        x: tokens (B, T, d_model).
        num_heads: the number of its heads.
        formula: what the output should be, in the lesson's names.
        outcome: what the checker has said; if that names a mistake, it is the answer.
        turn: what queries and keys (B, H, T, head_dim) go through.
    """
    if outcome.mistake not in ("", "one-projection", "zero-times-infinity"):
        raise NotDoneError.of(outcome)
    with torch.no_grad():
        out, weights = attend(layer.eval(), x)
    if outcome.mistake == "one-projection":
        reject_variants(out, _shared_projections(layer, x, num_heads, turn))
        raise NotDoneError.of(outcome)
    if outcome.mistake:  # NaN has other causes, too, such as a row in which nothing is visible
        reject_variants(weights.nan_to_num(NAN), wrong_weights(layer, x, num_heads, turn))
        raise NotDoneError.of(outcome)
    right = causal_output(layer, x, num_heads, turn, turn, lambda t: t)
    difference = largest_difference(out, right)
    if difference < TOLERANCE and outcome.status == "done":
        check_weights(weights, causal_weights(layer, x, num_heads, turn, turn))
        return
    reject_variants(out, _wrong_outputs(layer, x, num_heads, turn))
    hint = f"out is {formula}, and nothing is added to it"
    if outcome.status != "done":
        reject_variants(weights.nan_to_num(NAN), wrong_weights(layer, x, num_heads, turn))
        if not is_equal(weights, causal_weights(layer, x, num_heads, turn, turn)):
            raise NotDoneError.of(replace(outcome, hint=outcome.hint or hint))
        hint = f"{hint}; head 0 is weights[:, 0] @ v[:, 0], and its channels come first"
    said = f"the weights are right; the output differs from {formula} by up to {difference:.2g}"
    raise NotDoneError(said, hint=hint)


def check_weights(weights: Tensor, right: Tensor) -> None:
    """Raise what is wrong with the weights that come with a right output."""
    if is_equal(weights, right):
        return
    sums = weights.sum(dim=-1)
    are_scores = not is_equal(sums, torch.ones_like(sums))
    reason = ": its rows do not sum to 1. Are these the scores?" if are_scores else ""
    said = f"the output is right, and what is returned beside it are not the weights that made it{reason}"
    raise NotDoneError(said, hint="return the weights after softmax as the second result")


def wrong_weights(layer: Any, x: Tensor, num_heads: int, turn: Turn = lambda t: t) -> Iterator[Variant]:
    """Yield the weights that wrong masks, scales and axes give, one of them or several, with NaN as a number.

    Of several mistakes the first is named, in the order of the formula.
    """
    q, k = turn(_split(layer.W_q, x, num_heads)), turn(_split(layer.W_k, x, num_heads))
    every = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    width = q.shape[-1]
    scales = {"": width**0.5, "no-scale": 1.0, "scaled-by-width": width}
    masks = {
        "": every.tril(),
        "no-mask": every,
        "missing-diagonal": every.tril(-1),
        "transposed-mask": every.triu(),
        "inverted-mask": every.triu(1),
    }
    axes = {"": -1, "softmax-over-queries": -2, "softmax-over-heads": 1}
    for mistakes in list(product(scales, masks, axes))[1:]:
        scale, mask, axis = mistakes
        scores = (q @ k.mT / scales[scale]).masked_fill(~masks[mask], -torch.inf)
        weights = torch.softmax(scores, dim=axes[axis]).nan_to_num(NAN)
        yield Variant(weights, next(filter(None, mistakes)))


def _shared_projections(layer: Any, x: Tensor, num_heads: int, turn: Turn) -> Iterator[Variant]:
    """Yield the outputs of a layer in which one projection serves two roles."""
    roles = {"q": "queries", "k": "keys", "v": "values"}
    for role, other in permutations(roles, 2):
        shared = SimpleNamespace(**layer._modules)
        setattr(shared, f"W_{role}", getattr(layer, f"W_{other}"))
        said = f"The {roles[role]} are made by W_{other}, and W_{role} is not used."
        out = causal_output(shared, x, num_heads, turn, turn, lambda t: t)
        yield Variant(out, "one-projection", said, f"{role} = self.W_{role}(x)")


def _wrong_outputs(layer: Any, x: Tensor, num_heads: int, turn: Turn) -> Iterator[Variant]:
    """Yield what a causal layer gives if one head is read by all, or if its output is treated wrongly."""

    def output(*turns: Turn) -> Tensor:
        return causal_output(layer, x, num_heads, *turns)

    def first(heads: Tensor) -> Tensor:
        return heads[:, :1].expand_as(heads)

    def stay(heads: Tensor) -> Tensor:
        return heads

    for what, turns in (
        ("queries", (lambda q: first(turn(q)), turn, stay)),
        ("keys", (turn, lambda k: first(turn(k)), stay)),
        ("values", (turn, turn, first)),
        ("keys and values", (turn, lambda k: first(turn(k)), first)),
    ):
        yield Variant(output(*turns), said=f"every head takes the {what} of head 0", hint=OWN_CHANNELS)
    right, heads = output(turn, turn, stay), causal_heads(layer, x, num_heads, turn, turn, stay)
    if right.shape == x.shape:
        said = "x is added to the output; that belongs to the block (lesson 10), not to the attention"
        yield Variant(x + right, said=said, hint="return the output alone")
    own = _mixed(layer, _split(layer.W_v, x, num_heads).transpose(1, 2).flatten(2))
    said = "every token gets its own value: the weights are summed, and the values of other tokens never read"
    yield Variant(own, said=said, hint='weights @ v, or torch.einsum("bhts,bhsd->bhtd", weights, v)')
    if hasattr(layer, "W_o") and layer.W_o.in_features == layer.W_o.out_features:
        said = "nn.Linear multiplies by its weight transposed, and here it is not"
        yield Variant(heads @ layer.W_o.weight.detach(), said=said, hint="call it: self.W_o(heads)")


def causal_output(layer: Any, x: Tensor, num_heads: int, *turns: Turn) -> Tensor:
    """Return the output of a causal layer's own projections, its q, k and v each turned by one of `turns`."""
    return _mixed(layer, causal_heads(layer, x, num_heads, *turns))


def causal_heads(layer: Any, x: Tensor, num_heads: int, *turns: Turn) -> Tensor:
    """Return the concatenated outputs of the heads (B, T, H · head_dim)."""
    turn_q, turn_k, turn_v = turns
    values = turn_v(_split(layer.W_v, x, num_heads))
    return (causal_weights(layer, x, num_heads, turn_q, turn_k) @ values).transpose(1, 2).flatten(2)


def causal_weights(
    layer: Any, x: Tensor, num_heads: int, turn_q: Turn = lambda q: q, turn_k: Turn = lambda k: k
) -> Tensor:
    """Return the weights (B, H, T, T) of the layer's own queries and keys."""
    q, k = turn_q(_split(layer.W_q, x, num_heads)), turn_k(_split(layer.W_k, x, num_heads))
    visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf), dim=-1)


def _split(projection: Any, x: Tensor, num_heads: int) -> Tensor:
    with torch.no_grad():
        projected: Tensor = projection(x)
    return projected.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def _mixed(layer: Any, heads: Tensor) -> Tensor:
    with torch.no_grad():
        return layer.W_o(heads) if hasattr(layer, "W_o") else heads
