"""Two captures compared: tokens aligned, distances as of dense matrices, and where and why they part."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.comparison.compared_text import align
from regard.recorder import Capture
from tests.captures import layer_of
from tests.recorder.small_llama import small_llama
from tests.recorder.text_models import TEXTS, made, words

ids = st.lists(st.integers(0, 4), max_size=9)


@given(a=ids, b=ids)
def test_an_alignment_pairs_equal_tokens_in_order(a, b):
    found = align(a, b)
    pairs = list(zip(found.a.tolist(), found.b.tolist(), strict=True))
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))
    assert len(align(a, a).a) == len(a)
    assert bool(pairs) == bool({*a} & {*b})


def dense_distance(A, B, pairs):
    """Total variation distances of shared rows (H, n), with a key of its own for each token."""
    partner = dict(pairs)
    rows = []
    for i, j in pairs:
        other = set(range(B.shape[-1])) - {partner[k] for k in partner}
        total = B[:, j, sorted(other)].sum(-1)
        for k in range(A.shape[-1]):
            total = total + (A[:, i, k] - (B[:, j, partner[k]] if k in partner else 0.0)).abs()
        rows.append(total / 2)
    return torch.stack(rows, -1)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "GPT"])
def test_two_prompts(name):
    model = made(name)
    texts = "the cat sat on a mat", "the mat sat on it"
    a, b = (regard.capture(model, text=text, tokenizer=words()) for text in texts)
    found = regard.compare(a, b)
    pairs = [(0, 0), (2, 2), (3, 3)]  # the sat on
    assert [token.text for token in found.only_a] == ["cat", "a", "mat"]
    assert [token.text for token in found.only_b] == ["mat", "it"]
    for layer in (0, 1):
        A, B = (seen[layer].to_dense()[0].double() for seen in (a, b))
        expected = dense_distance(A, B, pairs)
        for head in range(4):
            distance = found.distances[found.places.index((layer, head))]
            torch.testing.assert_close(distance, expected[head], atol=1e-6, rtol=0)
            shared = [i for i, _ in pairs]
            torch.testing.assert_close(
                found[layer, head].to_dense(),
                (A[head][shared][:, shared] - B[head][shared][:, shared]).float(),
                atol=1e-6,
                rtol=0,
            )
    assert [head.distance for head in found.heads] == sorted(
        (head.distance for head in found.heads), reverse=True
    )
    assert len(found.to_pandas()) == 8
    assert "only in a: 'cat' 'a' 'mat'" in str(found)


def test_two_checkpoints_on_one_text():
    model, other = made("GPT"), made("GPT")
    with torch.no_grad():
        for parameter in other.blocks[1].attention.parameters():
            parameter.mul_(1.5)
    a, b = (regard.capture(x, text=TEXTS[0], tokenizer=words()) for x in (model, other))
    found = regard.compare(a, b)
    assert found.only_a == found.only_b == []
    expected = (a[1].to_dense() - b[1].to_dense()).double().abs().sum(-1).mean(-1)[0] / 2
    by_head = {(head.layer, head.head): head.distance for head in found.heads}
    assert by_head[0, 0] == pytest.approx(0, abs=1e-7)
    for head in range(4):
        assert by_head[1, head] == pytest.approx(float(expected[head]), abs=1e-6)
    assert max(by_head.values()) > 0.01


def test_two_texts_of_one_padded_batch():
    model = made("Llama")
    together = regard.capture(model, text=TEXTS, tokenizer=words())
    alone = [regard.capture(model, text=text, tokenizer=words()) for text in TEXTS]
    one, other = regard.compare(together, together, batch=(0, 2)), regard.compare(alone[0], alone[2])
    torch.testing.assert_close(torch.stack(one.distances), torch.stack(other.distances), atol=1e-6, rtol=0)
    assert one.only_b == other.only_b
    torch.testing.assert_close(one[1, 2].to_dense(), other[1, 2].to_dense(), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="batch: expected which of the 3 texts"):
        regard.compare(together, alone[0])
    with pytest.raises(ValueError, match="batch: expected one number, or one for each capture"):
        regard.compare(together, together, batch=(0, 1, 2))


def test_only_shared_layers_and_heads_are_compared():
    model = made("Llama")
    options = {"text": TEXTS[0], "tokenizer": words()}
    whole = regard.capture(model, **options)
    part = regard.capture(model, layers=[1], heads=[3, 1], **options)
    found = regard.compare(whole, part)
    assert found.places == ((1, 1), (1, 3))
    assert found.left_out == (0,)
    assert all(head.distance < 1e-7 for head in found.heads)
    with pytest.raises(ValueError, match="layers and heads that both captures have, got layers 0 and 1"):
        regard.compare(regard.capture(model, layers=[0], **options), part)
    with pytest.raises(KeyError, match="expected a layer and a head that both captures have"):
        found[0, 0]


def test_what_cannot_be_compared_is_refused():
    model = made("Llama")
    seen = regard.capture(model, text="the cat sat", tokenizer=words())
    other = words()
    other.model = type(other.model)({"cat": 1, "?": 0, "the": 2, "sat": 3}, unk_token="?")
    with pytest.raises(
        ValueError, match="expected a capture with the same tokenizer, but token 1 is 'the' in one"
    ):
        regard.compare(seen, regard.capture(model, text="the cat sat", tokenizer=other))
    with pytest.raises(ValueError, match="no token is in both: are they of another tokenizer"):
        regard.compare(seen, regard.capture(model, text="on a mat", tokenizer=words()))
    with pytest.raises(ValueError, match=r"seen_b: expected a capture, as regard\.capture returns, got str"):
        regard.compare(seen, "the cat")
    q = torch.randn(1, 2, 5, 4)
    unknown = [Capture([layer_of(regard.attention_map(q[:, :, :n], q[:, :, :n]))]) for n in (5, 4)]
    assert regard.compare(unknown[0], unknown[0]).heads[0].distance == 0
    with pytest.raises(ValueError, match=r"as many queries.*since the tokens are not known, got 5 and 4"):
        regard.compare(*unknown)


IDS = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(0))
OPTIONS = {"mask": regard.causal, "scale": 0.4, "softcap": 3.0, "sinks": torch.ones(4)}
OTHERS = {
    "mask": regard.causal & regard.window(3),
    "bias": regard.causal & regard.tensor_mask(torch.linspace(0, 1, 36).view(6, 6)),
    "scale": 0.39,
    "soft cap": 3.5,
    "sinks": torch.tensor([1.0, 1.0, 1.1, 1.0]),
    "no soft cap": None,
    "no sinks": None,
}
FIELDS = {"soft cap": "softcap", "bias": "mask", "no soft cap": "softcap", "no sinks": "sinks"}


def run(dtype=torch.float32, at=1, **change):
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
def test_another_setting_is_named(cause):
    field = FIELDS.get(cause, cause)
    found = regard.compare(run(), run(**{field: OTHERS[cause]})).parting()
    assert found.layer == 1
    assert found.parts == (cause.removeprefix("no "),)
    assert not found.rounding_only
    assert cause.removeprefix("no ") in str(found)


@pytest.mark.parametrize(("tensor", "part"), [("q", "q"), ("k", "k"), ("v", "values"), ("output", "output")])
def test_other_tensors_are_named(tensor, part):
    found = regard.compare(run(), run(at=2, **{tensor: 1.01})).parting()
    assert (found.layer, found.parts) == (2, (part,))
    assert found.differences[0].layer == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_another_dtype_is_rounding_only(dtype):
    found = regard.compare(run(), run(dtype)).parting()
    assert found.rounding_only, str(found)
    assert "rounding only: 3 layers agree" in str(found)
    found = regard.compare(run(), run(dtype, scale=0.3)).parting()
    assert (found.layer, found.parts) == (1, ("scale",))


def capture(model):
    return regard.capture(model, inputs={"input_ids": IDS}, values=True)


def test_the_causes_of_a_model_are_named():
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


def test_two_texts_are_refused_and_a_layer_that_one_lacks_is_said():
    model = small_llama()
    a, b = (regard.capture(model, inputs=(ids,)) for ids in (IDS, (IDS + 1) % 97))
    with pytest.raises(ValueError, match="expected two runs on one text"):
        regard.compare(a, b).parting()
    fewer = Capture(layers=run().layers[:2])
    found = regard.compare(run(), fewer).parting()
    assert str(found).startswith("rounding only: 2 of 3 layers agree")
    assert "not compared: layer 2" in str(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_eager_code_rounds_by_itself_is_no_cause(dtype):
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


def test_left_padding_that_one_run_sees_is_named_in_the_layer_that_sees_it():
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
def test_one_wrong_token_is_no_rounding_of_bfloat16(part):
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
