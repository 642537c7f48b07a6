"""Queries, keys, values and merged heads are found by what they do, whatever their names."""

import math

import pytest
import torch
from torch import nn

from regard.checker.interpretation.cases import Cases
from regard.checker.subject.adapt import adapt
from regard.checker.subject.roles import observe_core


def attend(q, k, v):
    T = q.shape[-2]
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def split(x):
    return x.unflatten(-1, (4, 12)).transpose(1, 2)


class Nameless(nn.Module):
    """Four layers in an order that says nothing, a norm before them and a residual around them."""

    def __init__(self):
        super().__init__()
        self.first, self.a, self.b, self.c, self.d = (
            nn.LayerNorm(48),
            *(nn.Linear(48, 48) for _ in range(4)),
        )

    def forward(self, x):
        y = self.first(x)
        mixed = attend(split(self.c(y)), split(self.a(y)), split(self.d(y)))
        return x + self.b(mixed.transpose(1, 2).flatten(2))


class Fused(nn.Module):
    """One parameter (3, H, C, D), and einsum on both sides."""

    def __init__(self):
        super().__init__()
        self.w, self.o = nn.Parameter(torch.randn(3, 4, 48, 12)), nn.Parameter(torch.randn(4, 12, 48))

    def forward(self, x):
        q, k, v = torch.einsum("btc,xhcd->xbhtd", x, self.w)
        return torch.einsum("bhtd,hdc->btc", attend(q, k, v), self.o)


class Shared(nn.Module):
    """One layer for everything."""

    def __init__(self):
        super().__init__()
        self.only, self.last = nn.Linear(48, 48), nn.Linear(48, 48)

    def forward(self, x):
        y = split(self.only(x))
        return self.last(attend(y, y, y).transpose(1, 2).flatten(2))


def core_of(module):
    subject = adapt(module, {}, None)
    return observe_core(subject, Cases(subject, 48, 48), torch.float64, 4)


def test_layers_without_names_inside_a_norm_and_a_residual():
    core = core_of(Nameless())
    paths = {role: names[0].removesuffix(".weight") for role, names in core.paths.items()}
    assert paths == {"query": "c", "key": "a", "value": "d", "out": "b"}
    assert "first.weight" in core.surroundings


def test_the_channels_of_a_fused_parameter():
    core = core_of(Fused())
    channels = [places[0].channels for places in (core.query, core.key, core.value)]
    assert [(c[0], c[-1]) for c in channels] == [(0, 47), (48, 95), (96, 143)]
    assert core.head_axes


def test_one_layer_in_every_role():
    core = core_of(Shared())
    assert core.query == core.key == core.value
    assert core.paths["out"] == ("last.weight",)


@pytest.mark.parametrize("module", [nn.Linear(48, 48), nn.Sequential(nn.Linear(48, 48), nn.ReLU())], ids=str)
def test_what_mixes_no_tokens_has_no_core(module):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x)

    assert core_of(Wrapped()) is None
