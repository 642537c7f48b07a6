"""The stages: names, signatures and attributes that their readers expect; results; kind errors."""

import pytest
import torch

import regard
from regard.stages import (
    CachedMultiHeadAttention,
    CausalSelfAttention,
    CrossAttention,
    Head,
    LearnedPositions,
    MultiHeadAttention,
    PositionalAttention,
    ProjectedMultiHeadAttention,
    SelfAttention,
    SeparateHeads,
    SmallGPT,
    TransformerBlock,
    UnscaledSelfAttention,
    alibi_bias,
    check_against_pytorch,
    efficient_masking,
    naive_masking,
    rotate,
    simplified_self_attention,
)
from tests.sampling import together

LAYERS = {
    "UnscaledSelfAttention": lambda: UnscaledSelfAttention(8),
    "SelfAttention": lambda: SelfAttention(8),
    "CausalSelfAttention": lambda: CausalSelfAttention(8, 6),
    "Head": lambda: Head(8, 4, 6),
    "SeparateHeads": lambda: SeparateHeads(8, 6, 3),
    "MultiHeadAttention": lambda: MultiHeadAttention(8, 6, 3),
    "ProjectedMultiHeadAttention": lambda: ProjectedMultiHeadAttention(8, 2),
    "LearnedPositions": lambda: LearnedPositions(8, 6),
    "PositionalAttention": lambda: PositionalAttention(8, 2),
    "PositionalAttention(alibi)": lambda: PositionalAttention(8, 2, "alibi"),
    "CachedMultiHeadAttention": lambda: CachedMultiHeadAttention(8, 2),
    "TransformerBlock": lambda: TransformerBlock(8, 2),
}
BOUNDED = ("CausalSelfAttention", "Head", "LearnedPositions")


def output(result):
    return result[0] if isinstance(result, tuple) else result


THREE = {"W_q", "W_k", "W_v"}


@pytest.mark.parametrize(
    ("name", "projections"),
    [
        ("UnscaledSelfAttention", THREE),
        ("SelfAttention", THREE),
        ("CausalSelfAttention", THREE | {"W_o"}),
        ("Head", THREE),
        ("SeparateHeads", {f"{W}.{h}" for W in THREE for h in range(3)}),
        ("MultiHeadAttention", THREE),
        ("ProjectedMultiHeadAttention", THREE | {"W_o"}),
        ("PositionalAttention", THREE | {"W_o"}),
        ("CachedMultiHeadAttention", THREE | {"W_o"}),
    ],
)
def test_projections_have_these_names_and_no_bias_and_nothing_else_is_saved(name, projections):
    assert set(LAYERS[name]().state_dict()) == {f"{projection}.weight" for projection in projections}


@pytest.mark.parametrize("name", ["CausalSelfAttention", "Head"])
def test_masks_are_boolean_buffers_that_say_what_is_visible(name):
    layer = LAYERS[name]()
    assert torch.equal(dict(layer.named_buffers())["causal_mask"], torch.ones(6, 6).tril().bool())
    assert layer.to("meta").causal_mask.device.type == "meta"  # it moves with the module


@pytest.mark.parametrize("name", LAYERS)
@together("shape", [(2, 6, 8), (6, 8), (2, 3, 5, 8), (2, 0, 8), (0, 8), (0, 6, 8), (1, 1, 8)])
def test_any_batch_and_length_even_none(name, shape):
    result = output(LAYERS[name]()(torch.randn(shape)))
    width = {"Head": 4, "SeparateHeads": 6, "MultiHeadAttention": 6}.get(name, 8)
    assert result.shape == (*shape[:-1], width)


@pytest.mark.parametrize("name", LAYERS)
@together("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_any_float_dtype_and_a_gradient(name, dtype):
    layer, x = LAYERS[name]().to(dtype), torch.randn(2, 6, 8, dtype=dtype, requires_grad=True)
    result = output(layer(x))
    assert result.dtype == dtype
    result.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_dropout_acts_on_the_weights_in_training_only():
    head, x = Head(8, 4, 64, dropout=0.5), torch.randn(64, 8)
    _, dropped = head.attention(x)
    _, whole = head.eval().attention(x)
    seen = regard.causal_mask(64)
    zero = dropped[seen] == 0
    assert 0.45 < zero.float().mean() < 0.55
    torch.testing.assert_close(dropped[seen][~zero], 2 * whole[seen][~zero])  # scaled by 1 / (1 − p)
    assert torch.equal(head(x), head(x))
    multi = MultiHeadAttention(8, 8, 2, dropout=0.5)
    assert not torch.equal(multi(x), multi(x))
    assert torch.equal(multi.eval()(x), multi(x))


def test_efficient_masking_of_a_row_that_may_look_at_nothing_is_zero():
    assert efficient_masking(torch.randn(1, 3), torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0, 0, 0]]


def test_check_against_pytorch_notices_a_wrong_head(monkeypatch):
    monkeypatch.setattr(Head, "forward", lambda self, x: self.attention(x)[0] * 1.001)
    with pytest.raises(AssertionError, match="at most 1e-06, got"):
        check_against_pytorch()


