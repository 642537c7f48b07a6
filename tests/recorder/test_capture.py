"""Capture itself: what is asked for, what is proved, and that nothing stays behind."""

import contextlib
import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.recorder.sources.call_listeners import current_listeners
from tests.against.small_sizes import GPT2
from tests.against.test_capture_families import build
from tests.recorder.small_llama import small_llama
from tests.recorder.small_models import MODELS, state
from tests.recorder.text_models import words

transformers = pytest.importorskip("transformers")


@pytest.fixture
def model():
    return small_llama(num_hidden_layers=3)


@pytest.fixture
def ids():
    return torch.randint(0, 97, (2, 11))


def test_dropout_cannot_be_certified(ids):
    model = build("GPT2LMHeadModel", GPT2 | {"attn_pdrop": 0.3}).train()
    seen = regard.capture(model, inputs={"input_ids": ids})
    assert not seen.certificate.certified
    assert "dropout 0.3 was on" in str(seen.certificate)
    assert "0 certified" in repr(seen)
    assert regard.capture(model.eval(), inputs={"input_ids": ids}).certificate.certified


def test_layers_heads_dtype_and_values(model, ids):
    whole = regard.capture(model, inputs={"input_ids": ids}, values=True)
    some = regard.capture(
        model, inputs={"input_ids": ids}, layers=[0, 2], heads=[3, 1], dtype=torch.bfloat16, values=True
    )
    assert [layer.key for layer in some.layers] == [0, 2]
    assert some.layers[0].heads == (1, 3)
    assert some[2].q.dtype == torch.bfloat16
    assert (some[2, 3].to_dense() - whole[2, 3].to_dense()).abs().max() < 0.05
    assert torch.equal(some.layer(0).values, whole.layer(0).values)
    exact = regard.capture(model, inputs={"input_ids": ids}, heads=[0, 1, 3])  # no whole groups
    assert torch.equal(exact[1, 3].to_dense(), whole[1, 3].to_dense())
    assert (
        regard.capture(model, inputs={"input_ids": ids}, layers=["model.layers.1.self_attn"]).layers[0].key
        == 1
    )


def test_what_is_not_there_is_refused(model, ids):
    with pytest.raises(ValueError, match=r"layers: expected some of those that ran \(0, 1, 2\), got 7"):
        regard.capture(model, inputs={"input_ids": ids}, layers=[7])
    with pytest.raises(ValueError, match=r"heads: expected a list, as \[2\], got 2"):
        regard.capture(model, inputs={"input_ids": ids}, heads=2)
    with pytest.raises(ValueError, match="heads: expected numbers from 0 to 3, got"):
        regard.capture(model, inputs={"input_ids": ids}, heads=[4])
    with pytest.raises(ValueError, match="text: expected a tokenizer beside it"):
        regard.capture(model, text="hello")
    with pytest.raises(ValueError, match=r"got Linear: name its attention modules with adapters="):
        regard.capture(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"model: expected a torch.nn.Module, got str"):
        regard.capture("gpt2")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"input_ids": 1}, r"unexpected argument 'input_ids': write inputs=\{\"input_ids\": …\}"),
        ({"input_ids": 1, "labels": 2}, r"write inputs=\{\"input_ids\": …, \"labels\": …\}"),
        ({"layer": [1]}, r"unexpected argument 'layer': did you mean layers=\?"),
        ({"value": True}, r"did you mean values=\?"),
        ({"zzz": 1}, r"write inputs=\{\"zzz\": …\}"),
    ],
)
def test_an_unknown_argument_is_answered_with_what_to_write(model, arguments, advice):
    with pytest.raises(TypeError, match=advice):
        regard.capture(model, **arguments)


def test_inputs_by_name_by_position_and_as_one_tensor(model, ids):
    by_name = regard.capture(model, inputs={"input_ids": ids, "use_cache": False})
    for inputs in ((ids,), [ids], ids):
        assert torch.equal(regard.capture(model, inputs=inputs)[2].to_dense(), by_name[2].to_dense())
    with pytest.raises(TypeError, match=r"got 1 more by position: pass the model's inputs as inputs=\(x,\)"):
        regard.capture(model, ids)
    with pytest.raises(ValueError, match=r"inputs: expected a dict.*got str: did you mean text=\?"):
        regard.capture(model, inputs="the cat")
    assert not isinstance(regard.capture(model), regard.Capture)


