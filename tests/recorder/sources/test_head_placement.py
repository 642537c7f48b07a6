"""Heads of a rank that nothing shows are refused; two ranks that number theirs run in `distributed`."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed, nn

import regard
from regard.recorder.attention_call import AttentionCall, UnreadableCall
from regard.recorder.sources import rank_placement
from regard.recorder.sources.rank_placement import Slice, place_heads

WIDTH = 8


class Attention(nn.Module):
    """A module of some heads, with the config of its model."""

    def __init__(self, config=None):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(4, 4), nn.Linear(4, 4)
        self.config = config


def a_call(H, G):
    q, k = torch.randn(1, H, 5, WIDTH), torch.randn(1, G, 5, WIDTH)
    return AttentionCall(q, k, k, q.clone(), None, regard.causal, 1.0)


def place(monkeypatch, slices, call):
    """Place the heads of a call by a module whose parameters are split like this."""
    module = Attention(SimpleNamespace(num_key_value_heads=None))
    parts = {id(parameter): slices.get(name) for name, parameter in module.named_parameters()}
    monkeypatch.setattr(rank_placement, "is_dtensor", lambda x: id(x) in parts)
    monkeypatch.setattr(rank_placement, "local_slice", lambda x: parts[id(x)])
    return place_heads(module, None, call)


@pytest.mark.parametrize(
    ("slices", "call", "message"),
    [
        ({"q_proj.weight": Slice(0, 16, 16, 32)}, a_call(2, 2), "no output projection, or several"),
        (
            {"o_proj.weight": Slice(1, 16, 16, 32), "q_proj.weight": Slice(1, 0, 16, 32)},
            a_call(2, 2),
            "no output projection, or several",
        ),
        ({"o_proj.weight": Slice(1, 12, 16, 32)}, a_call(2, 2), "is cut inside a head, at 12 of 32"),
        (
            {"o_proj.weight": Slice(1, 16, 16, 32)},
            a_call(2, 3),
            "it has 3 key/value heads for heads 2 to 3 of 4",
        ),
    ],
)
def test_an_order_that_nothing_shows_is_refused(monkeypatch, slices, call, message):
    placed = place(monkeypatch, slices, call)
    assert isinstance(placed, UnreadableCall)
    assert "nothing shows which of the model's heads this rank has" in placed.reason
    assert message in placed.reason


def test_a_split_that_no_parameter_shows_is_refused(monkeypatch):
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    module = Attention(SimpleNamespace(num_attention_heads=4))
    assert isinstance(place_heads(module, None, a_call(2, 2)), UnreadableCall)
    whole = a_call(4, 4)
    assert place_heads(module, None, whole) is whole
