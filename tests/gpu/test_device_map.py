"""A model whose layers run on two devices, as `device_map` splits it, captured in one process.

The second device is the CPU, so that one GPU is enough. Which devices the weights are on makes no difference
to a capture: each layer's map stays on the device where its attention ran.
"""

import pytest
import torch

import regard

transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).eval()


def run_layers_on(model, devices):
    """Move each layer to its device, with the hooks that `device_map` uses to move its inputs there."""
    for layer, device in zip(model.model.layers, devices, strict=True):
        accelerate.hooks.add_hook_to_module(
            layer.to(device), accelerate.hooks.AlignDevicesHook(execution_device=device)
        )
    last = devices[-1]
    for module in (model.model.norm, model.lm_head):
        accelerate.hooks.add_hook_to_module(
            module.to(last), accelerate.hooks.AlignDevicesHook(execution_device=last)
        )


def test_layers_on_two_devices_are_captured_and_certified(model, tmp_path):
    ids = torch.randint(0, 64, (1, 50))
    expected = regard.capture(model, inputs={"input_ids": ids})
    run_layers_on(model, ["cpu", "cpu", "cuda:0", "cuda:0"])
    with torch.no_grad():
        plain = model(ids).logits
        with regard.capture(model) as seen:
            logits = model(ids).logits
    assert [str(m.device) for m in seen] == ["cpu", "cpu", "cuda:0", "cuda:0"]
    assert torch.equal(logits, plain)
    assert seen.certificate.certified
    assert not seen.missing
    for m, e in zip(seen, expected, strict=True):
        assert (m.to_dense().cpu() - e.to_dense()).abs().max() < 1e-6
    assert len(seen.heads()) == 16
    seen.save(tmp_path / "capture")
    assert regard.load(tmp_path / "capture").certificate.certified
    assert seen.to_html(tmp_path / "page.html").exists()
    with regard.capture(model) as generated:
        model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert generated.certificate.certified
    assert generated[3].shape[-1] == 53


@pytest.mark.parametrize("last", ["cpu", "disk"])
def test_device_map_that_offloads_layers(model, last, tmp_path):
    ids = torch.randint(0, 64, (1, 50))
    expected = regard.capture(model, inputs={"input_ids": ids})
    model.save_pretrained(tmp_path / "model")
    places = {f"model.layers.{i}": 0 if i < 2 else last for i in range(4)}
    places |= {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": last, "lm_head": last}
    split = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offloaded"
    ).eval()
    seen = regard.capture(split, inputs={"input_ids": ids.cuda()})
    assert [str(m.device) for m in seen] == ["cuda:0"] * 4  # offloaded weights run on the GPU too
    assert seen.certificate.certified
    assert not seen.missing
    for m, e in zip(seen, expected, strict=True):
        assert (m.to_dense().cpu() - e.to_dense()).abs().max() < 1e-6
