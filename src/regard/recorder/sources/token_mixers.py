"""Which modules of a model mix tokens, so that those which were not captured are reported.

A module mixes tokens if what it gives for one position depends on others: attention of any kind, recurrent
layers, state-space models, linear attention, convolutions along the text. That is told from the names that
people give to such classes, from what their code calls, and from the blocks of a stack: where one block holds
attention, its siblings hold something in its place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import nn

from regard.recorder.sources.layer_names import called_names

MIXERS = re.compile(
    r"attention|attn|mamba|ssm|ssd|statespace|delta(net|rule)|recurrent|rglru|lstm|gru|rnn|retention|rwkv|hyena"
    r"|shortconv|longconv|convolution|conv\dd|conv(module|block)|depthwise|dwconv|lightning|fourier|tokenmix"
    r"|mixer|s4",
    re.IGNORECASE,
)
"""What the names of classes that mix tokens have in them, after the name of their model."""
HARMLESS = re.compile(
    r"(mlp|ffn|ff|feed_?forward|moe|experts?|router|gate|gated|norm|dropout|drop_?path|linear|identity|embeddings?"
    r"|rotary|positions?|activation|act|gelu|silu|relu|swish|tanh|intermediate|output|pooler|lm_?head|classification_?head|prediction_?head|lora)"
    r"(layer|block|module|gated)?\d*$",
    re.IGNORECASE,
)
"""What the names of classes that treat every token alone end with."""
ROUTERS = re.compile(r"moe|expert|rout|gate|norm|embed|rotary|position", re.IGNORECASE)
"""What the names of classes have in them that multiply after a softmax, and not over tokens."""
FUSED = (
    nn.MultiheadAttention,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)  # leave their kernels if hooked
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
SCANS = {"cumsum", "cumprod", "cummax", "logcumsumexp", "roll", "fft", "rfft", "conv1d", "flip"}
FUNCTIONS = {
    "scaled_dot_product_attention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flex_attention",
    "memory_efficient_attention",
}
"""What the code of a class that computes attention may call."""


def mixes_tokens(module: nn.Module, model: str = "") -> bool:
    """Whether a module mixes tokens by itself, as far as its class tells; `model` begins the class's name."""
    if isinstance(module, CONVOLUTIONS):
        # A convolution whose steps are as long as its kernel cuts patches, and does not mix them.
        return any(size > step for size, step in zip(module.kernel_size, module.stride, strict=True))
    if isinstance(module, nn.RNNBase):
        return True
    kind = type(module)
    if kind.__module__.startswith("torch.") or kind.__name__ == "Conv1D":  # GPT-2's name for a linear layer
        return False
    name = kind_of(module).removeprefix(model) or kind.__name__
    computes = _computes_attention(cast(Any, kind))
    if HARMLESS.search(name) and not (computes and not ROUTERS.search(name)):
        return False
    return bool(MIXERS.search(name)) or computes


def compiled(module: nn.Module) -> bool:
    """Whether a module runs as a compiled graph, in which nothing is heard."""
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or type(module).__name__ == "OptimizedModule"


def kind_of(module: nn.Module) -> str:
    """The name of a module's class, also of one in TorchScript."""
    return str(getattr(module, "original_name", type(module).__name__))


def _model_names(model: nn.Module) -> dict[str, str]:
    """For each file of the model's code, what the names of its classes begin with: `Qwen3NextMoe`."""
    names: dict[str, set[str]] = {}
    for module in model.modules():
        names.setdefault(type(module).__module__, set()).add(type(module).__name__)
    return {file: _common_start(found) for file, found in names.items() if len(found) > 2}


def _common_start(names: Collection[str]) -> str:
    first, last = min(names), max(names)
    same = (a == b for a, b in zip(first, last, strict=False))
    return first[: next((i for i, alike in enumerate(same) if not alike), len(first))]


