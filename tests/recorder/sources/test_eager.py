"""Attention that a module computes in its own code, without an adapter: heard, certified, never made up."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard

B, T, H, D = 2, 7, 4, 5


class Own(nn.Module):
    """Somebody's attention by a function of itself, q, k and v, (B, H, T, D).

    It returns the output, and beside it the weights if these are not `causal_weights`.
    """

    def __init__(self, attend):
        super().__init__()
        self.attend, self.num_heads = attend, H
        self.qkv, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.softmax, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.5)
        self.mix = nn.Parameter(torch.eye(H) + 0.1)
        self.temperature = nn.Parameter(torch.rand(H, 1, 1) + 0.5)

    def heads(self, x):
        return [y.unflatten(-1, (H, D)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        result = self.attend(self, *self.heads(x))
        output = result[0] if isinstance(result, tuple) else result
        return x + self.out(output.transpose(1, 2).flatten(2))

    def weights(self, x):
        """What a map of it should hold."""
        q, k, v = self.heads(x)
        result = self.attend(self, q, k, v)
        return result[1] if isinstance(result, tuple) else causal_weights(q, k)

    def matmul_and_softmax(self):
        """The names by which the class is known to compute attention: `torch.matmul`, `torch.softmax`."""
        torch.matmul, torch.softmax  # noqa: B018


def hidden(T=T):
    return torch.ones(T, T, dtype=torch.bool).triu(1)


def causal_weights(q, k):
    return (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(hidden(), -torch.inf).softmax(-1)


def plain(self, q, k, v):
    return causal_weights(q, k) @ v


def in_place(self, q, k, v):
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores /= math.sqrt(D)
    scores += scores.new_zeros(1, 1, T, T).masked_fill_(hidden(), torch.finfo(scores.dtype).min)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).type_as(v)
    return torch.matmul(functional.dropout(weights, 0.5, training=self.training), v)


def scaled_queries_and_where(self, q, k, v):
    scores = torch.matmul(q * D**-0.5, k.mT)
    weights = self.softmax(torch.where(~hidden(), scores, torch.tensor(-1e9)))
    return torch.matmul(self.dropout(weights), v)


def low_number(self, q, k, v):
    visible = (~hidden()).float()
    scores = (q @ k.mT).clamp(-5e4, 5e4) * D**-0.5 * visible - 1e4 * (1 - visible)
    return scores.softmax(-1) @ v


def einsum(self, q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, T, H, D)
    scores = torch.einsum("b q h d, b k h d -> b h q k", q, k) / math.sqrt(D)
    weights = torch.softmax(scores.masked_fill(hidden(), -torch.inf), dim=3)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


def keys_before_the_batch(self, q, k, v):
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))  # (T, B, H, D)
    scores = torch.einsum("ibnd,jbnd->ijbn", q, k) * D**-0.5
    weights = torch.softmax(scores - 1e30 * hidden().float()[:, :, None, None], dim=1)
    return torch.einsum("ijbn,jbnd->ibnd", weights, v).permute(1, 2, 0, 3)


def flat_batches(self, q, k, v):
    q, k, v = (x.reshape(B * H, T, D) for x in (q, k, v))
    bias = torch.linspace(-1, 0, T).expand(B * H, 1, T)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=D**-0.5).view(B, H, T, T)
    weights = functional.softmax(scores.masked_fill(hidden(), -torch.inf), dim=-1).view(B * H, T, T)
    return torch.bmm(weights, v).view(B, H, T, D), weights.view(B, H, T, T)


def values_on_the_left(self, q, k, v):
    weights = (k @ q.mT / math.sqrt(D)).mT.masked_fill(hidden(), -torch.inf).softmax(-1)
    return (v.mT @ weights.mT).mT


def one_key_head(self, q, k, v):
    weights = torch.einsum("bhtd,bsd->bhts", q, k[:, 0]).masked_fill(hidden(), -torch.inf).softmax(-1)
    return torch.einsum("bhts,bse->bhte", weights, v[:, 0]), weights


def temperature_and_cap(self, q, k, v):
    scores = torch.tanh((q @ k.mT) * self.temperature / 3.0) * 3.0
    weights = scores.masked_fill(hidden(), -torch.inf).softmax(-1)
    return weights @ v, weights


def chunks_of_queries(self, q, k, v):
    outputs = []
    for first in range(0, T, 3):
        scores = q[:, :, first : first + 3] @ k[:, :, : first + 3].mT / math.sqrt(D)
        rows = hidden()[first : first + 3, : first + 3]
        outputs.append(scores.masked_fill(rows, -torch.inf).softmax(-1) @ v[:, :, : first + 3])
    return torch.cat(outputs, 2)


def hidden_again(self, q, k, v):
    weights = causal_weights(q, k)
    weights.masked_fill_(hidden(), 0.0)  # as SEW-D does
    return weights @ v


CAUSAL = [hidden_again, plain, in_place, scaled_queries_and_where, low_number, einsum, keys_before_the_batch]
CAUSAL += [chunks_of_queries, flat_batches, values_on_the_left, one_key_head, temperature_and_cap]


def stack(attend):
    torch.manual_seed(0)
    return nn.Sequential(Own(attend), nn.LayerNorm(H * D), Own(attend)).eval(), 2 * torch.randn(B, T, H * D)


def assert_is_what_the_model_used(model, x):
    before = model(x).detach()
    seen = regard.capture(model, inputs=x)
    assert torch.equal(model(x), before)
    assert [layer.name for layer in seen.layers] == ["0", "2"]
    assert seen.certificate.certified, str(seen.certificate)
    for name in (0, 2):
        assert torch.allclose(seen[name].to_dense(), model[name].weights(model[:name](x)), atol=2e-6)
    assert not seen.missing
    return seen


@pytest.mark.parametrize("attend", CAUSAL)
def test_queries_and_keys_are_heard_however_the_products_are_written(attend):
    seen = assert_is_what_the_model_used(*stack(attend))
    assert "causal" in str(seen[0].mask)
    assert bool(seen[0].q.any())
    assert seen[0].shape == (B, H, T, T)


def heads_mixed_before_the_softmax(self, q, k, v):
    scores = torch.einsum("bhts,hg->bgts", q @ k.mT, self.mix).masked_fill(hidden(), -torch.inf)
    return scores.softmax(-1) @ v, scores.softmax(-1)


def test_where_the_scores_are_not_understood_the_weights_are_kept():
    seen = assert_is_what_the_model_used(*stack(heads_mixed_before_the_softmax))
    assert not bool(seen[0].q.any())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_certified(dtype):
    model, x = stack(in_place)
    seen = regard.capture(model.to(dtype), inputs=x.to(dtype))
    assert seen.certificate.certified, str(seen.certificate)


def rolled_in_place(self, q, k, v):
    weights = (q @ k.mT).softmax(-1)
    weights.copy_(weights.roll(1, -1))  # whose rows still sum to 1
    return weights @ v


FAULTS = [
    (lambda self, q, k, v: (0.5 * causal_weights(q, k)) @ v, "changed between the softmax"),
    (rolled_in_place, "changed between the softmax"),
    (lambda self, q, k, v: functional.dropout(causal_weights(q, k), 0.3, True) @ v, "dropout 0.3 was on"),
    (lambda self, q, k, v: (q @ k.mT).softmax(-1).softmax(-1) @ v, "changed between the softmax"),
]
"""Attention that is not to be certified, and why."""


@pytest.mark.parametrize(("attend", "problem"), FAULTS)
def test_altered_weights_are_not_certified(attend, problem):
    model, x = stack(attend)
    seen = regard.capture(model, inputs=x)
    assert len(seen.layers) == 2
    for evidence in seen.certificate:
        assert not evidence.certified
        assert problem in str(evidence)


def heads_before_the_batch(self, q, k, v):
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # (H, B, T, D)
    return (causal_weights(q, k) @ v).transpose(0, 1)


def heads_stacked_on_the_batch(self, q, k, v):
    q, k, v = (torch.cat(x.unbind(1), dim=0) for x in (q, k, v))  # (H · B, T, D)
    return torch.stack(((q @ k.mT).softmax(-1) @ v).chunk(H), 1)


def keys_in_two_parts(self, q, k, v):
    weights = torch.cat([q @ k[:, :, :3].mT, q @ k[:, :, 3:].mT], dim=-1).softmax(-1)
    return weights[..., :3] @ v[:, :, :3] + weights[..., 3:] @ v[:, :, 3:]


OTHER_PRODUCTS = {
    "heads before the batch": heads_before_the_batch,
    "heads stacked on the batch": heads_stacked_on_the_batch,
    "transposed": lambda self, q, k, v: (q @ k.mT).softmax(-1).mT @ v,
    "softmax over queries": lambda self, q, k, v: (q @ k.mT).softmax(-2) @ v,
    "heads mixed after the softmax": lambda self, q, k, v: (
        torch.einsum("bhts,hg->bgts", (q @ k.mT).softmax(-1), self.mix) @ v
    ),
    "keys in two parts": keys_in_two_parts,
}


@pytest.mark.parametrize("name", OTHER_PRODUCTS)
def test_other_products_are_refused_by_name(name):
    model, x = stack(OTHER_PRODUCTS[name])
    with pytest.raises(
        RuntimeError, match=r"Sequential ran, but its attention could not be read \(0: Own, as its"
    ):
        regard.capture(model, inputs=x)


# Heads in front of the batch, which are not texts.


ARRANGED = {
    "heads first": lambda x: x.transpose(0, 1),  # (H, B, T, D)
    "heads first in memory": lambda x: x.transpose(0, 1).contiguous(),
    "heads first, merged": lambda x: x.transpose(0, 1).contiguous().view(-1, T, D),  # (H · B, T, D)
    "heads first, reshaped": lambda x: x.transpose(0, 1).reshape(-1, T, D),
    "texts first, merged": lambda x: x.reshape(-1, T, D),  # (B · H, T, D)
}
HEADS_FIRST = [name for name in ARRANGED if "heads" in name]


def arranged(name, is_fused):
    """A model whose queries, keys and values are arranged in some way before its attention."""

    def attend(self, q, k, v):
        texts, weights = len(q), (q @ k.mT / math.sqrt(D)).detach().softmax(-1)
        q, k, v = (ARRANGED[name](x) for x in (q, k, v))
        if is_fused:
            output = functional.scaled_dot_product_attention(q, k, v)
        else:
            output = (q @ k.mT / math.sqrt(D)).softmax(-1) @ v
        if name == "texts first, merged":
            return output.view(texts, H, T, D), weights
        return output.reshape(H, texts, T, D).transpose(0, 1), weights

    return stack(attend)[0]


IN_FRONT = "0: its heads seem to stand in front of the batch, where"
BEHIND = "0: Own, as its heads seem to stand in front of the batch"


@pytest.mark.parametrize("texts", [2, H])
@pytest.mark.parametrize(
    ("name", "is_fused", "said"),
    [*((name, True, IN_FRONT) for name in HEADS_FIRST), *((name, False, BEHIND) for name in HEADS_FIRST[2:])],
)
def test_heads_in_front_of_the_batch_are_refused(name, is_fused, said, texts):
    with pytest.raises(RuntimeError, match=said):
        regard.capture(arranged(name, is_fused), inputs=torch.randn(texts, T, H * D))


@pytest.mark.parametrize(
    ("name", "texts"), [("texts first, merged", 2), ("texts first, merged", H), ("heads first, merged", 1)]
)
@pytest.mark.parametrize("is_fused", [True, False])
def test_merged_heads_that_can_be_told_from_texts_are_heads(name, texts, is_fused):
    model = arranged(name, is_fused)
    seen = assert_is_what_the_model_used(model, torch.randn(texts, T, H * D))
    assert seen[0].shape == (texts, H, T, T)


class LearnedQueries(nn.Module):
    """Queries that are the same for all texts, of a module that does not name its number of heads."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(H, 3, D))

    def forward(self, x):
        keys = x.unflatten(-1, (H, D)).transpose(1, 2)
        return functional.scaled_dot_product_attention(self.queries.expand(len(x), -1, -1, -1), keys, keys)


