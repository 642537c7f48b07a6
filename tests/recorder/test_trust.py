"""Attempts to have something false certified: each comes out uncertified, refused or named as missing."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from tests.recorder.small_llama import registered
from tests.recorder.small_llama import small_llama as llama
from tests.sampling import combine

pytest.importorskip("transformers")
from transformers.masking_utils import eager_mask

pytestmark = pytest.mark.usefixtures("quiet_transformers")


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, window=None, **kwargs):
    """Eager attention, as people write it; nothing of it goes through PyTorch's fused function."""
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(group, 1).mT * (scaling or 1.0)
    if attention_mask is not None:
        scores = scores + attention_mask
    if window is not None:
        far = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-window)
        scores = scores.masked_fill(far, -torch.inf)
    output = scores.softmax(-1) @ value.repeat_interleave(group, 1)
    return output.transpose(1, 2).contiguous(), None


def changed(**changes):
    """The same function, which takes some of its arguments for others."""

    def function(module, query, key, value, attention_mask, scaling=1.0, dropout=0.0, **kwargs):
        taken = {"attention_mask": attention_mask, "scaling": scaling}
        taken |= {name: change(taken.get(name)) for name, change in changes.items()}
        return attention(module, query, key, value, **taken)

    return function


def sparse(module, query, key, value, attention_mask, indices=None, **kwargs):
    """Takes an argument that nobody knows, which happens to change nothing here."""
    return attention(module, query, key, value, attention_mask, **kwargs)


def swapped(*args, **kwargs):
    """Two heads change places."""
    output, _ = attention(*args, **kwargs)
    return output[:, :, [1, 0, 2, 3]], None


def scaled_after(module, query, key, value, attention_mask, **kwargs):
    """Goes through PyTorch's attention, and does something to what that gives."""
    key, value = (x.repeat_interleave(2, 1) for x in (key, value))
    output = scaled_dot_product_attention(query, key, value, is_causal=True)
    return 1.01 * output.transpose(1, 2), None


def run(function, ids=None, verify=False, **arguments):
    """What is seen of a model whose attention is this function."""
    ids = torch.randint(0, 97, (2, 20)) if ids is None else ids
    with torch.no_grad(), registered(eager_mask, planted=function):
        model = llama("planted")
        plain = model(ids, **arguments).logits
        with regard.capture(model, verify=verify) as seen:
            assert torch.equal(model(ids, **arguments).logits, plain)
    return seen


@pytest.mark.parametrize(
    ("function", "mask"), [(attention, "causal"), (changed(attention_mask=lambda _: None), "full")]
)
def test_a_function_is_certified_with_the_mask_that_it_used(function, mask):
    seen = run(function)
    assert seen.certificate.certified, str(seen.certificate)
    assert str(seen[0].mask) == mask


OFF = "off this layer's own attention output by"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (changed(window=lambda _: 19), OFF),
        (changed(scaling=lambda scale: 1.01 * scale), OFF),
        (swapped, OFF),
        (scaled_after, "changes what scaled_dot_product_attention returns"),
    ],
)
def test_what_a_function_does_otherwise_is_not_certified(function, why):
    seen = run(function)
    assert not any(found.certified for found in seen.certificate), str(seen.certificate)
    assert why in str(seen.certificate)


def test_an_argument_that_nobody_knows_is_named():
    assert run(sparse).certificate.certified  # it was not given
    seen = run(sparse, indices=torch.arange(4))
    assert not seen.certificate.certified
    assert "its function sparse received indices, whose meaning is not known here" in str(seen.certificate)


def test_regards_own_attention_refuses_what_it_does_not_know():
    model = llama("regard")
    with pytest.raises(ValueError, match='"regard": LlamaAttention passes indices, which is not supported'):
        model(torch.randint(0, 97, (1, 5)), indices=torch.arange(4))


def test_values_that_say_nothing_of_weights():
    """With equal values every weight gives the same output, so that output proves nothing."""
    seen = run(attention, torch.full((1, 6), 7))
    assert "so similar that its output does not determine its weights" in str(seen.certificate[0])
    # The kernel's own log-sum-exp speaks for the weights. PyTorch 2.6 has none for grouped heads on a CPU.
    model = llama(num_key_value_heads=4)
    with torch.no_grad():
        assert regard.capture(model, inputs={"input_ids": torch.full((1, 6), 7)}).certificate.certified


def test_rows_that_may_look_at_nothing_are_zeros_and_counted():
    model, ids = llama("eager"), torch.randint(0, 97, (2, 8))
    real = torch.ones(2, 8, dtype=torch.long)
    real[0, :3] = 0
    with torch.no_grad():
        plain = model(ids, attention_mask=real, output_attentions=True)
        with regard.capture(model) as seen:
            again = model(ids, attention_mask=real)
    assert torch.equal(plain.logits, again.logits)
    assert plain.attentions[0][0, 0, 0].sum() == 1  # the model looks at everything alike there
    assert seen[0].to_dense()[0, 0, :3].sum() == 0
    assert seen.certificate.certified
    assert "8 of 8 rows compared; 3 without a visible key are shown as zeros" in str(seen.certificate[0])


