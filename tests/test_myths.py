"""What the page of myths says of models of Transformers; `test_docs` runs its other claims as sessions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard.stages import ProjectedMultiHeadAttention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tiny(family: str, **options: object) -> nn.Module:
    """A model of a family with random weights: the smallest there can be."""
    import transformers

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 11}
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=8, **options)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "biased"),
    [("GPT2", True), ("GPTNeoX", True), ("Qwen2", True), ("Qwen3", False), ("Llama", False)],
)
def test_who_has_a_bias_on_queries_keys_and_values(family: str, biased: bool) -> None:
    """Claim: no bias on Q/K/V follows GPT-2. Measured: GPT-2 has one, and so do GPT-NeoX and Qwen2."""
    names = {name for name, _ in tiny(family).named_parameters()}
    projections = ("c_attn.", "query_key_value.", "q_proj.", "k_proj.", "v_proj.")
    of_attention = {name for name in names if any(projection in name for projection in projections)}
    assert of_attention
    assert any(name.endswith(".bias") for name in of_attention) == biased


@pytest.mark.parametrize(
    ("zero_biases", "transposed", "heads", "same"),
    [(True, True, 1, True), (False, True, 1, False), (True, False, 1, False), (True, True, 2, False)],
)
def test_a_bias_free_single_head_is_gpt2_only_if_three_things_hold(
    zero_biases: bool, transposed: bool, heads: int, same: bool
) -> None:
    """Claim: it gives GPT-2's output. Measured: with one head, no biases and transposed weights, to 1e-6."""
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(n_embd=32, n_head=heads, attn_pdrop=0.0, resid_pdrop=0.0)
    config._attn_implementation = "sdpa"
    theirs = GPT2Attention(config, layer_idx=0).eval()
    ours = ProjectedMultiHeadAttention(32, num_heads=1).eval()
    with torch.no_grad():
        for projection in (theirs.c_attn, theirs.c_proj):
            projection.weight.normal_(std=0.2)
            projection.bias.normal_(std=0.0 if zero_biases else 0.2)
        for linear, weight in zip(
            (ours.W_q, ours.W_k, ours.W_v, ours.W_o),
            (*theirs.c_attn.weight.split(32, dim=1), theirs.c_proj.weight),
            strict=True,
        ):
            linear.weight.copy_(weight.T if transposed else weight)
        x = drawn(2, 16, 32)
        apart = (ours(x) - theirs(x)[0]).abs().max().item()
    assert (apart < 5e-6) == same
    assert same or apart > 0.05