class OneHeadOfTokensFirst(nn.Module):
    """One head, of texts (T, B, D) whose tokens come first."""

    def forward(self, x):
        x = x.transpose(0, 1).contiguous().transpose(0, 1).unsqueeze(1)
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("kind", "shape"), [(LearnedQueries, (B, H, 3, T)), (OneHeadOfTokensFirst, (B, 1, T, T))]
)
def test_axes_whose_strides_show_nothing_are_texts_and_heads(kind, shape):
    seen = regard.capture(nn.Sequential(kind()), inputs=torch.randn(B, T, H * D))
    assert seen[0].shape == shape
    assert seen.certificate.certified


# Softmaxes that are no attention.


def expert_pool(self, q, k, v):
    gates = (q @ self.out.weight[:D, :3]).softmax(-1)  # (B, H, T, experts)
    return torch.einsum("bhte,bhted->bhtd", gates, torch.stack([v, k, q], -2))


def cosine_router(self, q, k, v):
    experts = functional.normalize(self.out.weight[:3, :D])
    return torch.matmul(functional.normalize(q), experts.T).softmax(-1) @ self.out.weight[:3, :D]


def sampler(self, q, k, v):
    chosen = (q @ k.mT).softmax(-1).argmax(-1, keepdim=True).expand(-1, -1, -1, D)
    return v.gather(2, chosen)


