"""Queries, keys, values and merged heads are found among the numbers of a module's layers."""

import math

import torch
from torch import nn

from regard.checker.interpretation.cases import Cases
from regard.checker.subject.adapt import adapt
from regard.checker.subject.inside import find_inside


def split(x):
    return x.unflatten(-1, (4, 12)).transpose(1, 2)


class Nameless(nn.Module):
    """Four layers in an order that says nothing, a norm before them and a residual around them."""

    def __init__(self):
        super().__init__()
        self.first = nn.LayerNorm(48)
        self.a, self.b, self.c, self.d = (nn.Linear(48, 48) for _ in range(4))

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def forward(self, x):
        y = self.first(x)
        q, k, v = split(self.c(y)), split(self.a(y)), split(self.d(y))
        T = q.shape[-2]
        scores = (q @ k.mT / math.sqrt(12)).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return x + self.b(self.merge(scores.softmax(-1) @ v))


class MergedByView(Nameless):
    def merge(self, x):
        return x.reshape(x.shape[0], x.shape[2], -1)


class Fused(nn.Module):
    """One layer whose channels are (H, 3, D), and no projection after the heads."""

    def __init__(self):
        super().__init__()
        self.only = nn.Linear(48, 144)

    def forward(self, x):
        q, k, v = (split(part.flatten(2)) for part in self.only(x).unflatten(-1, (4, 3, 12)).unbind(-2))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def inside_of(module):
    subject = adapt(module, {}, None)
    return find_inside(subject, Cases(subject, 48, 48))


def test_layers_without_names_inside_a_norm_and_a_residual():
    inside, wiring = inside_of(Nameless())
    assert inside.describe() == "compared from `c`, `a`, `d` to `b`"
    question = Cases(inside, 48, 48).plain(B=2, T=5)
    assert torch.allclose(
        wiring.finish(attend(wiring, question), None)[0], inside.run(question).answer.output
    )


def attend(wiring, question):
    q, k, v = wiring.project(question)
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_the_channels_of_a_fused_layer():
    inside, _ = inside_of(Fused())
    starts = [inside.places[role].channels[:13] for role in ("query", "key", "value")]
    assert starts == [(*range(s, s + 12), s + 36) for s in (0, 12, 24)]
    assert "merged" not in inside.places  # they are the output


def test_heads_that_are_merged_in_another_order_are_not_found():
    assert inside_of(MergedByView()) is None


def test_what_mixes_no_tokens_has_no_attention():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(48, 48)

        def forward(self, x):
            return self.inner(x)

    assert inside_of(Wrapped()) is None
