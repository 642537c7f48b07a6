"""What the structure of a model says before it runs: which modules attend, are followed, or mix tokens.

It is found once, and again when a module of the model, its class or one of its attributes is another. What is
remembered is names and numbers: the memory keeps no module alive. A user's adapters say instead which modules
attend.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models import layer_names
from regard.recorder.sources.structure_of_models.module_kinds import (
    FUSED,
    attends,
    is_compiled,
    is_linear_layer,
    is_pretrained,
    is_traced,
    keeps_order,
    mixes_tokens,
)
from regard.support.lru import LRUCache
from regard.support.torch_internals import compiled_module_class

Adapter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any]
"""`adapter(module, args, kwargs, output)` describes the attention of one call of a module; see `adapters`."""
OWN_ATTRIBUTES = len(vars(nn.Module()))
"""How many attributes every module has."""


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


class ModelParts(NamedTuple):
    """The parts of a model that matter to what listens to it, by their names."""

    attention: tuple[str, ...]
    """The modules whose code calls something that is listened to, or computes attention."""
    traced: tuple[str, ...]
    """Those whose functions are followed: of code that nobody here knows."""
    linear: tuple[str, ...]
    """Linear attention and state-space layers that can be read."""
    layer_ids: dict[str, LayerId]
    linear_ids: dict[str, LayerId]
    pretrained: tuple[str, ...]
    """Transformers' models: this one, or those inside."""
    fused: tuple[str, ...]
    """PyTorch's modules that have fused kernels of their own."""
    known_code: tuple[str, ...]
    """Models whose code is known to keep their tokens in order."""
    compiled: tuple[str, ...]
    """Modules that `torch.compile` has compiled, or that compile themselves."""
    mixing: MixingParts


class KnownModel(NamedTuple):
    """A model as it is now: its modules by name, as `named_modules` yields them, and its parts."""

    modules: dict[str, nn.Module]
    parts: ModelParts


class _Memory(NamedTuple):
    """What is known of a model as long as its fingerprint is this one."""

    fingerprint: int
    places: dict[str, int]
    """For each module's name, in the order of `named_modules`, its place in the order of `fingerprint`."""
    parts: ModelParts


_memory: WeakKeyDictionary[nn.Module, _Memory] = WeakKeyDictionary()


def original_model(model: nn.Module) -> nn.Module:
    """Return the model that was passed to `torch.compile`, or the model itself."""
    kind = compiled_module_class()
    return model._orig_mod if kind is not None and isinstance(model, kind) else model  # type: ignore[return-value]


def look_at(model: nn.Module) -> KnownModel:
    """Return the modules and the parts of a model as it is now."""
    number, modules = fingerprint(model)
    known = _memory.get(model)
    if known is None or known.fingerprint != number:
        order = {module: i for i, module in enumerate(modules)}
        named = dict(model.named_modules())
        places = {name: order[module] for name, module in named.items()}
        known = _memory[model] = _Memory(number, places, _find_parts(named))
    return KnownModel({name: modules[i] for name, i in known.places.items()}, known.parts)


def recall_parts(model: nn.Module) -> ModelParts:
    """Return the parts of a model as they were found last, or else now."""
    known = _memory.get(model)
    return look_at(model).parts if known is None else known.parts


def check_recognised(model: nn.Module, parts: ModelParts) -> None:
    """Raise a ValueError if nothing in a model, which has these parts, is known to attend."""
    if parts.attention or parts.traced or parts.linear or parts.layer_ids:
        return
    # A Transformers model without known attention is refused by the names of its classes.
    if parts.pretrained:
        raise ValueError(no_attention_message(model))
    raise ValueError(
        "model: expected one with attention that capture recognises (Transformers' interface, PyTorch's "
        "attention, regard.attend, a softmax between two matrix products), "
        f"got {type(model).__name__}: name its attention modules with adapters={{name: adapter}}"
    )


def no_attention_message(model: nn.Module) -> str:
    """Say why a Transformers model cannot be captured."""
    kinds = dict.fromkeys(
        type(module).__name__ for module in model.modules() if "Attention" in type(module).__name__
    )
    if not kinds:
        return f"{type(model).__name__} cannot be captured: it has no attention module that capture knows"
    return (
        f"{type(model).__name__} cannot be captured: its attention ({', '.join(kinds)}) "
        "calls neither Transformers' AttentionInterface nor PyTorch's scaled_dot_product_attention, nor does "
        "its code multiply a softmax with values; "
        "regard.capture(model, adapters={name: adapter}) serves any softmax attention"
    )


