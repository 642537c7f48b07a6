"""Grouped heads that a function packs into the axis of the tokens, as Transformers does since 5.23."""

import pytest
import torch

import regard

transformers = pytest.importorskip("transformers")
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def packing_attention(module, query, key, value, mask, **options):
    """Attention that computes a single token of H query heads as H / G tokens of the G heads of its keys."""
    B, H, T, D = query.shape
    G, is_causal = key.shape[1], mask is None and T > 1
    group = T == 1 and H > G
    query = query.reshape(B, G, H // G, D) if group else query
    scale = options["scaling"]
    attend = torch.nn.functional.scaled_dot_product_attention
    output = attend(query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=not group)
    return output.reshape(B, H, T, D).transpose(1, 2).contiguous(), None


@pytest.fixture
def model(monkeypatch):
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, "packing", packing_attention)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "packing", sdpa_mask)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        attn_implementation="packing",
    )
    return transformers.LlamaForCausalLM(config).eval()


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


def test_a_generation_is_the_capture_of_its_text(model):
    ids, is_token = padded()
    with regard.capture(model) as seen:
        text = generate(model, ids, is_token).sequences[:, :-1]
    whole = torch.cat([is_token, is_token.new_ones(2, 3)], 1)
    with regard.capture(model) as expected, torch.no_grad():
        model(text, attention_mask=whole)
    assert seen.certificate.certified
    assert torch.equal(seen.ids, text)
    for m, e in zip(seen, expected, strict=True):
        torch.testing.assert_close(m.to_dense(), e.to_dense(), **CLOSE)


def test_an_edit_names_the_heads_of_the_model(model):
    ids, is_token = padded()
    with regard.intervene(model, regard.ablate(1, 3)):
        edited = generate(model, ids, is_token)
    model.set_attn_implementation("eager")
    with regard.intervene(model, regard.ablate(1, 3)):
        expected = generate(model, ids, is_token)
    plain = generate(model, ids, is_token)
    torch.testing.assert_close(edited.logits, expected.logits, **CLOSE)
    assert not torch.equal(edited.logits[-1], plain.logits[-1])
