"""Lesson 7: heads that an output projection mixes, and attention to a second sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.checker.catalogue import get_mistake
from regard.learn.judges.common.first_run import OutputShape, first_run
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.relations import is_equal
from regard.learn.judges.common.verdicts import (
    Variant,
    check_attention,
    example_picture,
    reject_variants,
    seeking_keys,
    seeking_queries,
)
from regard.learn.judges.own_projections import MERGED, ONE_MAP_EACH, check_output, check_weights
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.stages.example import TOKENS, X, with_weights

HEADS, CROSS = "ProjectedMultiHeadAttention", "CrossAttention"
HEADS_INIT: dict[str, Any] = {"d_model": 24, "num_heads": 4}
CROSS_INIT: dict[str, Any] = {"d_model": 24, "d_context": 20}


def judge_heads(thing: Any, module: ModuleType) -> Outcome:
    """Run the module once, then check it."""
    out = OutputShape((2, 6, 24), "(B, T, d_model)", MERGED)
    weights = OutputShape((2, 4, 6, 6), "(B, H, T, T)", ONE_MAP_EACH)
    projections = ("W_q", "W_k", "W_v", "W_o")
    x = torch.randn(2, 6, 24)
    first_run(HEADS, thing, HEADS_INIT, (x,), out, weights, projections)
    if thing(**HEADS_INIT).W_o.bias is not None:
        said = (
            "W_o has a bias, and its line asks for none: the output is a mix of the heads, and nothing else"
        )
        raise NotDoneError(said, hint="self.W_o = nn.Linear(d_model, d_model, bias=False)")
    width = thing(**HEADS_INIT).W_o.weight.shape
    if width != (24, 24):
        said = (
            f"with d_model 24 and 4 heads, W_o takes {width[1]} numbers and gives {width[0]}, and should "
            "take and give 24: it mixes the channels of all heads, and so comes after they are merged"
        )
        raise NotDoneError(said, hint="self.W_o = nn.Linear(d_model, d_model, bias=False)")
    done = "the attention of a transformer: what a head has found can reach every channel."
    outcome = check_attention(HEADS, thing, done, init=HEADS_INIT, causal=True, heads=4)
    check_output(thing(**HEADS_INIT), x, 4, "W_o(heads)", outcome)
    return outcome


def judge_cross(thing: Any, module: ModuleType) -> Outcome:
    """Ask which sequence each role comes from, run the module on two widths, then check it."""
    sources = _sources(thing)
    if sources is not None and sources[0] == "context":
        said = "The queries come from the context: the tokens of x ask, those of the context are read."
        raise NotDoneError(said, hint="q = self.W_q(x)")
    if sources is not None and "x" in sources[1:]:
        ignored = get_mistake("context-ignored")
        roles = [role for role, of in zip(("keys", "values"), sources[1:], strict=True) if of == "x"]
        raise NotDoneError(
            f"{ignored.effect} Your {' and '.join(roles)} come from x.",
            ignored.name,
            "k, v = self.W_k(context), self.W_v(context)",
        )
    inputs = torch.randn(2, 3, 24), torch.randn(2, 6, 20)
    out, weights = OutputShape((2, 3, 24), "(B, T, d_model)"), OutputShape((2, 3, 6), "(B, T, S)")
    first_run(CROSS, thing, CROSS_INIT, inputs, out, weights)
    if not torch.triu(thing(**CROSS_INIT).eval()(*inputs)[1], 1).any():
        said = (
            "A causal mask hides most of the context: token i of x sees i tokens of it. All of it is there."
        )
        raise NotDoneError(said, hint="no mask: weights = torch.softmax(scores, dim=-1)")
    done = "one sequence reads another, of another length and another width."
    outcome = check_attention(CROSS, thing, done, init=CROSS_INIT, causal=False)
    with torch.no_grad():
        layer = thing(**CROSS_INIT).eval()
        q, k, v = layer.W_q(inputs[0]), layer.W_k(inputs[1]), layer.W_v(inputs[1])
        out, answer = layer(*inputs)
        right = torch.softmax(q @ k.mT / k.shape[-1] ** 0.5, dim=-1)
    too_sharp = torch.softmax(q @ k.mT / inputs[1].shape[-1] ** 0.5, dim=-1)
    if outcome.mistake == "constant-scale" and is_equal(answer, too_sharp):
        said = "the scores are divided by √d_context, the width of the context; a key is as wide as a query"
        raise NotDoneError(said, hint="divide by the root of a key's width")
    if outcome.mistake in ("", "one-projection") and outcome.status != "done":
        reject_variants(out, _wrong_cross_outputs(inputs[0], q, k, v))
    if outcome.status != "done":
        return outcome
    check_weights(answer, right)
    return replace(outcome, picture=_picture(thing))


def _wrong_cross_outputs(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Iterator[Variant]:
    """Yield the outputs of a residual, and of keys or values that another projection makes."""
    attend = F.scaled_dot_product_attention
    said = "x is added to the output; that belongs to the block (lesson 10), not to the attention"
    yield Variant(x + attend(q, k, v), said=said, hint="return the output alone: weights @ v")
    for keys, values, said, hint in (
        (v, v, "The keys are made by W_v, and W_k is not used.", "k = self.W_k(context)"),
        (k, k, "The values are made by W_k, and W_v is not used.", "v = self.W_v(context)"),
    ):
        yield Variant(attend(q, keys, values), "one-projection", said, hint)


def _sources(thing: Any) -> tuple[str, ...] | None:
    """Which sequence the queries, keys and values come from, told from the output; None if it is neither."""
    try:
        cross = thing(24, 24).eval()
        # The same width and length for both, so that a module that confuses them still runs.
        sequences = {"x": torch.randn(1, 5, 24), "context": torch.randn(1, 5, 24)}
        with torch.no_grad():
            out, _ = cross(sequences["x"], sequences["context"])
            for sources in product(sequences, repeat=3):
                layers = zip((cross.W_q, cross.W_k, cross.W_v), sources, strict=True)
                q, k, v = (layer(sequences[source]) for layer, source in layers)
                if is_equal(out, F.scaled_dot_product_attention(q, k, v)):
                    return sources
    except Exception:
        pass  # any error of the learner's class; it is run again, and the error explained
    return None


def _picture(thing: Any) -> WeightPicture:
    """The weights of the learner's module: the last two tokens of the running example read all six."""
    cross = thing(3, 3).eval()
    square = torch.zeros(3, 1)
    queries, keys = torch.cat([seeking_queries(), square], 1), torch.cat([seeking_keys(1, 0), square], 1)
    with_weights(cross, W_q=queries, W_k=keys, W_v=torch.eye(3))
    with torch.no_grad():
        _, weights = cross(X[None, 4:], X[None])
    return example_picture(["two tokens read six"], [weights[0]], rows=list(TOKENS[4:]))


TASKS = (
    Task(HEADS, judge_heads, trials=(Trial((draw(2, 6, 24),), HEADS_INIT),)),
    Task(CROSS, judge_cross, trials=(Trial((draw(2, 3, 24), draw(2, 6, 20)), CROSS_INIT),)),
    guess_task("output", "weights_in_the_map"),
)
