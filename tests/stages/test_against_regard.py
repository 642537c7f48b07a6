"""Each stage beside the function, the layers and the GPT of Regard, and PyTorch: numbers and gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.gpt import GPT, Config
from regard.layers import Attention, Rotary
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
    join_heads,
    rotate,
    simplified_self_attention,
)

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**32 - 1)


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def agree(ours, theirs, parameters, x):
    """The outputs, the weights, and the gradients of x and of every parameter are equal."""
    leaves = [x, *parameters]
    results, gradients = [], []
    for function in (ours, theirs):
        out, weights = function(x)
        results.append((out, weights))
        loss = out.sin().sum() + weights.cos().sum()  # both take part, and no gradient is constant
        gradients.append(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-10)


def split(x, num_heads):
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)


def on_projections(layer, mask, num_heads=None):
    """`scaled_dot_product_attention` on the projections of a layer, in heads if there are several."""

    def attention(x):
        q, k, v = layer.W_q(x), layer.W_k(x), layer.W_v(x)
        if num_heads is None:
            return regard.scaled_dot_product_attention(q, k, v, mask)
        q, k, v = (split(part, num_heads) for part in (q, k, v))
        out, weights = regard.scaled_dot_product_attention(q, k, v, mask)
        return out.transpose(-3, -2).flatten(-2), weights

    return attention


@given(sizes, sizes, sizes, sizes, seeds)
def test_simplified_and_unscaled(B, T, width, head_dim, seed):
    torch.manual_seed(seed)
    layer, x = UnscaledSelfAttention(width, head_dim).double(), drawn(B, T, width)

    def theirs(x):
        return regard.scaled_dot_product_attention(layer.W_q(x), layer.W_k(x), layer.W_v(x), scale=1.0)

    agree(layer, theirs, layer.parameters(), x)
    agree(simplified_self_attention, lambda x: regard.scaled_dot_product_attention(x, x, x, scale=1.0), [], x)


@given(sizes, sizes, sizes, sizes, seeds)
def test_self_attention(B, T, width, head_dim, seed):
    torch.manual_seed(seed)
    layer, x = SelfAttention(width, head_dim).double(), drawn(B, T, width)
    agree(layer, on_projections(layer, regard.full), layer.parameters(), x)
    agree(lambda x: layer(x, regard.causal), on_projections(layer, regard.causal), layer.parameters(), x)
    visible = torch.rand(T, T) < 0.5  # some rows see nothing
    agree(
        lambda x: layer(x, visible),
        on_projections(layer, regard.tensor_mask(visible)),
        layer.parameters(),
        x,
    )


@given(sizes, sizes, sizes, sizes, seeds)
def test_causal_self_attention_and_a_head(B, T, width, head_dim, seed):
    torch.manual_seed(seed)
    x = drawn(B, T, width)
    for layer in (CausalSelfAttention(width, T + 1, head_dim), Head(width, head_dim, T + 1)):
        layer.double().eval()
        agree(layer.attention, on_projections(layer, regard.causal), layer.parameters(), x)
        assert torch.equal(layer(x), layer.attention(x)[0])


@given(sizes, sizes, sizes, sizes, sizes, seeds)
def test_several_heads(B, T, width, head_dim, num_heads, seed):
    torch.manual_seed(seed)
    x = drawn(B, T, width)
    layer = MultiHeadAttention(width, num_heads * head_dim, num_heads).double().eval()
    agree(layer.attention, on_projections(layer, regard.causal, num_heads), layer.parameters(), x)
    separate = SeparateHeads(width, num_heads * head_dim, num_heads).double().eval()
    agree(separate.attention, join_heads(separate).attention, [], x)


@given(sizes, sizes, sizes, sizes, seeds)
def test_the_output_projection(B, T, head_dim, num_heads, seed):
    """`regard.layers.Attention` with the same weights."""
    torch.manual_seed(seed)
    width = num_heads * head_dim
    x = drawn(B, T, width)
    layer = ProjectedMultiHeadAttention(width, num_heads).double().eval()
    real, heads = attention_layer(layer, mask=regard.causal), on_projections(layer, regard.causal, num_heads)
    agree(layer.attention, lambda x: (real(x), heads(x)[1]), [], x)
    agree(layer.attention, lambda x: (layer.W_o(heads(x)[0]), heads(x)[1]), layer.parameters(), x)


@given(sizes, sizes, sizes, sizes, sizes, seeds)
def test_cross_attention(B, T, S, width, d_context, seed):
    torch.manual_seed(seed)
    layer, context = CrossAttention(width, d_context).double(), drawn(B, S, d_context)
    mask = regard.padding(torch.randint(S + 1, (B,)))  # some sequences are empty

    def theirs(x):
        q, k, v = (part.unsqueeze(1) for part in (layer.W_q(x), layer.W_k(context), layer.W_v(context)))
        out, weights = regard.scaled_dot_product_attention(q, k, v, mask)
        return out.squeeze(1), weights.squeeze(1)

    agree(lambda x: layer(x, context, mask), theirs, [context, *layer.parameters()], drawn(B, T, width))


def attention_layer(layer, **options):
    """The `Attention` of `regard.layers` with the projections of a stage."""
    width = layer.W_q.in_features
    real = Attention(width, layer.num_heads, **options).to(layer.W_q.weight)
    with torch.no_grad():
        real.qkv.weight.copy_(torch.cat([layer.W_q.weight, layer.W_k.weight, layer.W_v.weight]))
        real.out.weight.copy_(layer.W_o.weight)
    return real.eval()


@pytest.mark.parametrize("positions", [None, "rotary", "alibi", "learned"])
def test_only_positions_tell_the_last_token_the_order_of_those_before_it(positions):
    torch.manual_seed(0)
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    order = torch.tensor([3, 0, 4, 1, 2, 5])  # the last token stays
    layer = PositionalAttention(8, 2, None if positions == "learned" else positions).double().eval()
    prepare = LearnedPositions(8, 6).double() if positions == "learned" else nn.Identity()
    apart = (layer(prepare(x))[:, -1] - layer(prepare(x[:, order]))[:, -1]).abs().max()
    assert apart < 1e-15 if positions is None else apart > 1e-3


@given(sizes, sizes, sizes, st.sampled_from([2, 4, 6]), st.integers(0, 5000), seeds)
def test_rotate_is_the_rotary_layer(B, H, T, head_dim, start, seed):
    torch.manual_seed(seed)
    x = drawn(B, H, T, head_dim)
    torch.testing.assert_close(rotate(x, start), Rotary(head_dim)(x, start), rtol=0, atol=1e-9)


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("T", [0, 1, 7])
def test_alibi_bias_is_that_of_the_mask(num_heads, T):
    bias = regard.alibi(num_heads).bias(slice(0, T), slice(0, T), (1, num_heads, T, T))
    torch.testing.assert_close(alibi_bias(num_heads, T), bias.view(num_heads, T, T))


@given(sizes, sizes, st.sampled_from([1, 2, 4]), st.sampled_from([2, 4]), seeds)
def test_attention_with_positions(B, T, num_heads, head_dim, seed):
    torch.manual_seed(seed)
    width = num_heads * head_dim
    x = drawn(B, T, width)
    for positions, options in (
        ("rotary", {"rotary": Rotary(head_dim), "mask": regard.causal}),
        ("alibi", {"mask": regard.causal & regard.alibi(num_heads)}),
        (None, {"mask": regard.causal}),
    ):
        layer = PositionalAttention(width, num_heads, positions).double().eval()
        real = attention_layer(layer, **options)
        torch.testing.assert_close(layer(x), real(x))
        ours = torch.autograd.grad(layer(x).sin().sum(), x)
        theirs = torch.autograd.grad(real(x).sin().sum(), x)
        torch.testing.assert_close(ours, theirs)


@given(sizes, st.lists(st.integers(0, 4), min_size=1, max_size=5), sizes, sizes, seeds)
def test_the_cache_is_exact_at_every_split(B, lengths, head_dim, num_heads, seed):
    """Calls of any lengths, empty ones too, give the output and the gradients of one call."""
    torch.manual_seed(seed)
    width = num_heads * head_dim
    layer, x = CachedMultiHeadAttention(width, num_heads).double().eval(), drawn(B, sum(lengths), width)
    plain = ProjectedMultiHeadAttention(width, num_heads).double().eval()
    plain.load_state_dict(layer.state_dict())
    cache, outs = None, []
    for part in x.split(lengths, dim=1):
        out, cache = layer(part, cache)
        outs.append(out)
    whole = plain(x)
    torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=0, atol=1e-14)
    ours = torch.autograd.grad(torch.cat(outs, dim=1).sin().sum(), x)
    torch.testing.assert_close(ours, torch.autograd.grad(whole.sin().sum(), x), rtol=0, atol=1e-13)
    assert [part.shape for part in cache] == [(B, num_heads, sum(lengths), head_dim)] * 2


def test_the_block_is_that_of_pytorch():
    """`nn.TransformerEncoderLayer`, which norms first and has no biases in its projections."""
    ours = TransformerBlock(16, 4, dropout=0.0).double()
    theirs = nn.TransformerEncoderLayer(
        16, 4, 64, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=True
    ).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.zero_()
        pairs = (
            (theirs.self_attn.out_proj, ours.W_o),
            (theirs.linear1, ours.mlp[0]),
            (theirs.linear2, ours.mlp[2]),
            (theirs.norm1, ours.attention_norm),
            (theirs.norm2, ours.mlp_norm),
        )
        for target, source in pairs:
            target.weight.copy_(source.weight)
        theirs.self_attn.in_proj_weight.copy_(torch.cat([ours.W_q.weight, ours.W_k.weight, ours.W_v.weight]))
    x = drawn(2, 6, 16)
    expected = theirs(x, src_mask=~regard.causal_mask(6))
    torch.testing.assert_close(ours(x), expected)
    gradients = [torch.autograd.grad(out.sin().sum(), x) for out in (ours(x), expected)]
    torch.testing.assert_close(*gradients)


def test_the_small_gpt_is_that_of_regard():
    torch.manual_seed(0)
    ours = SmallGPT(vocab_size=20, max_seq_len=9, d_model=12, num_heads=3, num_layers=2).double().eval()
    config = Config(20, 9, 2, 3, 12, activation="gelu", tie_word_embeddings=False)
    theirs = GPT(config).double().eval()
    with torch.no_grad():
        theirs.token_embedding.weight.copy_(ours.token_embedding.weight)
        theirs.position_embedding.weight.copy_(ours.position_embedding.weight)
        theirs.head.weight.copy_(ours.unembedding.weight)
        for real, block in zip(theirs.blocks, ours.blocks, strict=True):
            qkv = torch.cat([block.W_q.weight, block.W_k.weight, block.W_v.weight])
            real.attention.qkv.weight.copy_(qkv)
            real.attention.out.weight.copy_(block.W_o.weight)
            real.feed_forward.up.weight.copy_(block.mlp[0].weight)
            real.feed_forward.down.weight.copy_(block.mlp[2].weight)
    ids = torch.randint(20, (3, 9))
    torch.testing.assert_close(ours(ids), theirs(ids))
