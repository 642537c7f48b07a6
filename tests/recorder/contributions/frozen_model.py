"""An independent reference: a model whose branches and norms are frozen by hooks at what they did in one run.

In the frozen model the logits are a linear function of the terms of the residual stream. A term is removed
from it, and the change of a logit is what the term contributed. Modules are named by patterns, and norms
are computed from their definitions.
"""

import copy
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from tests.against.small_sizes import BERT, LLAMA
from tests.against.test_capture_families import BOTH, DECODERS, build


@dataclass(frozen=True)
class Family:
    """A family of models: how to build a small one, and the names of its modules."""

    model: str
    settings: dict[str, Any]
    projections: str = r"layers\.\d+\.self_attn\.o_proj"
    mlps: str = r"layers\.\d+\.mlp"
    first_block: str = r"layers\.0"
    norms: str = r"\w*norm"
    """The last part of the names of the norms."""
    is_centred: bool = False
    adds_one: bool = False
    """Whether norms multiply by 1 + weight."""
    activation: str | None = None
    unembedding: str = "lm_head"
    is_decoder_beside: bool = False

    def build(self, dtype=torch.float32):
        """A small model whose biases and norms are random too; a copy, which a test may change."""
        model = copy.deepcopy(self._model).to(dtype)
        torch.manual_seed(0)  # whether or not it was made just now
        return model

    @cached_property
    def _model(self):
        torch.manual_seed(0)
        model = build(self.model, self.settings)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
        return model

    def inputs(self):
        """Two texts."""
        drawn = torch.Generator().manual_seed(1)
        ids = {"input_ids": torch.randint(3, 97, (2, 11), generator=drawn)}
        if self.is_decoder_beside:
            ids["decoder_input_ids"] = torch.randint(3, 97, (2, 7), generator=drawn)
        return ids


EXPERTS = {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "head_dim": 16}
MULTIPLIERS = {"residual_multiplier": 0.7, "embedding_multiplier": 2.0, "logits_scaling": 3.0}
FAMILIES = {
    "gpt2": Family(
        *DECODERS["gpt2"], r"h\.\d+\.attn\.c_proj", r"h\.\d+\.mlp", r"h\.0", r"ln_\w+", is_centred=True
    ),
    "llama": Family(*DECODERS["llama"]),
    "qwen3": Family(*DECODERS["qwen3"]),
    "gemma 2": Family(*DECODERS["gemma 2"], adds_one=True),
    "gpt-oss": Family(*DECODERS["gpt-oss"]),
    "mixtral": Family(*DECODERS["mixtral"]),
    "qwen3 moe": Family("Qwen3MoeForCausalLM", LLAMA | EXPERTS),
    "gpt-neox": Family(*DECODERS["gpt-neox"], r"layers\.\d+\.attention\.dense", is_centred=True),
    "cohere": Family(*DECODERS["cohere"], is_centred=True),
    "granite": Family("GraniteForCausalLM", DECODERS["granite"][1] | MULTIPLIERS),
    "bert": Family(
        "BertForMaskedLM",
        BERT,
        r"layer\.\d+\.attention\.output\.dense",
        r"layer\.\d+\.output\.dense",
        r"layer\.0",
        "LayerNorm",
        is_centred=True,
        activation="transform_act_fn",
        unembedding="cls.predictions.decoder",
    ),
    "t5": Family(
        *BOTH["t5"],
        r"decoder\.block\.\d+\.layer\.[01]\.\w+Attention\.o",
        r"decoder\.block\.\d+\.layer\.2\.DenseReluDense",
        r"decoder\.block\.0",
        is_decoder_beside=True,
    ),
}


@dataclass
class FrozenModel:
    """A model with what its modules read and wrote in one run."""

    family: Family
    model: nn.Module
    inputs: dict[str, Tensor]
    read: dict[str, Tensor] = field(default_factory=dict)
    written: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self):
        self.projections = self._names(self.family.projections)
        self.mlps = self._names(self.family.mlps)
        self.norms = [name for name in self._names(self.family.norms) if "self_attn" not in name]
        self.first_block = self._names(self.family.first_block)
        activation = self.family.activation
        self.activations = [] if activation is None else self._names(activation)
        names = (*self.projections, *self.mlps, *self.norms, *self.first_block, *self.activations)
        with self._hooked(dict.fromkeys((*names, self.family.unembedding), self._record)):
            self.model(**self.inputs)

    def _names(self, pattern):
        names = [name for name, _ in self.model.named_modules()]
        return [name for name in names if re.search(rf"(^|\.){pattern}$", name)]

    @contextmanager
    def _hooked(self, hooks):
        handles = []
        for name, hook in hooks.items():

            def called(module, args, kwargs, output, name=name, hook=hook):
                return hook(name, args[0] if args else kwargs["hidden_states"], output)

            handles.append(self.model.get_submodule(name).register_forward_hook(called, with_kwargs=True))
        try:
            with torch.no_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _record(self, name, read, output):
        self.read[name] = read.clone()
        self.written[name] = (output[0] if isinstance(output, tuple) else output).clone()

    def _norm(self, name, read, output):
        """A norm with the scale that it had."""
        module = self.model.get_submodule(name)
        eps = next(x for key in ("eps", "variance_epsilon") if (x := getattr(module, key, None)) is not None)
        before, change = self.read[name], read - self.read[name]
        if self.family.is_centred:
            before, change = before - before.mean(-1, keepdim=True), change - change.mean(-1, keepdim=True)
        weight = module.weight + 1 if self.family.adds_one else module.weight
        scale = (before.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        return self.written[name] + change * scale * weight

    def _activation(self, name, read, output):
        return read * self.written[name] / self.read[name]

    def head_term(self, name, head):
        """What a head adds to the output of its projection: the product with its slice of the weight."""
        read, H = self.read[name], self.model.config.num_attention_heads
        only = torch.zeros_like(read).unflatten(-1, (H, -1))
        only[..., head, :] = read.unflatten(-1, (H, -1))[..., head, :]
        module = self.model.get_submodule(name)
        with torch.no_grad():
            return module(only.flatten(-2)) - module(torch.zeros_like(read))

    def logits_without(self, removed):
        """The unembedding's output in the frozen model, without some terms of its residual stream."""

        def branch(name, read, output):
            frozen = self.written[name] - removed.get(name, torch.zeros(()))
            return (frozen, *output[1:]) if isinstance(output, tuple) else frozen

        hooks = dict.fromkeys((*self.projections, *self.mlps), branch)
        hooks |= dict.fromkeys(self.norms, self._norm) | dict.fromkeys(self.activations, self._activation)
        logits = {}

        def keep(name, read, output):
            logits[name] = output

        def before(module, args, kwargs):
            change = removed.get(self.first_block[0], torch.zeros(()))
            if args:
                return (args[0] - change, *args[1:]), kwargs
            return args, kwargs | {"hidden_states": kwargs["hidden_states"] - change}

        first = self.model.get_submodule(self.first_block[0])
        handle = first.register_forward_pre_hook(before, with_kwargs=True)
        try:
            with self._hooked(hooks | {self.family.unembedding: keep}):
                self.model(**self.inputs)
        finally:
            handle.remove()
        return logits[self.family.unembedding]