class Recurrent(nn.Module):
    """A recurrent layer, as hybrids of attention and recurrence have them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(32, 32, batch_first=True)

    def forward(self, hidden_states, **_):
        return self.inner(hidden_states)[0], None


class Silent(nn.Module):
    """Mixes tokens, and neither its name nor its code shows how."""

    def forward(self, hidden_states, **_):
        return hidden_states.cumsum(1), None


@pytest.mark.parametrize("kind", [Recurrent, Silent])
def test_a_layer_that_mixes_tokens_in_another_way_is_named(kind):
    model = llama()
    model.model.layers[0].self_attn = kind()
    with pytest.warns(UserWarning, match="1 module (that )?mixes tokens"):
        seen = regard.capture(model, inputs={"input_ids": torch.randint(0, 97, (1, 6))})
    assert [layer.key for layer in seen.layers] == [1]
    assert seen.certificate[1].certified
    if kind is Recurrent:  # known to be no attention, which the headline is about
        assert seen.other_mixers == {"model.layers.0.self_attn.inner": "GRU"}
        assert not seen.missing
        assert bool(seen.certificate)
        assert "1 not attention" in repr(seen)
        assert "not attention: model.layers.0.self_attn.inner (GRU)" in str(seen.certificate)
    else:
        assert list(seen.missing) == ["model.layers.0"]
        assert not seen.certificate
        assert not seen.certificate.certified
        assert "1 missing" in repr(seen)


def one_row_off(*args, **kwargs):
    output, _ = attention(*args, **kwargs)
    output[:, 101] += 1.0
    return output, None


def test_verify_compares_every_row_and_finds_what_a_sample_does_not():
    ids = torch.randint(0, 97, (1, 200))
    seen = run(one_row_off, ids)
    assert seen.certificate[0].rows == 64
    assert seen.certificate[0].certified
    seen = run(one_row_off, ids, verify=True)
    assert seen.certificate[0].rows == 200
    assert not seen.certificate[0].certified


class Head(nn.Module):
    """One head as tutorials write it, which neither PyTorch's function nor an interface computes."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 32, bias=False) for _ in range(3))

    def forward(self, hidden_states, **_):
        q, k, v = self.query(hidden_states), self.key(hidden_states), self.value(hidden_states)
        return (q @ k.mT * 32**-0.5).softmax(-1) @ v, None


def test_attention_written_out_is_heard_though_its_stack_is_its_own():
    model = llama()
    model.model.norm = nn.Sequential(nn.Sequential(), Head())
    model.model.norm.forward = lambda x: model.model.norm[1](x)[0]
    seen = regard.capture(model, inputs={"input_ids": torch.randint(0, 97, (1, 6))})
    assert [layer.name for layer in seen.layers][-1] == "model.norm.1"
    assert seen.missing == {}
    assert seen.certificate.certified


class Differential(nn.Module):
    """Two softmaxes of one module: from two projections, or from two halves of one tensor."""

    def __init__(self, halves):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, n) for n in (32, 32, 16))
        self.halves = halves

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.halves == "contiguous":
            q, k = q.contiguous(), k.contiguous()
        (q1, q2), (k1, k2) = q.chunk(2, 1), k.chunk(2, 1)
        if self.halves == "copies":
            q1, q2, k1, k2 = (y.clone() for y in (q1, q2, k1, k2))
        first, second = (
            scaled_dot_product_attention(a, b, v, is_causal=True) for a, b in ((q1, k1), (q2, k2))
        )
        again = scaled_dot_product_attention(q1, k1, v.flip(-1), is_causal=True)
        return (first - 0.3 * second + again).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("halves", ["views", "contiguous", "copies"])
def test_two_softmaxes_of_one_module_are_two_maps(halves):
    model, x = nn.Sequential(Differential(halves), Differential(halves)), torch.randn(2, 7, 16)
    with torch.no_grad(), regard.capture(model) as seen:
        model(x)
    assert [layer.key for layer in seen.layers] == [0, "attention2.0", 1, "attention2.1"]
    assert {layer.shape for layer in seen.layers} == {(2, 2, 7, 7)}
    assert seen.certificate.certified
    q, k = (f(x).unflatten(-1, (4, 8)).transpose(1, 2) for f in (model[0].q, model[0].k))
    second = regard.scaled_dot_product_attention(q[:, 2:], k[:, 2:], k[:, 2:], regard.causal)[1]
    assert (seen["attention2.0"].to_dense() - second).abs().max() < 1e-6


class TextAndImage(nn.Module):
    """The same queries look at two sets of keys, one after the other, as adapters for images do."""

    def forward(self, x, text, image):
        q, *others = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (x, text, image))
        return sum(scaled_dot_product_attention(q, y, y) for y in others).transpose(1, 2).flatten(2)


