"""The layer against the attention of Transformers' own models, on the same random weights."""

import pytest
import torch
from torch import Tensor, nn

from regard import causal, window
from regard.layers import Attention, KVCache, Llama3Scaling, Rotary, WindowCache

transformers = pytest.importorskip("transformers")

from transformers.models.gpt2.modeling_gpt2 import GPT2Attention  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding  # noqa: E402
from transformers.models.mistral.modeling_mistral import MistralAttention  # noqa: E402
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention  # noqa: E402
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention  # noqa: E402

T = 12
SIZES = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def loaded(ours: Attention, theirs: nn.Module) -> Attention:
    """Our layer with the weights of one of the Llama family."""
    parts = [theirs.q_proj, theirs.k_proj, theirs.v_proj]
    weights = {"qkv.weight": torch.cat([part.weight for part in parts]), "out.weight": theirs.o_proj.weight}
    if theirs.q_proj.bias is not None:
        weights["qkv.bias"] = torch.cat([part.bias for part in parts])
    if hasattr(theirs, "q_norm"):
        weights |= {"query_norm.weight": theirs.q_norm.weight, "key_norm.weight": theirs.k_norm.weight}
    ours.load_state_dict({name: x.detach().clone() for name, x in weights.items()})
    return ours.eval()


def additive(mask) -> Tensor:
    return torch.zeros(1, 1, T, T).masked_fill(~mask.to_dense(T), torch.finfo(torch.float32).min)


def randomised(module: nn.Module) -> nn.Module:
    for weight in module.parameters():
        nn.init.normal_(weight, std=0.5)
    return module.eval()


def case(name: str) -> tuple[Attention, nn.Module, nn.Module, object]:
    """Our layer, theirs, their rotary module, and the mask of a model, by its name."""
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    options: dict = {"num_kv_heads": 2, "head_dim": 8, "rotary": Rotary(8, base=5000.0), "mask": causal}
    if name == "llama3 scaling":
        rope = LLAMA3
        options["rotary"] = Rotary(8, base=500.0, scaling=Llama3Scaling(4.0, 1.0, 4.0, 64))
        config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
        theirs = LlamaAttention(config, 0)
    elif name == "llama":
        config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
        theirs = LlamaAttention(config, 0)
    elif name == "mistral":
        config = transformers.MistralConfig(**SIZES, rope_parameters=rope, sliding_window=5)
        theirs, options["mask"] = MistralAttention(config, 0), causal & window(5)
    elif name == "qwen2":
        config = transformers.Qwen2Config(**SIZES, rope_parameters=rope)
        theirs, options["qkv_bias"] = Qwen2Attention(config, 0), True
    else:
        config = transformers.Qwen3Config(**SIZES, rope_parameters=rope, rms_norm_eps=1e-5)
        theirs, options["qk_norm"], options["norm_eps"] = Qwen3Attention(config, 0), True, 1e-5
    theirs = randomised(theirs)
    return loaded(Attention(24, 4, **options), theirs), theirs, LlamaRotaryEmbedding(config), options["mask"]


@pytest.mark.parametrize("name", ["llama", "llama3 scaling", "mistral", "qwen2", "qwen3"])
def test_llama_family(name: str) -> None:
    ours, theirs, rotary, mask = case(name)
    x = torch.randn(2, T, 24)
    cos_sin = rotary(x, torch.arange(T)[None])
    with torch.no_grad():
        expected, _ = theirs(x, position_embeddings=cos_sin, attention_mask=additive(mask))
        assert torch.allclose(ours(x), expected, rtol=1e-5, atol=1e-5)
        cache = WindowCache(5) if name == "mistral" else KVCache()
        parts = [ours(x[:, a:b], cache=cache) for a, b in ((0, 7), (7, 8), (8, 9), (9, T))]
        assert torch.allclose(torch.cat(parts, 1), expected, rtol=1e-5, atol=1e-5)


def test_llama_with_interleaved_rows_as_gguf_files_have_them() -> None:
    ours, x = case("llama")[0].double(), torch.randn(2, T, 24).double()
    # Within each head of q and k, number i and its partner i + 4 become neighbours.
    order = torch.arange(8).view(2, 4).T.flatten()
    rows = torch.cat([head * 8 + (order if head < 6 else torch.arange(8)) for head in range(8)])
    other = Attention(
        24, 4, num_kv_heads=2, head_dim=8, rotary=Rotary(8, base=5000.0, interleaved=True), mask=causal
    )
    state = ours.state_dict()
    other.double().load_state_dict(state | {"qkv.weight": state["qkv.weight"][rows]})
    assert torch.allclose(other(x), ours(x), rtol=0, atol=1e-12)


def test_gpt2() -> None:
    config = transformers.GPT2Config(n_embd=24, n_head=4, attn_implementation="eager")
    theirs = randomised(GPT2Attention(config, layer_idx=0))
    ours = Attention(24, 4, qkv_bias=True, out_bias=True, mask=causal)
    ours.load_state_dict(
        {
            "qkv.weight": theirs.c_attn.weight.detach().T,
            "qkv.bias": theirs.c_attn.bias.detach(),
            "out.weight": theirs.c_proj.weight.detach().T,
            "out.bias": theirs.c_proj.bias.detach(),
        }
    )
    x = torch.randn(2, T, 24)
    with torch.no_grad():
        expected = theirs(x, attention_mask=additive(causal))[0]
        assert torch.allclose(ours(x), expected, rtol=1e-5, atol=1e-5)
