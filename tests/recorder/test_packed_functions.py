"""Attention functions that pack: documents, of which they are told without a mask, and grouped heads."""

import itertools

import pytest
import torch

import regard
from tests.recorder.small_llama import registered, small_llama

transformers = pytest.importorskip("transformers")
from transformers.masking_utils import sdpa_mask  # noqa: E402

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def packed(module, query, key, value, mask, scaling=None, cu_seq_lens_q=None, position_ids=None, **kwargs):
    """FlashAttention's packed path, written with plain operators."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    T = query.shape[2]
    edges = [0, T]
    if cu_seq_lens_q is not None:
        edges = cu_seq_lens_q.tolist()
    elif position_ids is not None:
        edges = [*(position_ids[0] == 0).nonzero().flatten().tolist(), T]
    output = torch.zeros_like(query)
    for first, last in itertools.pairwise(edges):
        document = slice(first, last)
        scores = query[:, :, document] @ key[:, :, document].mT * scaling
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        output[:, :, document] = weights @ value[:, :, document]
    return output.transpose(1, 2).contiguous(), None


def unpacked(*args, position_ids=None, **kwargs):
    """The same, but it is told of the documents and ignores them."""
    return packed(*args, **kwargs)


@pytest.fixture
def model():
    with registered(lambda *args, **kwargs: None, packed=packed, unpacked=unpacked):
        yield small_llama("packed")


@pytest.mark.parametrize("edges", [False, True])
def test_documents_are_heard_and_certified(model, edges):
    texts = [{"input_ids": torch.randint(3, 64, (n,)).tolist()} for n in (6, 9, 5)]
    collate = transformers.DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=edges)
    batch = collate(texts)
    with regard.capture(model) as seen, torch.no_grad():
        model(**batch)
    assert [str(layer.map.mask) for layer in seen.layers] == ["causal & documents(1×20)"] * 2
    assert seen.certificate.certified
    assert regard.audit(model, batch).verdict == "right"


def test_a_function_that_ignores_them_is_certified_as_what_it_computes(model):
    batch = {
        "input_ids": torch.randint(3, 64, (1, 7)),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]),
    }
    model.set_attn_implementation("unpacked")
    with regard.capture(model) as seen, torch.no_grad():
        model(**batch)
    assert [str(layer.map.mask) for layer in seen.layers] == ["causal"] * 2
    assert seen.certificate.certified
    assert regard.audit(model, batch).diagnoses[0].name == "documents-leak"


def packing(module, query, key, value, mask, **options):
    """A single token of H query heads is H / G tokens of the G heads of its keys, as in Transformers 5.23."""
    B, H, T, D = query.shape
    G, is_causal = key.shape[1], mask is None and T > 1
    group = T == 1 and H > G
    query = query.reshape(B, G, H // G, D) if group else query
    scale = options["scaling"]
    attend = torch.nn.functional.scaled_dot_product_attention
    output = attend(query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=not group)
    return output.reshape(B, H, T, D).transpose(1, 2).contiguous(), None


@pytest.fixture
def grouping():
    with registered(sdpa_mask, packing=packing):
        yield small_llama("packing")


def padded():
    ids = torch.randint(3, 97, (2, 7))
    is_token = torch.ones_like(ids)
    is_token[1, :2] = 0
    return ids, is_token


def generate(model, ids, is_token):
    return model.generate(
        ids,
        attention_mask=is_token,
        max_new_tokens=4,
        do_sample=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )


def test_a_generation_is_the_capture_of_its_text(grouping):
    ids, is_token = padded()
    with regard.capture(grouping) as seen:
        text = generate(grouping, ids, is_token).sequences[:, :-1]
    whole = torch.cat([is_token, is_token.new_ones(2, 3)], 1)
    expected = regard.capture(grouping, inputs={"input_ids": text, "attention_mask": whole})
    assert seen.certificate.certified
    assert torch.equal(seen.ids, text)
    for m, e in zip(seen, expected, strict=True):
        torch.testing.assert_close(m.to_dense(), e.to_dense(), **CLOSE)


def test_an_edit_names_the_heads_of_the_model(grouping):
    ids, is_token = padded()
    edited = []
    for implementation in ("packing", "eager"):
        grouping.set_attn_implementation(implementation)
        with regard.intervene(grouping, regard.ablate(1, 3)):
            edited.append(generate(grouping, ids, is_token).logits)
    torch.testing.assert_close(*edited, **CLOSE)
    assert (edited[0][-1] - generate(grouping, ids, is_token).logits[-1]).abs().max() > 1e-2
