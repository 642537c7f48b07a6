"""Every usage of the tutorials that the stages grew out of, as their readers type it: one case each.

Parameters are passed in the tutorials' order; `docs/reference/stages.md` lists what they are called there and
here.
"""

from __future__ import annotations

import contextlib
import io
import runpy
import unittest.mock
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.stages import (
    CachedMultiHeadAttention,
    CausalSelfAttention,
    CrossAttention,
    Head,
    MultiHeadAttention,
    ProjectedMultiHeadAttention,
    SelfAttention,
    SeparateHeads,
    SmallGPT,
    TransformerBlock,
    check_against_pytorch,
    efficient_masking,
    join_heads,
    naive_masking,
    simplified_self_attention,
)

USAGES: dict[str, Callable[[], None]] = {}


def usage(function: Callable[[], None]) -> Callable[[], None]:
    USAGES[function.__name__] = function
    return function


def close(a: Tensor, b: Tensor | list, atol: float = 6e-5) -> None:
    torch.testing.assert_close(a.double(), torch.as_tensor(b).double(), atol=atol, rtol=0)


def rows_sum_to_one(weights: Tensor) -> None:
    close(weights.sum(-1), torch.ones(weights.shape[:-1]), 1.2e-7 * 4)


@usage
def the_function() -> None:
    Q, K, V = torch.randn(3, 2, 5, 8)
    out, attn = regard.scaled_dot_product_attention(Q, K, V)
    assert out.shape == (2, 5, 8)
    rows_sum_to_one(attn)


@usage
def the_function_with_a_mask() -> None:
    Q, K, V = torch.randn(3, 2, 5, 8)
    _, attn = regard.scaled_dot_product_attention(Q, K, V, mask=regard.causal_mask(5))
    assert not attn.triu(1).any()


@usage
def the_mask() -> None:
    assert torch.equal(torch.as_tensor(regard.causal_mask(5)).bool(), torch.ones(5, 5).tril().bool())


@usage
def simplified() -> None:
    X = torch.randn(6, 3)
    out, weights = simplified_self_attention(X)
    close(weights, torch.softmax(X @ X.T, -1), 1e-6)
    close(out, weights @ X, 1e-6)


@usage
def self_attention() -> None:
    layer = SelfAttention(8)
    out, attn = layer(torch.randn(2, 5, 8))
    assert (out.shape, attn.shape) == ((2, 5, 8), (2, 5, 5))
    assert all(module.bias is None for module in layer.modules() if isinstance(module, nn.Linear))


@usage
def self_attention_with_a_mask() -> None:
    _, attn = SelfAttention(8)(torch.randn(2, 5, 8), mask=regard.causal_mask(5))
    assert not attn.triu(1).any()


@usage
def causal_self_attention() -> None:
    layer = CausalSelfAttention(8, 4)
    x = torch.randn(2, 4, 8)
    assert layer(x).shape == (2, 4, 8)
    names = ["W_q", "W_k", "W_v", "W_o"]
    assert [name for name, _ in layer.named_children()] == names
    assert all(getattr(layer, name).bias is None for name in names)
    _, weights = layer.attention(x)
    close(layer(x), layer.W_o(weights @ layer.W_v(x)), 1e-6)


@usage
def the_causal_buffer_is_sliced() -> None:
    layer = CausalSelfAttention(8, 16)
    assert layer.causal_mask.dtype == torch.bool
    assert "causal_mask" in dict(layer.named_buffers())
    assert layer(torch.randn(1, 3, 8)).shape == (1, 3, 8)


@usage
def seeded_causal_self_attention() -> None:
    torch.manual_seed(0)
    layer = CausalSelfAttention(8, 4)
    x = torch.randn(2, 4, 8)
    q, k = layer.W_q(x), layer.W_k(x)
    scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~layer.causal_mask, -torch.inf)
    expected = [
        [
            [1, 0, 0, 0],
            [0.7027, 0.2973, 0, 0],
            [0.3603, 0.3272, 0.3125, 0],
            [0.2419, 0.3202, 0.2101, 0.2279],
        ],
        [
            [1, 0, 0, 0],
            [0.5397, 0.4603, 0, 0],
            [0.3336, 0.3481, 0.3183, 0],
            [0.2586, 0.2269, 0.2453, 0.2692],
        ],
    ]
    close(torch.softmax(scores, -1), expected)
    close(layer.attention(x)[1], expected)


@usage
def head() -> None:
    layer = Head(32, 16, 8)
    assert layer(torch.randn(4, 8, 32)).shape == (4, 8, 16)
    assert Head(32, 16, 8, dropout=0.5).dropout.p == 0.5
    assert layer.dropout.p == 0.1


