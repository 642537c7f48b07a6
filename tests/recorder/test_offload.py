"""Models whose layers stay on disk until they run, as `device_map` of Transformers places them."""

import pytest
import torch

import regard
from tests.recorder.small_llama import small_llama

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def test_layers_offloaded_to_disk_are_captured_and_certified(tmp_path):
    whole = small_llama(num_hidden_layers=4)
    ids = torch.randint(0, 64, (1, 40))
    expected = regard.capture(whole, inputs={"input_ids": ids})
    whole.save_pretrained(tmp_path / "model")
    places = {f"model.layers.{i}": "cpu" if i < 2 else "disk" for i in range(4)}
    places |= {
        "model.embed_tokens": "cpu",
        "model.rotary_emb": "cpu",
        "model.norm": "disk",
        "lm_head": "disk",
    }
    split = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offloaded"
    ).eval()
    assert split.model.layers[3].self_attn.q_proj.weight.is_meta  # nothing of it is in memory
    with torch.no_grad():
        plain = split(ids).logits
        with regard.capture(split) as seen:
            logits = split(ids).logits
    assert torch.equal(logits, plain)
    assert seen.certificate.certified
    assert not seen.missing
    for m, e in zip(seen, expected, strict=True):
        assert torch.equal(m.to_dense(), e.to_dense())
    with regard.capture(split) as generated:
        split.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert generated.certificate.certified
    with torch.no_grad(), regard.intervene(split, regard.ablate(3, 1)):
        edited = split(ids).logits
    with torch.no_grad(), regard.intervene(whole, regard.ablate(3, 1)):
        assert torch.equal(edited, whole(ids).logits)
