"""Claims often made about attention, each beside what is measured.

Not here, because they need a GPU, long training or other people's experiments: which kernel SDPA picks on a
GPU; the losses of a text model with a softmax over the wrong axis and without scaling; how well heads match
parse trees; how much pruned heads hurt.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import attend, causal, causal_mask, scaled_dot_product_attention
from regard.attention.steps import trace
from regard.stages import Head, MultiHeadAttention, ProjectedMultiHeadAttention
from regard.stages.example import X, project
from tests.sampling import share


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("head_size", [16, 64, 256])
def test_scaled_scores_have_standard_deviation_one_only_for_unit_variance(head_size: int) -> None:
    """Claim: about 1 after scaling, whatever the head size. Measured: a third, with PyTorch's own init."""
    x = drawn(64, 16, 256)
    head = Head(256, head_size, 16)
    q, k = head.W_q(x), head.W_k(x)
    assert q.std().item() == pytest.approx(0.58, abs=0.02)
    assert k.std().item() == pytest.approx(0.58, abs=0.02)
    assert trace(q, k, k).scaled.std().item() == pytest.approx(1 / 3, abs=0.02)
    unit = drawn(64, 16, head_size, seed=1), drawn(64, 16, head_size, seed=2)
    assert trace(*unit, unit[1]).scaled.std().item() == pytest.approx(1.0, abs=0.03)


def tiny(family: str, **options: object) -> nn.Module:
    """A model of a family with random weights: the smallest there can be."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 11}
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=8, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "biased"),
    [("GPT2", True), ("GPTNeoX", True), ("Qwen2", True), ("Qwen3", False), ("Llama", False)],
)
def test_who_has_a_bias_on_queries_keys_and_values(family: str, biased: bool) -> None:
    """Claim: no bias on Q/K/V follows GPT-2. Measured: GPT-2 has one, and so do GPT-NeoX and Qwen2."""
    names = {name for name, _ in tiny(family).named_parameters()}
    projections = ("c_attn.", "query_key_value.", "q_proj.", "k_proj.", "v_proj.")
    of_attention = {name for name in names if any(projection in name for projection in projections)}
    assert of_attention
    assert any(name.endswith(".bias") for name in of_attention) == biased


@pytest.mark.parametrize(
    ("zero_biases", "transposed", "heads", "same"),
    [(True, True, 1, True), (False, True, 1, False), (True, False, 1, False), (True, True, 2, False)],
)
def test_a_bias_free_single_head_is_gpt2_only_if_three_things_hold(
    zero_biases: bool, transposed: bool, heads: int, same: bool
) -> None:
    """Claim: it gives GPT-2's output. Measured: with one head, no biases and transposed weights, to 1e-6."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=32, n_head=heads, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "sdpa"
    theirs = GPT2Attention(config, layer_idx=0).eval()
    ours = ProjectedMultiHeadAttention(32, num_heads=1).eval()
    with torch.no_grad():
        for projection in (theirs.c_attn, theirs.c_proj):
            projection.weight.normal_(std=0.2)
            projection.bias.normal_(std=0.0 if zero_biases else 0.2)
        for linear, weight in zip(
            (ours.W_q, ours.W_k, ours.W_v, ours.W_o),
            (*theirs.c_attn.weight.split(32, dim=1), theirs.c_proj.weight),
            strict=True,
        ):
            linear.weight.copy_(weight.T if transposed else weight)
        x = drawn(2, 16, 32)
        apart = (ours(x) - theirs(x)[0]).abs().max().item()
    assert (apart < 5e-6) == same
    assert same or apart > 0.05


def test_a_key_bias_washes_out_wholly() -> None:
    """Claim: mostly. Measured: to the last bits of float64, whatever its size, and its gradient is zero."""
    q, k, v = (drawn(2, 6, 8, seed=seed).double() for seed in range(3))
    plain = attend(q, k, v, mask=causal)
    for size in (0.1, 1.0, 10.0):
        bias = (size * drawn(8, seed=3)).double().requires_grad_()
        biased = attend(q, k + bias, v, mask=causal)
        assert (biased - plain).abs().max() < 1e-14 * (1 + 10 * size)
        (gradient,) = torch.autograd.grad(biased.square().sum(), bias)
        assert gradient.abs().max() < 1e-13


def test_the_fused_kernel_agrees_but_not_bit_for_bit() -> None:
    """Claim: it computes exactly this. Measured: to about 1e-7."""
    q, k, v = (drawn(2, 4, 64, 32, seed=seed) for seed in range(3))
    ours, _ = scaled_dot_product_attention(q, k, v, causal)
    apart = (ours - F.scaled_dot_product_attention(q, k, v, is_causal=True)).abs()
    assert 0 < apart.max() < 2e-6
    assert apart.mean() < 1e-7