@usage
def dropout_is_on_the_weights_in_training() -> None:
    torch.manual_seed(0)
    _, weights = Head(8, 8, 16, 0.5).train().attention(torch.randn(1, 16, 8))
    assert (weights.sum(-1) - 1).abs().max() > 0.1


@usage
def seeded_scores_of_a_head() -> None:
    torch.manual_seed(42)
    x = torch.randn(4, 8, 32)
    layer = Head(32, 16, 8)
    scaled = layer.W_q(x) @ layer.W_k(x).transpose(-2, -1) / 16**0.5
    assert scaled.std().item() == pytest.approx(0.351, abs=5e-4)


@usage
def by_hand() -> None:
    layer = Head(2, 2, 3).eval()
    for projection in (layer.W_q, layer.W_k, layer.W_v):
        nn.init.eye_(projection.weight)
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    close(layer(x), [[1, 0], [0.3302, 0.6698], [0.7517, 0.7517]])


@usage
def multi_head_attention() -> None:
    layer = MultiHeadAttention(3, 4, 2)
    assert layer(torch.randn(5, 6, 3)).shape == (5, 6, 4)
    assert layer.head_dim == 2
    assert {"W_q", "W_k", "W_v"} <= {name for name, _ in layer.named_children()}
    assert MultiHeadAttention(3, 4, 2, dropout=0.0).dropout.p == 0


@usage
def multi_head_attention_with_an_output_projection() -> None:
    layer = ProjectedMultiHeadAttention(8, 2)
    assert layer(torch.randn(2, 5, 8)).shape == (2, 5, 8)
    assert layer.W_o.bias is None


@usage
def one_big_projection_equals_one_per_head() -> None:
    separate = SeparateHeads(8, 8, 2).eval()
    x = torch.randn(2, 5, 8)
    close(join_heads(separate).eval()(x), separate(x), 1e-6)


@usage
def naive_and_efficient_masking() -> None:
    scores, mask = torch.randn(5, 5), torch.ones(5, 5).tril().bool()
    close(naive_masking(scores, mask), efficient_masking(scores, mask), 1e-6)


@usage
def naive_masking_fails_where_the_past_underflows() -> None:
    scores, mask = torch.tensor([[-200.0, 0.0], [0.0, 0.0]]), torch.ones(2, 2).tril().bool()
    assert naive_masking(scores, mask)[0].isnan().any()
    assert torch.equal(efficient_masking(scores, mask)[0], torch.tensor([1.0, 0.0]))


@usage
def against_pytorch() -> None:
    check_against_pytorch()


@usage
def a_sanity_check_run_as_a_module() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), unittest.mock.patch("sys.argv", ["regard.stages"]):
        runpy.run_module("regard.stages", run_name="__main__")  # as python -m does, without another process
    assert "0.4855" in printed.getvalue()  # of the causal weights


@usage
def cross_attention() -> None:
    out, weights = CrossAttention(8)(torch.randn(2, 3, 8), torch.randn(2, 5, 8))
    assert (out.shape[:2], weights.shape[-2:]) == ((2, 3), (3, 5))


@usage
def a_cache_gives_the_same() -> None:
    layer = CachedMultiHeadAttention(8, 2).eval()
    x = torch.randn(1, 5, 8)
    whole, _ = layer(x)
    first, cache = layer(x[:, :4])
    last, _ = layer(x[:, 4:], cache)
    close(torch.cat([first, last], 1), whole, 1e-6)


@usage
def a_block_and_a_small_gpt() -> None:
    assert TransformerBlock(8, 2)(torch.randn(2, 5, 8)).shape == (2, 5, 8)
    model = SmallGPT(vocab_size=20, d_model=8, num_heads=2, num_layers=2, max_seq_len=6)
    assert model(torch.randint(0, 20, (2, 6))).shape == (2, 6, 20)


@usage
def softmax_saturates() -> None:
    close(torch.softmax(torch.tensor([1.0, 2.0, 3.0]), -1), [0.0900, 0.2447, 0.6652])
    sharp = torch.softmax(torch.tensor([8.0, 16.0, 24.0]), -1)
    assert sharp.tolist() == pytest.approx([1.125e-07, 3.3535e-04, 0.99966], rel=5e-4)


@pytest.mark.parametrize("name", USAGES)
def test_it_runs_as_it_is_typed(name: str) -> None:
    torch.manual_seed(0)
    USAGES[name]()


def test_there_are_twenty_four() -> None:
    assert len(USAGES) == 24