@functools.cache
def _computes_attention(kind: Any) -> bool:
    """Whether the methods of a class call an attention, or a softmax and a product of activations."""
    names = called_names(kind)
    return bool(FUNCTIONS & names) or (bool({"softmax", "exp"} & names) and bool(PRODUCTS & names))


class TokenMixers:
    """The modules of a model that mix tokens, and which of them ran."""

    def __init__(self, model: nn.Module) -> None:
        self.kinds = {name: kind_of(module) for name, module in model.named_modules()}
        self.modules = dict(model.named_modules())
        self.prefixes = prefixes = _model_names(model)
        self.mixing = [
            name
            for name, module in self.modules.items()
            if name and mixes_tokens(module, prefixes.get(type(module).__module__, ""))
        ]
        self.blocks = {
            name: [x for child in module._modules if (x := f"{name}.{child}".lstrip(".")) in self.modules]
            for name, module in self.modules.items()
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
        }
        self.ran: set[str] = set()
        # Of what is inside a compiled graph nobody is told whether it ran.
        graphs = [
            name
            for name, module in self.modules.items()
            if compiled(module) or isinstance(module, torch.jit.ScriptModule)
        ]
        self.hidden = {name for name in self.mixing if any(_inside(name, graph) for graph in graphs)}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, it is noted which of the modules run."""
        names = {*self.mixing, *(block for blocks in self.blocks.values() for block in blocks)}
        with ExitStack() as undo:
            for name in names:
                if not isinstance(self.modules[name], (*FUSED, torch.jit.ScriptModule)):
                    note = functools.partial(_note, self.ran, name)
                    undo.callback(self.modules[name].register_forward_pre_hook(note).remove)
            yield

    def missing(self, heard: Collection[str]) -> dict[str, str]:
        """The modules that ran, mix tokens and were not heard: each with its class."""
        found = [
            name
            for name in self.mixing
            if name in self.ran | self.hidden
            and not any(_inside(x, name) or (_inside(name, x) and not self._apart(name)) for x in heard)
            and not (isinstance(self.modules[name], CONVOLUTIONS) and not self._beside_attention(name, heard))
        ]
        for blocks in self.blocks.values():
            if any(_inside(x, block) for block in blocks for x in heard):
                found += [block for block in blocks if self._unexplained(block, heard, found)]
        innermost = [name for name in found if not any(_inside(x, name) for x in found if x != name)]
        return {name: self.kinds[name] for name in self.modules if name in innermost}

    def _apart(self, name: str) -> bool:
        """Whether a module inside one that was heard does something else beside its attention."""
        module = self.modules[name]
        found = MIXERS.search(kind_of(module).removeprefix(self.prefixes.get(type(module).__module__, "")))
        if isinstance(module, nn.RNNBase) or found is None:
            return isinstance(module, nn.RNNBase)
        return not found[0].lower().startswith("att") or _computes_attention(cast(Any, type(module)))

    def _beside_attention(self, name: str, heard: Collection[str]) -> bool:
        """Whether a module stands in a stack of blocks in which attention was heard."""
        return any(
            _inside(name, stack) and any(_inside(x, stack) for x in heard) for stack in self.blocks if stack
        )

    def _unexplained(self, block: str, heard: Collection[str], found: Collection[str]) -> bool:
        """Whether a block ran that is not known to treat every token alone, and shows no mixer."""
        module = self.modules[block]
        if {self.modules[x] for x in heard if x in self.modules} & set(module.modules()):
            return False  # it shares its attention with another block
        if block not in self.ran or any(_related(block, x) for x in (*heard, *found)):
            return False
        if HARMLESS.search(kind_of(module)) or type(module).__module__.startswith("torch."):
            return False
        harmless = all(HARMLESS.search(kind_of(child)) for child in module.children())
        return not harmless or bool((SCANS | PRODUCTS) & called_names(cast(Any, type(module))))


def _note(ran: set[str], name: str, *_: Any) -> None:
    ran.add(name)


def _inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _related(name: str, other: str) -> bool:
    """Whether one of two modules is inside the other."""
    return _inside(name, other) or _inside(other, name)
