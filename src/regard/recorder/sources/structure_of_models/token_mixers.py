"""Finds the modules of a model that mix tokens, so that those which were not captured are reported.

A module mixes tokens if its output at one position depends on other positions: attention of any kind,
recurrent layers, state-space models, linear attention, convolutions along the text. Such modules are found by
the names of their classes, by what their code calls, and by the blocks of a stack: where one block holds
attention, its siblings hold something in its place.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from regard.recorder.sources.structure_of_models.code_names import (
    called_names,
    has_graph,
    module_names,
    script_names,
)
from regard.recorder.sources.structure_of_models.structure import is_inside, modules_of, remembered
from regard.support.lru import LRUCache
from regard.support.override import MethodWrappers

# By name, since such layers call no function in common (RWKV, Hyena, S4, RG-LRU).
MIXERS = re.compile(
    r"attention|attn|mamba|ssm|ssd|statespace|delta(net|rule)|recurrent|rglru|lstm|gru|rnn|retention|rwkv|hyena"
    r"|shortconv|longconv|convolution|conv\dd|conv(module|block)|depthwise|dwconv|lightning|fourier|tokenmix"
    r"|mixer|s4",
    re.IGNORECASE,
)
"""Matches the names of classes that mix tokens, without the prefix of their model."""
OTHER_MIXERS = re.compile(r"conv|depthwise|fourier|hyena|recurrent|rglru|lstm|gru|rnn", re.IGNORECASE)
"""Matches those that are not attention of any kind: convolutions, Fourier transforms, recurrent layers."""
ATTENTION_KINDS = re.compile(r"att(entio)?n|mamba|ssm|ssd|delta|retention|rwkv|lightning", re.IGNORECASE)
"""Matches attention and its linear kinds, which have maps where they are captured."""
TOKENWISE = re.compile(
    r"(mlp|ffn|ff|feed_?forward|moe|experts?|router|gate|gated|norm|dropout|drop_?path|linear|identity|embeddings?"
    r"|rotary|positions?|activation|act|gelu|silu|relu|swish|tanh|intermediate|output|pooler|lm_?head|classification_?head|prediction_?head|lora)"
    r"(layer|block|module|gated)?\d*$",
    re.IGNORECASE,
)
"""Matches the ends of the names of classes that process every token on its own."""
ROUTERS = re.compile(r"moe|expert|rout|gate|norm|embed|rotary|position", re.IGNORECASE)
"""Matches the names of classes whose softmax is not over tokens, such as routers."""
FUSED = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""PyTorch's modules that leave their fused kernels if they are hooked, or run in a mode."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}
SCANS = {"cumsum", "cumprod", "cummax", "logcumsumexp", "roll", "fft", "rfft", "conv1d", "flip"}
SUMS = {"exp", "logsumexp", "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce"}
"""Functions by which attention is written without a matrix product: Bahdanau's, and that of graphs."""
FUNCTIONS = {
    "scaled_dot_product_attention",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flex_attention",
    "memory_efficient_attention",
}
"""Functions that compute attention."""
FUSED_OPERATORS = re.compile(
    r"^_(scaled_dot_product_\w*attention\w*|\w+_multi_head_attention|transformer_encoder_layer_fwd"
    r"|(efficient|cudnn)_attention_forward|varlen_attn)$"
)
"""Matches the names of the operators under PyTorch's attention functions, which cannot be heard."""


def mixes_tokens(module: nn.Module, model: str = "") -> bool:
    """Whether a module itself mixes tokens, judged by its class, whose name begins with `model`."""
    if isinstance(module, CONVOLUTIONS):
        # A convolution whose stride is as long as its kernel cuts patches and does not mix them.
        return any(size > step for size, step in zip(module.kernel_size, module.stride, strict=True))
    if isinstance(module, nn.RNNBase):
        return True
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return computes_attention(script_names(module))
    if is_torchs(module) or kind.__name__ == "Conv1D":  # GPT-2's name for a linear layer
        return False
    name = kind_of(module).removeprefix(model) or kind.__name__
    computes = computes_attention(module_names(module))
    if TOKENWISE.search(name) and not (computes and not ROUTERS.search(name)):
        return False
    return bool(MIXERS.search(name)) or computes


def kind_of(module: nn.Module) -> str:
    """Return the name of a module's class, also for TorchScript."""
    return str(getattr(module, "original_name", type(module).__name__))


