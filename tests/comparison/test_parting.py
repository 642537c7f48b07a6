"""Where two captures part: planted causes are named, and rounding is called rounding."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.recorder import Capture
from tests.recorder.small_llama import small_llama

IDS = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"mask": regard.causal, "scale": 0.4, "softcap": 3.0, "sinks": torch.ones(4)}
OTHERS: dict[str, Any] = {
    "mask": regard.causal & regard.window(3),
    "bias": regard.causal & regard.tensor_mask(torch.linspace(0, 1, 36).view(6, 6)),
    "scale": 0.39,
    "soft cap": 3.5,
    "sinks": torch.tensor([1.0, 1.0, 1.1, 1.0]),
    "no soft cap": None,
    "no sinks": None,
}
FIELDS = {"soft cap": "softcap", "bias": "mask", "no soft cap": "softcap", "no sinks": "sinks"}


def run(dtype: torch.dtype = torch.float32, at: int = 1, **change: Any) -> Capture:
    """Three layers of another engine; layer `at` has other options, or tensors multiplied by a number."""
    draw = torch.Generator().manual_seed(0)
    layers = []
    for number in range(3):
        q, k, v = (torch.randn(1, heads, 6, 8, generator=draw).to(dtype) for heads in (4, 2, 2))
        options = dict(OPTIONS)
        tensors = {"q": q, "k": k, "v": v}
        if number == at:
            for name, value in change.items():
                if name in options:
                    options[name] = value
                elif name in tensors:
                    tensors[name] = tensors[name] * value
        options["sinks"] = None if options["sinks"] is None else options["sinks"].to(dtype)
        output = regard.attend(**tensors, **options)
        if number == at and "output" in change:
            output = output * change["output"]
        layers.append({**tensors, **options, "output": output})
    return Capture.from_tensors(layers)


@pytest.mark.parametrize("cause", OTHERS)
def test_another_setting_is_named(cause: str) -> None:
    field = FIELDS.get(cause, cause)
    found = regard.compare(run(), run(**{field: OTHERS[cause]})).parting()
    assert found.layer == 1
    assert found.parts == (cause.removeprefix("no "),)
    assert not found.rounding_only
    assert cause.removeprefix("no ") in str(found)


@pytest.mark.parametrize(("tensor", "part"), [("q", "q"), ("k", "k"), ("v", "values"), ("output", "output")])
def test_other_tensors_are_named(tensor: str, part: str) -> None:
    found = regard.compare(run(), run(at=2, **{tensor: 1.01})).parting()
    assert (found.layer, found.parts) == (2, (part,))
    assert found.differences[0].layer == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_another_dtype_is_rounding_only(dtype: torch.dtype) -> None:
    found = regard.compare(run(), run(dtype)).parting()
    assert found.rounding_only, str(found)
    assert "rounding only: 3 layers agree" in str(found)
    found = regard.compare(run(), run(dtype, scale=0.3)).parting()
    assert (found.layer, found.parts) == (1, ("scale",))


def capture(model: Any) -> Capture:
    return regard.capture(model, inputs={"input_ids": IDS}, values=True)


def test_the_causes_of_a_model_are_named() -> None:
    pytest.importorskip("transformers")
    right = capture(small_llama("eager"))
    assert regard.compare(right, capture(small_llama("sdpa"))).parting().rounding_only
    rotary = capture(small_llama(rope_parameters={"rope_type": "default", "rope_theta": 50_000.0}))
    found = regard.compare(right, rotary).parting()
    assert (found.layer, found.parts) == (0, ("q", "k"))
    assert "rotary positions" in str(found)
    model = small_llama()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 1.01
    found = regard.compare(right, capture(model)).parting()
    assert (found.layer, found.parts) == (1, ("q", "k", "values"))
    assert "between the last layer and it" in str(found)
    model = small_llama()
    model.model.layers[1].self_attn.scaling *= 2
    assert regard.compare(right, capture(model)).parting().parts == ("scale",)
    assert regard.compare(right, capture(small_llama().bfloat16())).parting().rounding_only


def test_two_texts_are_refused_and_a_layer_that_one_lacks_is_said() -> None:
    model = small_llama()
    a, b = (regard.capture(model, inputs=(ids,)) for ids in (IDS, (IDS + 1) % 97))
    with pytest.raises(ValueError, match="expected two runs on one text"):
        regard.compare(a, b).parting()
    fewer = Capture(layers=run().layers[:2])
    found = regard.compare(run(), fewer).parting()
    assert str(found).startswith("rounding only: 2 of 3 layers agree")
    assert "not compared: layer 2" in str(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_eager_code_rounds_by_itself_is_no_cause(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.4,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()  # scores of 50
    a = regard.capture(model, inputs=(IDS,), values=True)
    model.set_attn_implementation("eager")
    b = regard.capture(model.to(dtype), inputs=(IDS,), values=True)
    assert regard.compare(a, b).parting().rounding_only


def test_left_padding_that_one_run_sees_is_named_in_the_layer_that_sees_it() -> None:
    model, pads = small_llama(), 3
    ids = torch.nn.functional.pad(IDS, (pads, 0))
    is_token = torch.nn.functional.pad(torch.ones_like(IDS), (pads, 0))
    batch = {"input_ids": ids, "position_ids": (is_token.cumsum(1) - 1).clamp(min=0)}
    hidden = regard.capture(model, inputs={**batch, "attention_mask": is_token}, values=True)
    seen = regard.capture(model, inputs=batch, values=True)
    seen.attention_mask = is_token.bool()  # which the model was not told
    right = capture(model)
    assert regard.compare(right, hidden).parting().rounding_only
    assert regard.compare(seen, seen).parting().rounding_only
    for other in (right, hidden):
        for found in (regard.compare(other, seen).parting(), regard.compare(seen, other).parting()):
            assert (found.layer, found.parts) == (0, ("mask",)), str(found)


@pytest.mark.parametrize("part", ["q", "k", "values"])
def test_one_wrong_token_is_no_rounding_of_bfloat16(part: str) -> None:
    """Of 512 tokens it is 4 % of the norm, less than bfloat16 may round in all of them."""
    draw = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(1, 2, 512, 16, generator=draw).bfloat16() for name in "qkv"}
    others = {name: x.clone() for name, x in tensors.items()}
    others[part[0]][:, :, 300] = others[part[0]][:, :, 7]
    a, b = (
        Capture.from_tensors([{**x, "mask": regard.causal, "output": regard.attend(**x, mask=regard.causal)}])
        for x in (tensors, others)
    )
    found = regard.compare(a, b).parting()
    assert (found.layer, found.parts) == (0, (part,)), str(found)
