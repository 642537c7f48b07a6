"""`regard.attend` in modules of one's own is captured and edited as any other attention is."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard import attend
from regard.attention.steps import trace
from regard.layers import Attention
from tests.recorder.small_models import Projected, captured
from tests.sampling import combine

MASKS = {
    "none": None,
    "causal": regard.causal,
    "window": regard.causal & regard.window(5),
    "alibi": regard.causal & regard.alibi(4),
    "tensor": torch.ones(12, 12, dtype=torch.bool).tril(),
    "padding": regard.padding(torch.tensor([12, 7])),
}

PYTORCHS = functools.partial(scaled_dot_product_attention, enable_gqa=True)


def own(function=attend, **options):
    """A model of one layer, with four heads on two, that attends by a function with these options."""
    return nn.Sequential(Projected(function, **options))


def text(B=1, T=9):
    return torch.randn(B, T, 16)


@pytest.mark.parametrize(("name", "return_lse"), combine(MASKS, [False, True]))
def test_the_maps_are_certified_and_the_output_keeps_its_bits(name, return_lse):
    model = nn.Sequential(*(Projected(attend, mask=MASKS[name], return_lse=return_lse) for _ in range(2)))
    x = text(2, 12)
    seen = captured(model, x)
    assert all("own attention output" in str(evidence) for evidence in seen.certificate)
    assert [layer.name for layer in seen.layers] == ["0", "1"]
    right = trace(*model[0].heads(x), mask=MASKS[name]).weights
    assert torch.allclose(seen[0].to_dense(), right, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"softcap": 3.0}, {"sinks": torch.randn(4)}, {"scale": 0.1}, {"backend": "tiled"}, {"backend": "steps"}],
    ids=lambda options: next(iter(options)) + str(options.get("backend", "")),
)
def test_its_other_arguments_are_shown(options):
    seen = captured(own(mask=regard.causal, **options), text())
    assert seen[0].softcap == options.get("softcap")
    assert seen[0].scale == options.get("scale", 0.5)


def test_dropout_is_not_certified():
    seen = captured(own(dropout=0.5), text(), certified=False)
    assert not seen.certificate.certified
    assert "dropout 0.5 was on" in str(seen.certificate)


def test_edits_change_what_the_model_goes_on_with():
    model, x = own(mask=regard.causal), text()
    with regard.intervene(model, regard.ablate(0, 1)):
        output = model(x)
    kept = []
    with model[0].out.register_forward_pre_hook(lambda _, given: kept.append(given[0].clone())):
        model(x)
    kept[0][..., 4:8] = 0.0
    assert torch.allclose(output, model[0].out(kept[0]), atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "return_lse"), combine([None, regard.causal, regard.causal & regard.window(3)], [False, True])
)
def test_autocast_lowers_what_it_lowers_without_a_capture(mask, return_lse):
    def in_float32(q, k, v, **options):
        return regard.attend(q.float(), k.float(), v.float(), **options)

    model, x, kept = own(in_float32, mask=mask, return_lse=return_lse), text(), []
    with (
        torch.autocast("cpu", torch.bfloat16),
        model[0].out.register_forward_pre_hook(lambda _, given: kept.append(given[0])),
    ):
        captured(model, x)
    assert kept[0].dtype == kept[1].dtype
    assert torch.equal(*kept)


def test_attention_outside_of_the_model_is_not_recorded():
    model, x = own(mask=regard.causal), text()
    with regard.capture(model) as seen:
        model(x)
        q = torch.randn(1, 2, 20, 4)
        attend(q, q, q)
        own()(x)
    assert [tuple(m.shape) for m in seen] == [(1, 4, 9, 9)]


def test_transforms_of_functions_are_reported():
    model, x = own(mask=regard.causal), torch.randn(3, 1, 9, 16)
    with pytest.raises(RuntimeError, match=r"inside a transform of torch\.func"), regard.capture(model):
        torch.func.vmap(model)(x)


class Overwriting(nn.Module):
    """It writes to its mask's tensor once the attention is computed, as code with buffers of its own does."""

    def __init__(self, how, tensor):
        super().__init__()
        self.how, self.tensor, self.layer = how, tensor, Attention(16, 4)

    def forward(self, x):
        if self.how == "layer":
            output = self.layer(x, mask=self.mask())
        else:
            q = x.unflatten(-1, (4, 4)).transpose(1, 2)
            if self.how == "SDPA":
                heads = scaled_dot_product_attention(q, q, q, attn_mask=self.tensor)
            else:
                heads = attend(q, q, q, mask=self.mask())
            output = heads.transpose(1, 2).flatten(2)
        self.tensor.copy_(self.tensor.roll(1, -1))
        return output

    def mask(self):
        return regard.documents(self.tensor) if len(self.tensor) == 1 else self.tensor