def test_two_sets_of_keys_are_two_maps():
    model = nn.Sequential(TextAndImage())
    x, text, image = (torch.randn(1, n, 16) for n in (5, 7, 9))
    with regard.capture(model) as seen:
        model[0](x, text, image)
    assert {layer.key: layer.shape[2:] for layer in seen.layers} == {0: (5, 7), "attention2.0": (5, 9)}
    assert seen.certificate.certified


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, with and without capture
def test_attention_over_tensors_that_cannot_be_read():
    """Inside `vmap` a tensor's numbers cannot be looked at: the model runs on, and the layer is named."""

    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda y: scaled_dot_product_attention(y, y, y))(x)

    class TwoAttentions(nn.Module):
        def __init__(self):
            super().__init__()
            self.mapped, self.plain = Mapped(), Differential("views")

        def forward(self, x):
            return self.mapped(x)[0, 0] + self.plain(x[0, 0])

    model, x = TwoAttentions(), torch.randn(2, 1, 2, 7, 16)
    with torch.no_grad():
        plain = model(x)
        with pytest.warns(UserWarning, match=r"is missing: .*torch.func.* \(mapped\)"):
            seen = regard.capture(model, inputs={"x": x})
        assert torch.equal(model(x), plain)
    assert list(seen.missing) == ["mapped"]


@pytest.mark.parametrize(("implementation", "size"), combine(["sdpa", "eager", "regard"], [1.0, 1e3, 1e6]))
def test_weights_are_as_exact_as_eagers_at_any_score(implementation, size):
    model, ids = llama(implementation), torch.randint(0, 97, (1, 40))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(size)
        with regard.capture(model) as seen:
            model(ids)
    for attention_map, evidence in zip(seen, seen.certificate, strict=True):
        q, k = attention_map.q, attention_map.k.repeat_interleave(2, 1)
        hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)

        def weights(q, k, hidden=hidden):
            return (q @ k.mT * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)

        exact = weights(q.double(), k.double())
        error, eager = ((x - exact).abs().max().item() for x in (attention_map.to_dense(), weights(q, k)))
        assert error <= 2 * max(eager, 5e-7)
        sums = attention_map.to_dense().sum(-1)
        assert (sums - 1).abs().max() < 1e-5
        if eager < 1e-6:
            assert evidence.certified, str(evidence)
    allowed = [evidence.tolerance for evidence in seen.certificate]
    assert max(allowed) < 1e-3  # whatever the scores


def test_what_is_kept_is_what_is_compared():
    """Queries and keys rounded to bfloat16 give other weights, by a hundredth here."""
    model, ids = llama("eager"), torch.randint(0, 97, (1, 30))
    with torch.no_grad():
        own = model(ids, output_attentions=True).attentions[0]
    seen = regard.capture(model, inputs={"input_ids": ids}, dtype=torch.bfloat16)
    off = (seen[0].to_dense() - own).abs().max()
    assert off > 1e-3
    assert (seen[0].to_dense().sum(-1) - 1).abs().max() < 1e-5
    assert abs(seen.certificate[0].weights - off) < 1e-6
    assert seen.certificate[0].tolerance > 1e-3 or not seen.certificate[0].certified


class OwnAttention(nn.Module):
    """Holds the function in an attribute, where no name can be replaced."""

    def __init__(self):
        super().__init__()
        self.function = scaled_dot_product_attention

    def forward(self, x):
        return self.function(x, x, x)


class Scan(nn.Module):
    def forward(self, x):
        return x.cumsum(-2)


class Exponential(nn.Module):
    def forward(self, x):
        scores = (x @ x.mT).exp()
        return scores / scores.sum(-1, keepdim=True) @ x


@pytest.mark.parametrize("kind", [Scan, Exponential])
def test_siblings_of_another_class_are_looked_at(kind):
    model, x = nn.Sequential(OwnAttention(), kind(), nn.ReLU(), nn.Linear(8, 8)), torch.randn(1, 2, 6, 8)
    with (
        pytest.warns(UserWarning, match=rf"is missing: {kind.__name__} \(1\)"),
        regard.capture(model) as seen,
    ):
        model(x)
    assert seen.missing == {"1": kind.__name__}


class Around(nn.Module):
    """Calls PyTorch's attention, and a part of its own beside it, whose output it does not use."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        self.part(x[0])
        return scaled_dot_product_attention(x * 1.5, x + 1.0, x)


class ExponentialAttention(Exponential):
    pass


@pytest.mark.parametrize("kind", [lambda: nn.GRU(8, 8), ExponentialAttention])
def test_what_stands_inside_a_module_beside_its_attention_is_named(kind):
    part = kind()
    with pytest.warns(UserWarning, match="tokens"):
        seen = regard.capture(Around(part), inputs=(torch.randn(1, 2, 6, 8),))
    is_attention = isinstance(part, ExponentialAttention)
    assert list(seen.missing if is_attention else seen.other_mixers) == ["part"]
    assert seen.certificate.certified is not is_attention