@pytest.mark.parametrize("name", LAYERS)
@together(
    ("x", "message"),
    [
        (torch.randn(8), r"^x: expected \(batch, length, 8\) or \(length, 8\), got \(8,\)"),
        (torch.randn(2, 6, 7), r"^x: expected width 8 in the last dimension, got \(2, 6, 7\)"),
        (torch.randn(2, 6, 8).double(), r"^x: expected torch.float32.* got torch.float64"),
        (torch.ones(2, 6, 8, dtype=torch.long), r"^x: expected torch.float32.* got torch.int64"),
        (torch.randn(2, 6, 8, device="meta"), r"^x: expected it on cpu.* got meta"),
        ([[1.0]], r"^x: expected a torch.Tensor, got list"),
    ],
)
def test_bad_sequences_are_answered_kindly(name, x, message):
    with pytest.raises(ValueError, match=message):
        LAYERS[name]()(x)


X, BATCH = torch.randn(2, 6, 8), torch.randn(2, 1, 8)
CACHED = CachedMultiHeadAttention(8, 2)
GPT_OF_16 = SmallGPT(16, 8, 8, 2, 1)
SCORES, MASK = torch.randn(2, 2), regard.causal_mask(2)
REFUSED = [
    (lambda: MultiHeadAttention(3, 5, 2), r"num_heads: expected .* divides d_out = 5, got 2"),
    (lambda: ProjectedMultiHeadAttention(8, 3), r"num_heads: expected .* divides d_model = 8, got 3"),
    (lambda: MultiHeadAttention(3, 4, 0), "num_heads: expected a whole number of at least 1, got 0"),
    (lambda: MultiHeadAttention(3, 4, 2, dropout=1.5), "dropout: expected a probability.*got 1.5"),
    (lambda: CausalSelfAttention(8, -1), "max_seq_len: expected .* got -1"),
    (lambda: SelfAttention(2.5), "d_model: expected .* got 2.5"),
    (lambda: SelfAttention(8, head_dim=0), "head_dim: expected .* got 0"),
    (lambda: PositionalAttention(8, 2, "sinus"), 'positions: expected "rotary", "alibi" or None.*sinus'),
    (lambda: PositionalAttention(6, 2), "d_model // num_heads: expected an even width.*got 3"),
    (lambda: SmallGPT(16, 8, 8, 3, 1), r"num_heads: expected .* divides d_model = 8, got 3"),
    (lambda: rotate(torch.randn(4, 3)), "x: expected an even width.*got 3"),
    (lambda: alibi_bias(0, 4), "num_heads: expected .* got 0"),
    (lambda: CrossAttention(8, d_context=0), "d_context: expected .* got 0"),
    *(
        (lambda name=name: LAYERS[name]()(torch.randn(2, 7, 8)), "^x: expected a length of at most 6.*got 7")
        for name in BOUNDED
    ),
    (lambda: SelfAttention(8)(X, torch.ones(6, 6)), "only 0 and 1"),
    (lambda: SelfAttention(8)(X, torch.ones(3, 6, 6).bool()), "mask"),
    (lambda: naive_masking(SCORES, torch.ones(2, 2)), r"mask: expected booleans.*float32.*\.bool\(\)"),
    (lambda: efficient_masking(SCORES, torch.ones(2, 2)), r"mask: expected booleans.*float32.*\.bool\(\)"),
    (lambda: naive_masking(SCORES, regard.causal_mask(3)), r"mask: .*shape.*\(2, 2\), got \(3, 3\)"),
    (lambda: efficient_masking(SCORES, regard.causal_mask(3)), r"mask: .*shape.*\(2, 2\), got \(3, 3\)"),
    (lambda: naive_masking(SCORES.long(), MASK), "scores: expected a float tensor, got torch.int64"),
    (lambda: efficient_masking(SCORES.long(), MASK), "scores: expected a float tensor, got torch.int64"),
    (lambda: CrossAttention(8)(X, torch.randn(3, 7, 8)), r"context: .* batch of x, \(2,\), got \(3, 7, 8\)"),
    (lambda: CACHED(BATCH, [1, 2]), "cache: expected the cache of an earlier call, or None, got list"),
    (
        lambda: CACHED(BATCH, (torch.randn(1, 2, 3, 4),) * 2),
        r"cache: expected \(2, 2, length, 4\), got \(1, ",
    ),
    (
        lambda: CACHED(BATCH, (torch.randn(2, 3, 4),) * 2),
        r"cache: expected \(2, 2, length, 4\), got \(2, 3, 4\)",
    ),
    (lambda: GPT_OF_16(torch.randn(2, 3)), r"ids: expected token ids .* got \(2, 3\) torch.float32"),
    (lambda: GPT_OF_16(torch.tensor([[0, 16]])), "ids: expected from 0 to 15, got from 0 to 16"),
    (lambda: GPT_OF_16(torch.zeros(1, 9).long()), "ids: expected a length of at most 8.*got 9"),
    (lambda: simplified_self_attention(torch.randn(3)), "x: expected a float tensor"),
    (lambda: simplified_self_attention(torch.ones(2, 3).long()), "x: expected a float tensor"),
    (lambda: simplified_self_attention([[1.0]]), "x: expected a float tensor"),
]


@together(("call", "message"), REFUSED)
def test_wrong_use_is_answered_kindly(call, message):
    with pytest.raises(ValueError, match=message):
        call()