@pytest.mark.parametrize("how", ["attend", "layer", "SDPA", "attend, documents", "layer, documents"])
def test_a_mask_that_is_overwritten_is_shown_as_it_was(how):
    tensor = torch.rand(9, 9) < 0.6
    tensor.fill_diagonal_(True)
    if "documents" in how:
        tensor = torch.tensor([[0] * 4 + [1] * 5])
    model = nn.Sequential(*(Overwriting(how.split(",")[0], tensor) for _ in range(2)))
    masks = [tensor.roll(n, -1) for n in range(2)]
    seen = regard.capture(model, inputs=text())
    assert seen.certificate.certified
    for m, mask in zip(seen, masks, strict=True):
        shown = regard.documents(mask).to_dense(9) if "documents" in how else mask
        assert torch.equal(m.to_dense()[0, 0] > 0, shown.view(9, 9))


def chunked(function, settings):
    """A module that computes its queries in chunks of three, each with settings of its own."""

    def by_chunk(q, k, v):
        parts = [function(q[:, :, 3 * n : 3 * n + 3], k, v, **each) for n, each in enumerate(settings)]
        return torch.cat(parts, 2)

    return own(by_chunk)


DIFFERENT = {
    "scale": [{"scale": 0.1}, {"scale": 1.0}, {"scale": 3.0}],
    "softcap": [{"softcap": 0.1}, {}, {"softcap": 1.0}],
    "sinks": [{}, {"sinks": torch.zeros(4)}, {"sinks": torch.ones(4)}],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_chunks_with_other_scores_are_maps_of_their_own(name):
    model, x = chunked(attend, DIFFERENT[name]), text()
    seen = captured(model, x)
    q, k, v = model[0].heads(x)
    assert len(list(seen)) == 3
    for n, (m, settings) in enumerate(zip(seen, DIFFERENT[name], strict=True)):
        right = trace(q[:, :, 3 * n : 3 * n + 3], k, v, **settings).weights
        assert torch.allclose(m.to_dense(), right, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "settings"), [(attend, {"softcap": 2.0, "sinks": torch.ones(4)}), (PYTORCHS, {})]
)
def test_chunks_with_the_same_scores_are_one_map(function, settings):
    seen = captured(chunked(function, [settings] * 3), text())
    assert [tuple(m.shape) for m in seen] == [(1, 4, 9, 9)]


@pytest.mark.parametrize("function", [attend, PYTORCHS], ids=["attend", "PyTorch's"])
def test_steps_with_another_scale_are_passes_of_their_own(function):
    kept = []

    def cached(q, k, v):
        kept.append(k)
        keys = torch.cat(kept, 2)
        return function(q, keys, keys, scale=math.log(keys.shape[2]))

    model = own(cached)
    with torch.no_grad(), regard.capture(model) as seen:
        for length in (6, 1, 1):
            model(torch.randn(1, length, 16))
    assert seen.certificate.certified
    assert [tuple(m.shape) for m in seen] == [(1, 4, 1, 8)]
    assert seen[0].scale == math.log(8)


@pytest.mark.parametrize("other", [{"softcap": 0.1}, {"sinks": torch.ones(4)}], ids=["softcap", "sinks"])
def test_a_second_attention_with_other_scores_is_a_layer_of_its_own(other):
    seen = captured(own(lambda q, k, v: attend(q, k, v) + attend(q, k, v, **other)), text())
    assert [layer.key for layer in seen.layers] == [0, "attention2.0"]
    assert seen["attention2.0"].softcap == other.get("softcap")


class Observed(Attention):
    def attend(self, q, k, v, mask):
        return regard.attend(q, k, v, mask=mask)


def test_a_layer_that_overrides_attend_is_heard_once():
    seen = captured(nn.Sequential(Observed(16, 4, mask=regard.causal), Projected(attend)), text())
    assert not seen.missing
    assert sorted(layer.name for layer in seen.layers) == ["0", "1"]


def test_a_compiled_function_is_named_as_missing():
    compiled = torch.compile(attend, backend="eager")
    model = nn.Sequential(Projected(attend), Projected(lambda q, k, v: compiled(q, k, v)))
    with pytest.warns(UserWarning, match="Projected"):
        seen = regard.capture(model, inputs=text())
    assert set(seen.missing) == {"1"}
