"""No correct implementation is called wrong, and its output is really compared."""

import importlib
import itertools

import pytest
import torch.nn.functional as F

import regard
import regard.layers
import regard.stages
from regard.layers.rotary import Rotary
from tests.checker.corpus import right, wrong
from tests.sampling import share

# These two are no attention. The unscaled stage is no scaled dot-product attention, and says so below.
OTHER_STAGES = {"LearnedPositions", "SmallGPT", "UnscaledSelfAttention"}
STAGES = [
    name
    for name in regard.stages.__all__
    if isinstance(getattr(regard.stages, name), type) and name not in OTHER_STAGES
]


def assert_right(thing, *says, **options):
    return right(thing, "passed output", *says, **options).judge()


@pytest.mark.parametrize("name", share([*STAGES, "simplified_self_attention"], 5))
def test_every_stage(name):
    assert assert_right(getattr(regard.stages, name)).warnings == []


def test_the_stage_before_the_scale_lacks_the_scale():
    wrong(regard.stages.UnscaledSelfAttention, named=("no-scale",)).judge()


OPTIONS = [
    {"sinks": True, "softcap": 5.0, "mask": regard.causal & regard.window(3), "dropout": 0.1, "scale": 0.3},
    {"num_kv_heads": 2, "mask": regard.causal, "qkv_bias": True, "out_bias": True},
    {"rotary": Rotary(12), "mask": regard.causal, "qk_norm": True},
    {},
    {"head_dim": 16, "num_kv_heads": 1, "mask": regard.causal},
]


@pytest.mark.parametrize("options", share(OPTIONS, 5), ids=str)
def test_the_layer(options):
    cache = ["passed cache"] if "mask" in options else []
    assert assert_right(regard.layers.Attention(48, 4, **options), *cache).warnings == []


@pytest.mark.at_length("test_the_layer")
def test_the_layer_as_a_class():
    assert_right(regard.layers.Attention)


def test_functions():
    assert_right(F.scaled_dot_product_attention)
    for function in (regard.attend, regard.scaled_dot_product_attention):
        assert assert_right(function).warnings == []


def of_transformers(family, implementation):
    """A small attention module of Transformers, with random weights."""
    transformers = pytest.importorskip("transformers")
    folder = f"transformers.models.{family}.modeling_{family}"
    size = {"hidden_size": 48, "num_attention_heads": 4}
    name, options = {
        "gpt2": ("GPT2", {"n_embd": 48, "n_head": 4, "n_positions": 32}),
        "llama": ("Llama", size | {"num_key_value_heads": 2}),
        "bert": ("Bert", size),
        "gemma": ("Gemma", size | {"num_key_value_heads": 1, "head_dim": 12}),
        "gemma2": ("Gemma2", size | {"num_key_value_heads": 2, "head_dim": 12, "query_pre_attn_scalar": 20}),
    }[family]
    config = getattr(transformers, f"{name}Config")(**options)
    config._attn_implementation = implementation
    kind = "BertSelfAttention" if family == "bert" else f"{name}Attention"
    return getattr(importlib.import_module(folder), kind)(config, layer_idx=0)


# F.scaled_dot_product_attention has no soft cap, so Gemma 2 runs in the eager way only.
FAMILIES = [*itertools.product(["gpt2", "llama", "bert", "gemma"], ["eager", "sdpa"]), ("gemma2", "eager")]


@pytest.mark.parametrize(("family", "implementation"), share(FAMILIES, 6))
def test_attention_of_transformers(family, implementation):
    assert_right(of_transformers(family, implementation), "passed cache")


@pytest.mark.at_length("test_layers_without_names_inside_a_norm_and_a_residual")
def test_attention_with_its_norm_and_residual_is_compared_inside():
    pytest.importorskip("transformers")
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertAttention

    assert_right(BertAttention(BertConfig(hidden_size=48, num_attention_heads=4)), "to `output.dense`")
