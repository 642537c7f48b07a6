"""Interventions on every family that capture serves: a head without edges is a head set to zero."""

import pytest
import torch
from torch import Tensor

import regard
from tests.against.small_sizes import EXPERTS, LATENT, LLAMA
from tests.against.test_capture_families import BOTH, DECODERS, ENCODERS, build
from tests.sampling import share

PATCHES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2}
PATCHES |= {"image_size": 32, "patch_size": 8}
OTHERS = {
    "differential": ("DiffLlamaForCausalLM", LLAMA),
    "latent": ("DeepseekV3ForCausalLM", LLAMA | LATENT | EXPERTS),
    "vit": ("ViTModel", PATCHES),
    "swin": (
        "SwinModel",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
        | {"window_size": 4},
    ),
}
FAMILIES = DECODERS | ENCODERS | BOTH | OTHERS


def inputs_of(family):
    draw = torch.Generator().manual_seed(0)
    if family in ("vit", "swin"):
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=draw)}
    inputs = {"input_ids": torch.randint(3, 97, (2, 14), generator=draw)}
    if family in BOTH:
        inputs["decoder_input_ids"] = torch.randint(3, 97, (2, 7), generator=draw)
    return inputs


def numbers(model, inputs):
    with torch.no_grad():
        outputs = model(**inputs).to_tuple()
    return torch.cat([x.flatten() for x in outputs if isinstance(x, Tensor)])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", [*OTHERS, *share(DECODERS | ENCODERS | BOTH, 4)])
def test_a_head_without_edges_is_a_head_set_to_zero(family):
    torch.manual_seed(0)
    model, inputs = build(*FAMILIES[family]), inputs_of(family)
    plain = numbers(model, inputs)
    keys = [layer.key for layer in regard.capture(model, inputs=inputs).layers]
    for key in {keys[0], keys[-1]}:
        with regard.intervene(model, regard.ablate(key, 1)):
            ablated = numbers(model, inputs)
        with regard.intervene(model, regard.block(key, 1, edges=regard.full)):
            blocked = numbers(model, inputs)
        torch.testing.assert_close(blocked, ablated, rtol=1e-4, atol=1e-4)
        assert (ablated - plain).abs().max() > 1e-4
    assert torch.equal(numbers(model, inputs), plain)
