"""Interventions by other means: hooks on slices of output projections, dense masks on eager attention."""

import copy
import inspect
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from regard.gpt import GPT, Config
from tests.against.small_sizes import BERT
from tests.against.test_capture_families import BOTH, DECODERS

transformers = pytest.importorskip("transformers")

FAMILIES = {name: DECODERS[name] for name in ("gpt2", "llama", "qwen3", "gemma 2", "gpt-oss")} | {
    "bert": ("BertForMaskedLM", BERT),
    "t5": BOTH["t5"],
}
OUTPUTS = {  # the end of the name of the attention module, and of its output projection
    "gpt2": (".attn", ".attn.c_proj"),
    "bert": (".attention.self", ".attention.output.dense"),
    "t5": ("Attention", "Attention.o"),
}


def build(family, dtype=torch.float32):
    """A small model with weights large enough that its heads differ; a copy, which a test may change."""
    model = copy.deepcopy(_built(family)).to(dtype)
    torch.manual_seed(0)  # whether or not it was made just now
    return model


@cache
def _built(family):
    name, settings = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 or parameter.abs().max() == 0:
                parameter.normal_(std=0.3)
    return model


def small_gpt(**changes):
    """A small GPT whose heads differ."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "context_length": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    model = GPT(Config(**sizes | changes, d_model=32)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model


def inputs_of(family, T=11, batch=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    inputs = {"input_ids": torch.randint(1, 97, (batch, T), generator=draw)}
    if family == "t5":
        inputs["decoder_input_ids"] = torch.randint(1, 97, (batch, 7), generator=draw)
    return inputs


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def eager_copy(model):
    """The same model with eager attention."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    return model


def layer_modules(family, model):
    """The attention module and the output projection of each layer, by the layer's key."""
    ends = OUTPUTS.get(family, (".self_attn", ".self_attn.o_proj"))
    modules = dict(model.named_modules())
    layers = {}
    counts = {}
    for name, module in modules.items():
        if not name.endswith(ends[0]):
            continue
        stack = ""
        if family == "t5":
            stack = "encoder" if name.startswith("encoder") else "cross" if "EncDec" in name else "decoder"
        number = counts.setdefault(stack, 0)
        counts[stack] += 1
        output = modules[name.removesuffix(ends[0]) + ends[1]]
        layers[f"{stack}.{number}" if stack else number] = (module, output)
    return layers


@contextmanager
def replaced_slice(projection, head, heads, new):
    """Inside the block, the part of a head in the input of an output projection is replaced."""

    def hook(module, args):
        x = args[0].clone()
        width = x.shape[-1] // heads
        x[..., head * width : (head + 1) * width] = new
        return (x, *args[1:])

    handle = projection.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def masked_edges(attention, cut):
    """Inside the block, the scores of some edges, boolean (H, T, S), are the lowest number there is."""
    signature = inspect.signature(type(attention).forward)
    name = "mask" if "mask" in signature.parameters else "attention_mask"

    def hook(module, args, kwargs):
        bound = signature.bind(module, *args, **kwargs)
        old = bound.arguments.get(name)
        x = bound.arguments["hidden_states"]
        lowest = torch.finfo(x.dtype).min
        mask = x.new_zeros(1, 1, *cut.shape[1:]) if old is None else old
        mask = mask[..., : cut.shape[2]].expand(-1, len(cut), *cut.shape[1:]).masked_fill(cut, lowest)
        bound.arguments[name] = mask
        kwargs = {**bound.kwargs}
        return bound.args[1:], kwargs

    handle = attention.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