def adapted_layers(model: nn.Module, adapters: Mapping[str, Adapter]) -> dict[str, tuple[LayerId, Adapter]]:
    """Return the id and the adapter of every module that `adapters` names, in the model's order.

    A name may be a pattern such as "blocks.*.attn".
    """
    names = [name for name, _ in model.named_modules()]
    adapter_of: dict[str, Adapter] = {}
    for pattern, adapter in adapters.items():
        if not callable(adapter):
            raise ValueError(
                f"adapters[{pattern!r}]: expected a function of (module, args, kwargs, output), "
                f"got {type(adapter).__name__}"
            )
        # A name with brackets in it does not match itself as a pattern.
        matching = [name for name in names if name == pattern or fnmatchcase(name, pattern)]
        if not matching:
            similar = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
            hint = f"; similar names are {', '.join(map(repr, similar))}" if similar else ""
            raise ValueError(f"adapters: expected names of modules in the model, got {pattern!r}{hint}")
        adapter_of |= dict.fromkeys(matching, adapter)
    ordered = [name for name in names if name in adapter_of]
    return {name: (LayerId(i, name), adapter_of[name]) for i, name in enumerate(ordered)}


def attention_names(
    model: nn.Module, adapters: Mapping[str, Callable[..., Any]] | None = None
) -> frozenset[str]:
    """Return the names of the modules whose attention is heard: by their `adapters`, if there are some."""
    if adapters is not None:
        return frozenset(adapted_layers(model, adapters))
    parts = look_at(model).parts
    return frozenset((*parts.attention, *parts.layer_ids))


def fingerprint(model: nn.Module) -> tuple[int, list[nn.Module]]:
    """Return a number that is another if a module, its class or an attribute is another; and the modules."""
    modules, known = [model], {model}
    parts: list[Any] = []
    for module in modules:  # which grows
        children = module._modules  # of TorchScript: no dict, but with keys and values
        parts += (type(module), id(module), *children.keys())
        # This line takes most of the time, so that PyTorch's own attributes, its dictionaries of parameters
        # and of hooks, are left out: they come first, unless a class sets some before `super().__init__()`.
        attributes = vars(module)
        own = OWN_ATTRIBUTES if next(iter(attributes), "") == "training" else 0
        parts.extend(map(id, islice(attributes.values(), own, None)))
        for child in children.values():
            if child is not None and child not in known:
                known.add(child)
                modules.append(child)
    return hash(tuple(parts)), modules


def _find_parts(modules: dict[str, nn.Module]) -> ModelParts:
    """Find the parts of a model that has these modules."""
    attention = {name: module for name, module in modules.items() if attends(module)}
    numbered = layer_names.numbered_modules(attention)
    linear = {name: module for name, module in modules.items() if is_linear_layer(module)}
    ids = [
        *layer_names.assign_layer_ids(numbered).values(),
        *layer_names.mha_layer_ids(modules).values(),
        *layer_names.gpt_layer_ids(modules).values(),
    ]
    linear_ids = layer_names.linear_layer_ids(modules, linear, numbered) if linear else {}
    return ModelParts(
        attention=tuple(attention),
        traced=tuple(name for name, module in modules.items() if is_traced(module)),
        linear=tuple(linear),
        layer_ids={layer_id.name: layer_id for layer_id in ids},
        linear_ids={layer_id.name: layer_id for layer_id in linear_ids.values()},
        pretrained=tuple(name for name, module in modules.items() if is_pretrained(module)),
        fused=tuple(name for name, module in modules.items() if isinstance(module, FUSED)),
        known_code=tuple(name for name, module in modules.items() if keeps_order(module)),
        compiled=tuple(name for name, module in modules.items() if is_compiled(module)),
        mixing=_find_mixing(modules),
    )


def _find_mixing(modules: dict[str, nn.Module]) -> MixingParts:
    prefixes = _class_prefixes(modules)
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


def _class_prefixes(modules: dict[str, nn.Module]) -> dict[str, str]:
    """Return, for each file of the model's code, the common prefix of its classes: `Qwen3NextMoe`."""
    names: dict[str, set[str]] = {}
    for module in modules.values():
        names.setdefault(type(module).__module__, set()).add(type(module).__name__)
    # The common prefix of one class is its whole name.
    return {file: _common_prefix(kinds) for file, kinds in names.items() if len(kinds) > 2}


def _common_prefix(names: Collection[str]) -> str:
    first, last = min(names), max(names)
    equal = (a == b for a, b in zip(first, last, strict=False))
    return first[: next((i for i, is_equal in enumerate(equal) if not is_equal), len(first))]


def is_inside(name: str, outer: str) -> bool:
    """Whether a module is another one or inside it, by their names."""
    return name == outer or name.startswith(f"{outer}.")