def test_weights_of_landmarks_are_not_the_weights_of_the_text():
    """Nyström attention: softmax(q · landmarks) times softmax(landmarks · keys) times values."""

    def landmarks(self, q, k, v):
        near, far = (q @ k[:, :, :3].mT).softmax(-1), (q[:, :, :3] @ k.mT).softmax(-1)
        return near @ (far @ v)

    model, x = stack(landmarks)
    with pytest.warns(UserWarning, match="its values are themselves a product with attention weights"):
        seen = regard.capture(model, inputs=x)
    assert [layer.shape[2:] for layer in seen.layers] == [(3, T), (3, T)]
    assert set(seen.missing) == {"0", "2"}


def test_several_attentions_in_one_module_are_several_layers():
    class Whole(nn.Module):
        """A whole model as one module."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ParameterList(0.5 * torch.randn(3, D, D) for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                q, k, v = (torch.matmul(x, weight) for weight in layer)
                x = x + torch.softmax(torch.matmul(q, k.mT), -1) @ v
            return x

    seen = regard.capture(Whole(), inputs=torch.randn(B, T, D))
    assert [layer.shape for layer in seen.layers] == [(B, 1, T, T)] * 2
    assert seen.certificate.certified
    assert bool(seen.layers[1].map.q.any())


@pytest.mark.parametrize("attend", [expert_pool, cosine_router, sampler])
def test_a_softmax_that_is_no_attention_is_no_layer(attend):
    model, x = stack(attend)
    with pytest.raises(RuntimeError, match="no attention call was heard"):
        regard.capture(model, inputs=x)
    whole = nn.Sequential(model[0], Own(plain)).eval()
    with pytest.warns(UserWarning, match="could not be captured"):
        seen = regard.capture(whole, inputs=x)
    assert [layer.name for layer in seen.layers] == ["1"]


class Router(nn.Module):
    """Chooses among experts for every token by a softmax and two products."""

    def __init__(self):
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, H * D))

    def forward(self, x):
        return x + torch.softmax(x @ self.experts.T, -1) @ self.experts


class TokenSampler(Router):
    """Has the same products, and another name."""


class AttentionPooling(nn.Module):
    """Reduces a text to one vector by a learned query."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, H * D))

    def forward(self, x):
        return torch.softmax(self.query @ x.mT, -1) @ x


