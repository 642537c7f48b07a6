"""What the axes of a captured map are: texts, heads and tokens, or those of a call that nobody can name.

Every model here is written as someone else might, and each is asked which of its layers carry tokens: a layer
that does must hold the weights of exactly these tokens, and one that does not must say why.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.show.data.layer_description import describe_layer
from tests.sampling import combine

B, H, T, D = 3, 2, 6, 4
C = H * D
torch.manual_seed(0)
IDS, OTHER = torch.randint(0, 50, (2, B, T))


class Attention(nn.Module):
    """Plain causal attention."""

    def __init__(self):
        super().__init__()
        self.num_heads = H
        self.qkv = nn.Linear(C, 3 * C)

    def heads(self, x):
        return tuple(y.view(*x.shape[:2], H, D).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        return sdpa(*self.heads(x), is_causal=True).transpose(1, 2).flatten(2)


class Model(nn.Module):
    """Embeds token ids and attends twice; subclasses do something to the tokens in between."""

    def __init__(self, attention=Attention):
        super().__init__()
        self.embedding, self.position = nn.Embedding(50, C), nn.Embedding(T, C)
        self.a, self.b = attention(), attention()

    def embed(self, ids):
        return self.embedding(ids) + self.position(torch.arange(ids.shape[1]))

    def forward(self, input_ids, *others):
        x = self.embed(input_ids)
        x = x + self.a(x)
        return x + self.b(x)


def placed(seen):
    """Which layers carry tokens."""
    return [seen.ids_of(layer) is not None for layer in seen.layers]


def capture(model, *inputs, verify=False):
    return regard.capture(model.eval(), inputs=inputs or (IDS,), verify=verify)


# Models whose axes are the tokens.


class Encoder(Model):
    """PyTorch's encoder, whose fused layers are not to notice."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, H, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids, *others):
        return self.encoder(self.embed(input_ids))


class TimeFirst(Model):
    """(T, B, C), as in older code."""

    def forward(self, input_ids, *others):
        x = self.embed(input_ids).transpose(0, 1)
        return x + self.a(x.transpose(0, 1)).transpose(0, 1)


class Stacked(Attention):
    """(3, B, H, T, D), as timm has it; with three texts the first axis is as long as the second."""

    def heads(self, x):
        return self.qkv(x).view(*x.shape[:2], 3, H, D).permute(2, 0, 3, 1, 4).unbind(0)


