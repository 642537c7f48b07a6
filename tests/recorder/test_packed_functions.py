"""Attention functions that are told of packed documents, as FlashAttention's are, without a mask."""

import pytest
import torch

import regard
from tests.recorder.packed_function import packed_attention, unpacked_attention
from tests.recorder.small_llama import small_llama

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model():
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("packed", packed_attention)
    AttentionInterface.register("unpacked", unpacked_attention)
    for name in ("packed", "unpacked"):
        AttentionMaskInterface.register(name, lambda *args, **kwargs: None)
    yield small_llama("packed")
    for name in ("packed", "unpacked"):
        AttentionInterface._global_mapping.pop(name)
        AttentionMaskInterface._global_mapping.pop(name)


@pytest.mark.parametrize("edges", [False, True])
def test_documents_are_heard_and_certified(model, edges):
    from transformers import DataCollatorWithFlattening

    texts = [{"input_ids": torch.randint(3, 64, (n,)).tolist()} for n in (6, 9, 5)]
    batch = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=edges)(texts)
    with regard.capture(model) as seen, torch.no_grad():
        model(**batch)
    assert [str(layer.map.mask) for layer in seen.layers] == ["causal & documents(1×20)"] * 2
    assert all(layer.evidence.certified for layer in seen.layers)
    assert regard.audit(model, batch).verdict == "right"


def test_a_function_that_ignores_them_is_certified_as_what_it_computes(model):
    batch = {
        "input_ids": torch.randint(3, 64, (1, 7)),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]),
    }
    model.set_attn_implementation("unpacked")
    try:
        with regard.capture(model) as seen, torch.no_grad():
            model(**batch)
        found = regard.audit(model, batch)
    finally:
        model.set_attn_implementation("packed")
    assert [str(layer.map.mask) for layer in seen.layers] == ["causal"] * 2
    assert all(layer.evidence.certified for layer in seen.layers)
    assert found.diagnoses[0].name == "documents-leak"