def test_softmax_over_the_wrong_axis_leaks_the_future() -> None:
    """Claim: it trains a bit, then writes garbage. Measured: a row depends on tokens that come after it."""
    x = drawn(6, 8)
    moved = x.clone()
    moved[5] = drawn(8, seed=1)

    def wrong(x: Tensor) -> Tensor:
        masked = trace(x, x, x, causal).masked
        return torch.softmax(masked, dim=-2) @ x  # over the queries of a key

    def right(x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x, x, causal)[0]

    assert torch.equal(right(x)[:5], right(moved)[:5])
    assert (wrong(x)[:5] - wrong(moved)[:5]).abs().max() > 0.01


class NextToken(nn.Module):
    """The least that learns to guess the next token: embeddings, one causal head, a feed-forward layer."""

    def __init__(self, tokens: int, length: int, width: int, softmax_dim: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.guess = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, tokens))
        self.softmax_dim = softmax_dim

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position.weight[: ids.shape[1]]  # (B, T, D)
        masked = trace(self.q(x), self.k(x), self.v(x), causal).masked
        return self.guess(x + torch.softmax(masked, dim=self.softmax_dim) @ self.v(x))  # (B, T, tokens)


@pytest.mark.parametrize(("softmax_dim", "leaks"), share([(-2, True), (-1, False)], 2))
def test_softmax_over_the_wrong_axis_learns_what_cannot_be_learned(softmax_dim: int, leaks: bool) -> None:
    """Random tokens cannot be guessed better than ln 8: who does has seen the answer, and fails without."""
    tokens, length = 8, 4
    model = NextToken(tokens, length, 32, softmax_dim)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for _ in range(150):
        ids = torch.randint(tokens, (64, length + 1))
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final, best_possible = sum(losses[-20:]) / 20, math.log(tokens)
    ids = torch.randint(tokens, (256, length + 1))
    with torch.no_grad():  # as in generation: the last token of a prefix has no future to look at
        alone = [F.cross_entropy(model(ids[:, :n])[:, -1], ids[:, n]).item() for n in range(1, length + 1)]
    on_prefixes = sum(alone) / length
    if leaks:
        assert final < best_possible - 0.3
        assert on_prefixes > best_possible + 1
    else:
        assert final == pytest.approx(best_possible, abs=0.05)
        assert on_prefixes == pytest.approx(best_possible, abs=0.1)


def test_without_scaling_softmax_saturates_but_gradients_do_not_vanish() -> None:
    """Claim: it stops learning almost at once. Measured: nearly one-hot rows, and gradients no smaller."""
    q, k, v = (drawn(4, 64, 64, seed=seed).double().requires_grad_() for seed in range(3))
    upstream = drawn(4, 64, 64, seed=3).double()
    sharpness, gradients = [], []
    for scale in (64**-0.5, 1.0):
        out, weights = scaled_dot_product_attention(q, k, v, scale=scale)
        sharpness.append(weights.amax(-1).mean().item())
        gradients.append(torch.autograd.grad(out, q, upstream)[0].norm().item())
    assert sharpness[0] < 0.2
    assert sharpness[1] > 0.7
    assert gradients[1] > gradients[0]


def test_multi_head_is_the_concatenated_heads_and_then_a_projection() -> None:
    """Claim: MultiHead = Concat(heads). Measured: PyTorch's has W_o after it, and so has ours."""
    theirs = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    ours = ProjectedMultiHeadAttention(16, 4).eval()
    heads_only = MultiHeadAttention(16, 16, 4).eval()
    with torch.no_grad():
        for layer in (ours, heads_only):
            for linear, weight in zip(
                (layer.W_q, layer.W_k, layer.W_v), theirs.in_proj_weight.chunk(3), strict=True
            ):
                linear.weight.copy_(weight)
        ours.W_o.weight.copy_(theirs.out_proj.weight)
    x = drawn(2, 6, 16)
    expected, _ = theirs(x, x, x, attn_mask=~causal_mask(6))  # PyTorch's True here means: may not look
    torch.testing.assert_close(ours(x), expected)
    assert (heads_only(x) - expected).abs().max() > 0.05
    assert torch.equal(ours.W_o(heads_only(x)), ours(x))


def test_printed_rows_need_not_sum_to_one() -> None:
    """Claim: rows printed with two decimals sum to 1. Measured: the rows do, what is printed need not."""
    _, weights = scaled_dot_product_attention(*project(X))
    printed = [sum(round(value, 2) for value in row) for row in weights.tolist()]
    assert min(printed) < 0.995 or max(printed) > 1.005
    assert (weights.double().sum(-1) - 1).abs().max() < 1.2e-7