class Rotated(Attention):
    """Rotary positions, from tables that it makes anew."""

    def heads(self, x):
        q, k, v = super().heads(x)
        angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        cos, sin = angle.cos(), angle.sin()

        def rotate(y):
            even, odd = y[..., ::2], y[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

        return rotate(q), rotate(k), v


class Eager(Attention):
    """Attention written out."""

    def forward(self, x):
        q, k, v = self.heads(x)
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = (q @ k.mT / D**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Packed(nn.Module):
    """PyTorch's attention on its fast path, beside a type for each token and a mask that is cut."""

    def __init__(self):
        super().__init__()
        self.embedding, self.types = nn.Embedding(50, C), nn.Embedding(2, C)
        self.attention = nn.MultiheadAttention(C, H, batch_first=True)

    def forward(self, input_ids, *others):
        x = self.embedding(input_ids) + self.types(input_ids % 2)
        hidden = torch.zeros(input_ids.shape, dtype=torch.bool)
        hidden[1, -2:] = True
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


class SharedKeys(Attention):
    """All heads share their keys, which have no axis for them: (B, T, H, D) × (B, S, D)."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = q.unflatten(-1, (H, D)), k[..., :D], v[..., :D]
        weights = (torch.einsum("bthd,bsd->bths", q, k) / D**0.5).softmax(-1)
        return torch.einsum("bths,bsd->bthd", weights, v).flatten(2)


class LastToken(Model):
    """Picks the last token, after all attention."""

    def forward(self, input_ids, *others):
        return super().forward(input_ids)[:, -1]


KEPT = {
    "plain": Model,
    "PyTorch's encoder": Encoder,
    "time first": TimeFirst,
    "stacked": lambda: Model(Stacked),
    "rotated": lambda: Model(Rotated),
    "eager": lambda: Model(Eager),
    "last token": LastToken,
    "packed": Packed,
    "shared keys": lambda: Model(SharedKeys),
}


@pytest.mark.parametrize(("name", "verify"), combine(KEPT, [False, True]))
def test_tokens_in_order_are_attached(name, verify):
    torch.manual_seed(1)
    model = KEPT[name]()
    seen = capture(model, verify=verify)
    assert all(placed(seen)), str(seen.certificate)
    assert seen.certificate.certified
    by = {layer.evidence.tokens for layer in seen.layers}
    assert len(by) == 1
    assert ("changing tokens" in by.pop()) == verify


# Models whose axes are not, in all layers or in some.


class Between(Model):
    """Does something to the tokens between its two attentions; it may read another text as well."""

    def __init__(self, function):
        super().__init__()
        self.function, self.second = function, nn.Embedding(50, C)
        self.queries = nn.Parameter(torch.randn(1, T, C))

    def forward(self, input_ids, *others):
        return self.function(self, input_ids, others[0] if others else input_ids)


def of_states(second):
    """The first attention reads the states of the tokens; what the second one does is a function of them."""

    def run(model, ids, other):
        x = model.embed(ids)
        return model.a(x) + second(model, x)

    return run


def of_ids(change):
    """Both attentions read other ids than those that the model was given."""

    def run(model, ids, other):
        x = model.embed(change(ids))
        return model.a(x) + model.b(x)

    return run


def permuted(model, x):
    """Sorts its batch and puts it back, as code for packed sequences does."""
    order, y = torch.tensor([2, 0, 1]), torch.empty_like(x)
    y[order] = model.b(x[order])
    return y


def routed(model, ids, other):
    x = model.embed(ids)
    y = x + model.a(x)
    y[[1]] = model.b(x[[1]])
    return y


def mixture_of_depths(model, ids, other):
    """The second layer reads the four best tokens."""
    x = model.embed(ids)
    x = x + model.a(x)
    best = x.norm(dim=-1).topk(4, dim=1).indices[..., None].expand(-1, -1, C)
    return x.scatter_add(1, best, model.b(x.gather(1, best)))


def with_memory(x):
    """The states after a memory token, so that key 1 is token 0."""
    return torch.cat([x.new_ones(B, 1, C), x], 1)


BETWEEN = {
    "Siamese": lambda m, ids, other: m.a(m.embed(ids)) + m.a(m.embed(other)),
    "two tables": lambda m, ids, other: m.a(m.embed(ids)) + m.b(m.second(other)),
    "reversed ids": lambda m, ids, _: m.a(m.embed(ids)) + m.b(m.embed(ids.flip(1))).flip(1),
    "shifted ids": of_ids(lambda ids: torch.cat([ids.new_zeros(B, 1), ids], 1)[:, :T]),
    "rebuilt ids": of_ids(lambda ids: torch.tensor([row[::-1] for row in ids.tolist()])),
    "routed": routed,
    "mixture of depths": mixture_of_depths,
    "reversed": of_states(lambda m, x: m.b(x.flip(1)).flip(1)),
    "permuted batch": of_states(permuted),
    "exchanged halves": of_states(lambda m, x: m.b(torch.cat([x[:, T // 2 :], x[:, : T // 2]], 1))),
    "a view": of_states(lambda m, x: m.b(x.view(B, T // 2, 2, C).transpose(1, 2).reshape(B, T, C))),
    "a token in front": of_states(lambda m, x: m.b(with_memory(x))[:, 1:]),
    "shifted states": of_states(lambda m, x: m.b(with_memory(x)[:, :T])),
    "learned queries": of_states(lambda m, x: m.b(m.queries.expand(B, -1, -1))),
}
"""What models do with ids that are not all read in their order."""


class HeadsInFront(nn.Module):
    """(H, B, T, D), of heads that have projections of their own; it names no number of heads."""

    def __init__(self, count=B):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(C, 3 * D) for _ in range(count))

    def forward(self, x):
        q, k, v = (torch.stack(parts) for parts in zip(*(p(x).chunk(3, -1) for p in self.parts), strict=True))
        return sdpa(q, k, v).permute(1, 2, 0, 3).flatten(2)[..., :C]


class HeadsBesideTexts(HeadsInFront):
    """(H · B, T, D)."""

    def forward(self, x):
        q, k, v = (torch.cat(parts) for parts in zip(*(p(x).chunk(3, -1) for p in self.parts), strict=True))
        return torch.cat(sdpa(q, k, v).chunk(len(self.parts)), -1)[..., :C]


class OneByOne(Attention):
    """Attends text by text."""

    def forward(self, x):
        return torch.cat([super(OneByOne, self).forward(text[None]) for text in x])


class OverBatch(Attention):
    """Texts attend to texts."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Arranged(Attention):
    """Attends in a way of its own to queries, keys and values (B, H, T, D)."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(*self.heads(x)).transpose(1, 2).flatten(2)


def gathered(q, k, v):
    """Every query has keys of its own, (B, H, T, 1, D) × (B, H, T, 4, D)."""
    best = (q @ k.mT).topk(4, -1).indices.sort(-1).values[..., None].expand(-1, -1, -1, -1, D)
    k, v = (y[:, :, None].expand(-1, -1, T, -1, -1).gather(3, best) for y in (k, v))
    return sdpa(q[:, :, :, None], k, v)[:, :, :, 0]


def merged_blocks(q, k, v):
    """Two blocks of keys, joined by their log-sum-exp."""
    blocks = [slice(0, 3), slice(3, 6)]
    parts = [sdpa(q, k[:, :, block], v[:, :, block]) for block in blocks]
    lse = [(q @ k[:, :, block].mT / D**0.5).logsumexp(-1, keepdim=True) for block in blocks]
    first = torch.sigmoid(lse[0] - lse[1])
    return parts[0] * first + parts[1] * (1 - first)


def in_parts(*parts, order=1):
    """Attention part by part, of some queries to some keys; those without a part before them get zeros."""

    def attend(q, k, v):
        outputs = [q.new_zeros(len(q), H, min(rows.start for rows, _ in parts), D)]
        outputs += [sdpa(q[:, :, rows], k[:, :, keys], v[:, :, keys]) for rows, keys in parts][::order]
        return torch.cat(outputs, 2)

    return attend


FIRST, LAST = slice(0, 3), slice(3, 6)
ARRANGED = {
    "rolled keys": lambda q, k, v: sdpa(q, k.roll(1, 2), v.roll(1, 2)),
    "windows": lambda *qkv: sdpa(*(y.unflatten(2, (2, 3)) for y in qkv)).flatten(2, 3),
    "channels": lambda *qkv: sdpa(*(y.transpose(2, 3) for y in qkv)).transpose(2, 3),
    "gathered": gathered,
    "merged blocks": merged_blocks,
    "each half and the token before": in_parts((FIRST, FIRST), (LAST, slice(2, 6))),
    "each half to the other": in_parts((FIRST, LAST), (LAST, FIRST)),
    "the last window first": in_parts((LAST, LAST), (FIRST, FIRST), order=-1),
    "the window before": in_parts((slice(2, 4), slice(0, 2)), (slice(4, 6), slice(2, 4))),
}


class EagerWindows(Attention):
    """Windows of three tokens, by attention that is written out."""

    def forward(self, x):
        q, k, v = (y.unflatten(2, (2, 3)) for y in self.heads(x))
        return ((q @ k.mT / 2).softmax(-1) @ v).flatten(2, 3).transpose(1, 2).flatten(2)


LOST = {
    **{name: partial(Between, function) for name, function in BETWEEN.items()},
    **{name: partial(Model, partial(Arranged, function)) for name, function in ARRANGED.items()},
    **{
        kind.__name__: partial(Model, kind)
        for kind in (OneByOne, HeadsInFront, HeadsBesideTexts, EagerWindows, OverBatch)
    },
}
"""By name: models some of whose maps, or all, may carry no tokens."""


@pytest.mark.parametrize(("name", "verify"), combine(LOST, [False, True]))
def test_what_is_not_in_order_carries_no_tokens(name, verify):
    torch.manual_seed(1)
    right = "a" if name in BETWEEN.keys() - {"shifted ids", "rebuilt ids"} else None
    try:
        seen = capture(LOST[name](), IDS, OTHER, verify=verify)
    except RuntimeError:  # refused, with a reason
        return
    for layer, carries in zip(seen.layers, placed(seen), strict=True):
        if carries:
            assert layer.name == right, f"{name}: {layer.evidence}"
        elif layer.evidence.certified:
            assert layer.evidence.unplaced is not None
            assert layer.evidence.unplaced in str(seen.certificate)
    assert not all(placed(seen))
    assert "without tokens" in repr(seen)


class ByMatrix(Model):
    """Reorders tokens by a product, which is seen only by changing them."""

    def forward(self, input_ids, *others):
        x = self.embed(input_ids)
        return self.a(x) + self.b(torch.eye(T).flip(0) @ x)


class Experts(Model):
    """Sends tokens to experts and puts them back: what was picked is in order again."""

    def forward(self, input_ids, *others):
        x = self.embed(input_ids).flatten(0, 1)
        x = x.index_add(0, order := torch.randperm(len(x)), x[order].tanh()).view(B, T, C)
        return x + self.a(x)


def test_verify_sees_by_changing_tokens_what_operations_do_not_show():
    torch.manual_seed(1)
    model = ByMatrix()
    assert placed(capture(model, verify=True)) == [True, False]
    assert "changing a token moved" in str(capture(model, verify=True).certificate[1])
    model = Experts()
    assert placed(capture(model)) == [False]
    assert placed(capture(model, verify=True)) == [True]


def test_verify_says_why_no_token_was_changed():
    model = Model().eval()
    block = regard.capture(model, verify=True)
    seen = block.__enter__()
    model(IDS)
    model(OTHER)
    with pytest.warns(UserWarning, match="no token was changed, since the block ran the model 2 times"):
        block.__exit__(None, None, None)
    assert all(placed(seen))

    class Picky(Model):
        def forward(self, input_ids, *others):
            if not torch.equal(input_ids, IDS):
                raise ValueError("I read one text only")
            return super().forward(input_ids)

    with pytest.warns(UserWarning, match="could not be run again with other tokens .*I read one text only"):
        seen = capture(Picky(), verify=True)
    assert all(placed(seen))


def test_outputs_are_the_same_bits_while_tokens_are_watched():
    torch.manual_seed(1)
    for make in (*KEPT.values(), *LOST.values()):
        model = make().eval()
        with torch.no_grad():
            expected = model(IDS, OTHER)
            try:
                with regard.capture(model):
                    output = model(IDS, OTHER)
            except RuntimeError:
                continue
        assert torch.equal(output, expected)


@pytest.mark.parametrize("ask", [lambda seen: seen.rollout(), lambda seen: seen.spans([0, 3, 6], batch=0)])
def test_what_needs_tokens_refuses_layers_without(ask):
    seen = capture(LOST["reversed"]())
    with pytest.raises(ValueError, match="is defined between tokens, and its axes are not known to be"):
        ask(seen)


def test_heads_and_pages_do_without_the_tokens(tmp_path):
    torch.manual_seed(1)
    seen = capture(LOST["reversed"]())
    seen.tokens = [[f"w{n}" for n in row] for row in IDS.tolist()]
    seen.seal()
    table = seen.heads()
    scores = [set(row.scores) for row in table.rows]
    assert "induction" in {name.split(".")[0] for name in scores[0]}
    described = [describe_layer(x, x.evidence, {"tokens": seen.tokens[0]}) for x in seen.layers]
    assert [x["queries_from"] for x in described] == [0, None]
    assert "its axes are not known to be the tokens" in described[1]["evidence"]["text"]
    assert seen.to_html(tmp_path / "page.html").exists()
    seen.save(tmp_path / "folder")
    again = regard.load(tmp_path / "folder")
    assert placed(again) == [True, False]
    assert again.certificate[1].unplaced == seen.certificate[1].unplaced


class Decoy(nn.Module):
    """Attends once for a check, and once in NumPy."""

    def __init__(self, look):
        super().__init__()
        self.look = look

    def forward(self, q, k, v):
        self.look(sdpa(q, k, v))
        weights = torch.from_numpy((q @ k.mT).numpy() * 5).softmax(-1).numpy()
        return torch.from_numpy(weights) @ v


@pytest.mark.parametrize(
    "look", [lambda x: None, lambda x: bool(x.isfinite().all()), lambda x: torch.allclose(x, x)]
)
def test_attention_whose_output_goes_nowhere_is_not_certified(look):
    q, k, v = torch.randn(3, 1, 1, 4, 4)
    seen = regard.capture(Decoy(look), inputs=(q, k, v))
    assert not seen.certificate.certified
    assert "did not use its output" in str(seen.certificate)


def test_shared_keys_give_a_map_for_each_head():
    torch.manual_seed(1)
    attention = SharedKeys().eval()
    x = torch.randn(B, T, C)
    seen = regard.capture(nn.Sequential(attention), inputs=x)
    with torch.no_grad():
        q, k, _ = attention.qkv(x).chunk(3, -1)
        expected = (q.unflatten(-1, (H, D)).transpose(1, 2) @ k[:, None, :, :D].mT / D**0.5).softmax(-1)
    torch.testing.assert_close(seen[0].to_dense(), expected)
    assert seen.certificate.certified


def test_as_many_queries_as_heads_that_share_their_keys_are_not_certified():
    """The output is the same whichever axis counts the heads, so that it cannot certify one of them."""
    seen = regard.capture(nn.Sequential(SharedKeys().eval()), inputs=torch.randn(B, H, C))
    assert not seen.certificate.certified
    assert "nothing shows which axis" in str(seen.certificate)


@torch.jit.script
def scripted(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v


class Scripted(Attention):
    def forward(self, x):
        output = scripted(*self.heads(x))
        return output.transpose(1, 2).flatten(2)


class Additive(Attention):
    """Bahdanau's attention, without a matrix product."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = torch.tanh(q[:, :, None] + k[:, None]).sum(-1).softmax(-1)
        return (weights[..., None] * v[:, None]).sum(2)


class Stack(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for kind in kinds)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.mark.parametrize("kind", [Additive, Scripted])
def test_attention_that_cannot_be_heard_is_missed_by_name(kind):
    model, x = Stack(kind, Attention).eval(), torch.randn(B, T, C)
    with pytest.warns(UserWarning, match=f"is missing: {kind.__name__}"):
        seen = regard.capture(model, inputs=x)
    assert list(seen.missing) == ["blocks.0"]
    assert not seen.certificate