def test_tokens(model):
    seen = regard.capture(model, text="the cat sat", tokenizer=words())
    assert seen.tokens == [["the", "cat", "sat"]]
    assert torch.equal(seen.ids, torch.tensor([[1, 2, 3]]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="?", padding_side="left")
    seen = regard.capture(model, text=["the cat sat", "cat"], tokenizer=fast)
    assert seen.tokens == [["the", "cat", "sat"], ["?", "?", "cat"]]
    assert torch.equal(seen.attention_mask, torch.tensor([[True] * 3, [False, False, True]]))
    assert str(seen[0].mask) == "causal & padding(2×3)"


def run(model, ids):
    output = model(ids)
    return output if isinstance(output, Tensor) else output.logits


@pytest.mark.parametrize("name", MODELS)
def test_the_model_computes_as_it_did_and_is_as_it_was(name, ids):
    """With gradients, and after an exception of the caller or of the model."""
    model = MODELS[name]().eval()
    before, outputs, gradients = state(model), [], []
    for block in (contextlib.nullcontext(), regard.capture(model), contextlib.nullcontext()):
        model.zero_grad()
        with block:
            output = run(model, ids)
            output.square().mean().backward()
        outputs.append(output)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        assert state(model) == before
    # Eager attention is computed in one call for all heads while it is captured, which rounds otherwise.
    close = {"rtol": 1e-3, "atol": 1e-5} if name == "Llama, eager" else {"rtol": 0, "atol": 0}
    for i in (1, 2):
        torch.testing.assert_close(outputs[i], outputs[0], **close)
        torch.testing.assert_close(gradients[i], gradients[0], **close)

    def fail():
        model(ids)
        raise KeyError("mine")

    for wrong in (fail, lambda: model(ids.float())):
        with pytest.raises((KeyError, RuntimeError, ValueError)), regard.capture(model):
            wrong()
        assert state(model) == before
    assert regard.capture(model, inputs=(ids,)).certificate.certified


def test_captures_inside_captures_and_two_models_at_once(model, ids):
    other = copy.deepcopy(model)
    before = state(model)
    with regard.capture(model) as outer, regard.capture(other, layers=[1]) as second:
        with regard.capture(model, heads=[0]) as inner:
            model(ids)
        model(ids[:, :4])
        other(ids[:, :7])
    assert [x[1].shape for x in (outer.passes[0], outer, inner, second)] == [
        (2, 4, 11, 11),
        (2, 4, 4, 4),
        (2, 1, 11, 11),
        (2, 4, 7, 7),
    ]
    assert torch.equal(inner[1, 0].to_dense(), outer.passes[0][1, 0].to_dense())
    assert len(second) == 1
    assert state(model) == before


def test_nothing_holds_on_to_the_model_or_to_what_it_computed(ids):
    model = small_llama()
    seen = regard.capture(model, inputs={"input_ids": ids})
    kept = sum(x.untyped_storage().nbytes() for map in seen for x in (map.q, map.k, map.lse))
    assert kept == seen.nbytes  # no view of anything larger
    assert not any(x.requires_grad for map in seen for x in (map.q, map.k, map.lse))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert seen[0].to_dense().shape == (2, 4, 11, 11)


def test_autocast(model, ids):
    """The attention runs in the lower precision, as without capture; the proof does not."""
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        plain = model(ids).logits
        with regard.capture(model) as seen:
            logits = model(ids).logits
    assert torch.equal(logits, plain)
    assert seen[0].q.dtype == torch.float16
    assert seen.certificate.certified, str(seen.certificate)


def test_what_is_computed_again_for_gradients_is_no_layer(model, ids):
    model.gradient_checkpointing_enable()
    model.train()
    with regard.capture(model) as seen:
        model(ids, labels=ids, use_cache=False).loss.backward()
    assert [layer.key for layer in seen.layers] == [0, 1, 2]


def test_attention_of_two_kinds_has_names_of_its_own(tmp_path):
    settings = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.SiglipVisionConfig(**settings, image_size=16, patch_size=4)
    model = transformers.SiglipVisionModel(config).eval()
    seen = regard.capture(model, inputs={"pixel_values": torch.randn(1, 3, 16, 16)})
    assert [layer.key for layer in seen.layers] == [0, 1, "head.attention.0"]
    assert seen["head.attention.0"].shape == (1, 4, 1, 16)
    seen.save(tmp_path)
    assert torch.equal(regard.load(tmp_path)[0].to_dense(), seen[0].to_dense())


def test_static_caches_are_copied(model, ids):
    """What a cache writes later must not change what was seen."""
    model.set_attn_implementation("regard")
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    with torch.no_grad():
        first = model(ids, past_key_values=cache, output_attentions=True).attentions[0]
        before = first.to_dense().clone()
        cache.reset()
        model(ids.flip(1), past_key_values=cache)
    assert torch.equal(first.to_dense(), before)


class OneHead(nn.Module):
    def forward(self, x, mask=None):
        return scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_an_interrupt_leaves_nothing_behind():
    def interrupted(*_):
        raise KeyboardInterrupt

    model = OneHead()
    model.register_forward_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        regard.capture(model, inputs={"x": torch.randn(1, 2, 6, 8)})
    assert not current_listeners()