class Writer(nn.Module):
    """A model with blocks of attention and something else, which also samples what it writes."""

    def __init__(self, beside, pooler):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"part": (beside or nn.Identity)(), "attention": Own(plain)}) for _ in range(3)
        )
        self.pooler = None if pooler is None else pooler()

    def forward(self, x):
        for block in self.blocks:
            for part in block.values():
                x = part(x)
        return x if self.pooler is None else self.pooler(x)

    def sample(self, x):
        return torch.softmax(x @ x.mT, -1)


@pytest.mark.parametrize(
    ("beside", "pooler"), [(None, None), (Router, None), (TokenSampler, None), (None, AttentionPooling)]
)
def test_what_stands_beside_attention_does_not_shift_its_numbers(beside, pooler):
    torch.manual_seed(0)
    model, x = Writer(beside, pooler).eval(), torch.randn(B, T, H * D)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the sampler and the pooler are missing
        seen, last = (regard.capture(model, inputs=x, layers=layers) for layers in (None, [2]))
    assert [layer.key for layer in seen.layers] == [0, 1, 2]
    assert [layer.name for layer in seen.layers] == [f"blocks.{n}.attention" for n in range(3)]
    assert [layer.name for layer in last.layers] == ["blocks.2.attention"]


# Captures, threads, compilation, edits.


@pytest.mark.parametrize(
    "attend",
    [
        plain,
        flat_batches,
        keys_before_the_batch,
        chunks_of_queries,
        heads_mixed_before_the_softmax,
    ],
)
def test_a_head_can_be_cut_and_gradients_flow(attend):
    model, x = stack(attend)

    def cut(self, q, k, v):
        result = attend(self, q, k, v)
        keep = torch.ones(H, 1, 1)
        keep[1] = 0.0
        return (result[0] if isinstance(result, tuple) else result) * keep

    by_hand = copy.deepcopy(model)
    by_hand[2].attend = cut
    expected = by_hand(x)
    with regard.intervene(model, regard.ablate(2, 1)):
        output = model(x)
    assert torch.equal(output, expected)
    gradients = [
        torch.autograd.grad(y.sum(), m[0].qkv.weight)[0] for y, m in ((output, model), (expected, by_hand))
    ]
    assert torch.allclose(*gradients)


@pytest.mark.parametrize("attend", [plain, einsum, heads_mixed_before_the_softmax])
def test_edges_can_be_blocked(attend):
    model, x = stack(attend)
    edit = regard.block(0, edges=regard.prefix(1))
    with torch.no_grad(), regard.intervene(model, edit), regard.capture(model) as seen:
        model(x)
    assert float(seen[0].to_dense()[..., 1:, 0].max()) == 0.0
    assert seen.certificate.certified, str(seen.certificate)