def _model_names(model: nn.Module) -> dict[str, str]:
    """Return, for each file of the model's code, the common prefix of its classes: `Qwen3NextMoe`."""
    names: dict[str, set[str]] = {}
    for module in model.modules():
        names.setdefault(type(module).__module__, set()).add(type(module).__name__)
    # The common prefix of one class is its whole name.
    return {file: _common_prefix(kinds) for file, kinds in names.items() if len(kinds) > 2}


def _common_prefix(names: Collection[str]) -> str:
    first, last = min(names), max(names)
    equal = (a == b for a, b in zip(first, last, strict=False))
    return first[: next((i for i, is_equal in enumerate(equal) if not is_equal), len(first))]


def is_torchs(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's, and not a graph that was made of other code."""
    return type(module).__module__.startswith("torch.") and not has_graph(module)


@functools.cache
def computes_attention(names: frozenset[str]) -> bool:
    """Whether code that uses these names calls an attention function, or both a softmax and a product."""
    if FUNCTIONS & names or any(FUSED_OPERATORS.search(name) for name in names):
        return True
    return bool({"softmax", "_softmax", "exp"} & names) and bool(PRODUCTS & names)


def computes_softmax_attention(module: nn.Module) -> bool:
    """Whether the code of a module, which is not one of PyTorch's, has a softmax and a matrix product.

    Only running it shows whether that is attention. Modules that use Transformers' `AttentionInterface` are
    left out: the eager attention in their files is one of its functions.
    """
    if is_torchs(module) or not _has_product(names := module_names(module)):
        return False
    return _has_softmax(names) or any(isinstance(x, nn.Softmax) for x in module.children())


@functools.cache
def _has_softmax(names: frozenset[str]) -> bool:
    """Whether code that uses these names names a softmax."""
    # A log_softmax is that of a loss.
    return any(name.lower().endswith("softmax") and "log" not in name for name in names)


@functools.cache
def _has_product(names: frozenset[str]) -> bool:
    """Whether code that uses these names names a matrix product, and not Transformers' interface."""
    return "ALL_ATTENTION_FUNCTIONS" not in names and any("matmul" in x or x in PRODUCTS for x in names)


class MixingParts(NamedTuple):
    """Which modules of a model mix tokens, by its structure."""

    prefixes: dict[str, str]
    """For each file of the model's code, the common prefix of its classes."""
    mixing: list[str]
    """The names of the modules that mix tokens themselves."""
    blocks: dict[str, list[str]]
    """For each stack of blocks, the names of its blocks."""
    hidden: set[str]
    """Those of `mixing` that are inside TorchScript, where it cannot be observed whether they run."""
    unheard: LRUCache[tuple[dict[str, str], dict[str, str]]]
    """What `TokenMixers.unheard` returned, by what had run and what was heard: the same at each capture."""


@remembered
def _mixing_parts(model: nn.Module) -> MixingParts:
    modules, prefixes = modules_of(model), _model_names(model)
    mixing = [
        name
        for name, module in modules.items()
        if name and mixes_tokens(module, prefixes.get(type(module).__module__, ""))
    ]
    blocks = {
        name: [x for child in module._modules if (x := f"{name}.{child}".lstrip(".")) in modules]
        for name, module in modules.items()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    }
    graphs = [n for n, module in modules.items() if isinstance(module, torch.jit.ScriptModule)]
    hidden = {name for name in mixing if any(is_inside(name, graph) for graph in graphs)}
    return MixingParts(prefixes, mixing, blocks, hidden, LRUCache(16))


class TokenMixers:
    """The modules of a model that mix tokens, and which of them have run."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = modules_of(model)
        self.prefixes, self.mixing, self.blocks, self.hidden, self.known = _mixing_parts(model)
        self.ran: set[str] = set()
        self.ran_elsewhere: set[str] = set()  # in threads or contexts that this capture does not hear
        self.other_users: set[int] = set()  # threads that run the whole model for themselves

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, note which of the modules run."""
        names = {*self.mixing, *(block for blocks in self.blocks.values() for block in blocks)}
        wrappers = MethodWrappers()
        for name in ("", *names):
            if not isinstance(self.modules[name], (*FUSED, torch.jit.ScriptModule)):
                note = functools.partial(_note, self.ran, name)
                elsewhere = functools.partial(self._note_elsewhere, name)
                wrappers.add(self.modules[name], "forward", note, elsewhere)
        with wrappers.active():
            yield

    def _note_elsewhere(self, name: str) -> None:
        """Note that a module, or the whole model, ran where this capture does not hear it."""
        thread = threading.get_ident()
        if not name:
            self.other_users.add(thread)
        elif thread not in self.other_users:
            self.ran_elsewhere.add(name)

    @property
    def ran_only_elsewhere(self) -> bool:
        """Whether the model ran in other threads or contexts, and nothing of it in this one."""
        return not self.ran and bool(self.ran_elsewhere or self.other_users)

    def unheard(self, heard: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the modules that ran, mix tokens and are not in `heard`: the class of each, by its name.

        The first are attention, or may be; the second mix tokens in other ways, as convolutions do.
        """
        key = (frozenset(self.ran), frozenset(self.ran_elsewhere), frozenset(heard))
        attention, others = self.known.get(key, lambda: self._unheard(heard))
        return dict(attention), dict(others)

    def _unheard(self, heard: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        missing = [
            name
            for name in self.mixing
            if name in self.ran | self.hidden | self.ran_elsewhere
            and not any(
                is_inside(x, name) or (is_inside(name, x) and not self._mixes_beside(name)) for x in heard
            )
            and not (isinstance(self.modules[name], CONVOLUTIONS) and not self._beside_attention(name, heard))
        ]
        for blocks in self.blocks.values():
            if any(is_inside(x, block) for block in blocks for x in heard):
                missing += [block for block in blocks if self._unexplained(block, heard, missing)]
        others = [name for name in missing if self._is_other(name)]
        attention = _innermost([name for name in missing if name not in others])
        # Mamba's short convolution is a part of it.
        others = [
            x for x in _innermost(missing) if x in others and not any(is_inside(x, y) for y in attention)
        ]
        described = ({x: self._describe(x) for x in self.modules if x in y} for y in (attention, others))
        missing_attention, other_mixers = described
        return missing_attention, other_mixers

    def _is_other(self, name: str) -> bool:
        """Whether a module that mixes tokens is certainly not attention."""
        module = self.modules[name]
        if isinstance(module, (*CONVOLUTIONS, nn.RNNBase)):
            return True
        kind = kind_of(module).removeprefix(self.prefixes.get(type(module).__module__, ""))
        if isinstance(module, torch.jit.ScriptModule) or not OTHER_MIXERS.search(kind):
            return False
        names = module_names(module)
        return not ATTENTION_KINDS.search(kind) and not (FUNCTIONS & names) and not _has_softmax(names)

    def _describe(self, name: str) -> str:
        """Return the class of a module, and whether it ran only where this capture does not hear it."""
        elsewhere = name in self.ran_elsewhere and name not in self.ran
        return kind_of(self.modules[name]) + (", which ran in another thread" if elsewhere else "")

    def _mixes_beside(self, name: str) -> bool:
        """Whether a module inside one that was heard mixes tokens beside the attention that was heard."""
        module = self.modules[name]
        match = MIXERS.search(kind_of(module).removeprefix(self.prefixes.get(type(module).__module__, "")))
        if isinstance(module, nn.RNNBase) or match is None:
            return isinstance(module, nn.RNNBase)
        return not match[0].lower().startswith("att") or computes_attention(module_names(module))

    def _beside_attention(self, name: str, heard: Collection[str]) -> bool:
        """Whether a module is in a stack of blocks in which attention was heard."""
        return any(
            is_inside(name, stack) and any(is_inside(x, stack) for x in heard)
            for stack in self.blocks
            if stack
        )

    def _unexplained(self, block: str, heard: Collection[str], missing: Collection[str]) -> bool:
        """Whether a block ran that may mix tokens although no mixer was found in it."""
        module = self.modules[block]
        if {self.modules[x] for x in heard if x in self.modules} & set(module.modules()):
            return False  # it shares its attention with another block
        if block not in self.ran or any(_related(block, x) for x in (*heard, *missing)):
            return False
        if TOKENWISE.search(kind_of(module)) or type(module).__module__.startswith("torch."):
            return False
        # It hides, as by compiled code, what another module of its class was heard to do.
        if any(type(self.modules[x]) is type(module) for x in heard if x in self.modules):
            return True
        tokenwise = all(TOKENWISE.search(kind_of(child)) for child in module.children())
        names = called_names(cast(Any, type(module)))
        return not tokenwise or _has_softmax(names) or bool((SCANS | PRODUCTS | SUMS) & names)


def _note(ran: set[str], name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward` and note that it ran."""
    ran.add(name)
    return forward(*args, **kwargs)


def _innermost(names: Collection[str]) -> list[str]:
    """Return the modules that have no other one of them inside."""
    return [name for name in names if not any(is_inside(x, name) for x in names if x != name)]


def _related(name: str, other: str) -> bool:
    """Whether one of two modules is inside the other."""
    return is_inside(name, other) or is_inside(other, name)
