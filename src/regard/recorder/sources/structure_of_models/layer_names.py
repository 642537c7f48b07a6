"""Assigns layer ids to attention modules: the stack, and the number in it.

Transformers' models name their modules in many ways; the few rules here cover those that were tested.
PyTorch's and Regard's own modules are numbered by their classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn

from regard.layers import Attention
from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.code_names import module_names
from regard.recorder.sources.structure_of_models.module_kinds import HEARD_FUNCTIONS, NO_LAYERS, kind_of

# Where each linear layer stands next to a layer of attention, as in Falcon-H1 and Zamba2.
LINEAR_STACK = "linear"


def assign_layer_ids(modules: Mapping[str, nn.Module]) -> dict[nn.Module, LayerId]:
    """Return the layer id of each attention module in `{name: module}`.

    The number is the one in the name (`model.layers.3.self_attn`). Where the names of a stack have no numbers
    that distinguish them, it is the module's position in the stack.
    """
    groups = {name: _group(name, module) for name, module in modules.items()}
    stacks = _stack_names(list(dict.fromkeys(groups.values())))
    numbers = {name: number_in(name, -1) for name in modules}
    counts = Counter((groups[name], number) for name, number in numbers.items())
    ambiguous = {group for (group, number), count in counts.items() if count > 1 or number < 0}
    position: Counter[str] = Counter()
    layer_ids = {}
    for name, module in modules.items():
        group = groups[name]
        number = position[group] if group in ambiguous else numbers[name]
        layer_ids[module] = LayerId(number, name, stacks[group])
        position[group] += 1
    return layer_ids


def numbered_modules(modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return those of some attention modules that count as layers, by name.

    The others have a softmax and a product or `attend` in their code, but are routers, samplers or poolers by
    the names of their classes, or contain other attention modules: as a model that samples what it writes. If
    one of them is heard nevertheless, its layer has the module's own name.
    """
    found = set(modules.values())
    numbered = {
        name: module
        for name, module in modules.items()
        if not HEARD_FUNCTIONS.isdisjoint(module_names(module))
        or not (NO_LAYERS.search(kind_of(module)) or found & set(module.modules()) - {module})
    }
    return numbered or dict(modules)


def linear_layer_ids(
    modules: Mapping[str, nn.Module], linear: Mapping[str, nn.Module], attention: Mapping[str, nn.Module]
) -> dict[nn.Module, LayerId]:
    """Return the layer ids of the `linear` layers among a model's modules, beside those of `attention`.

    They are numbered in one sequence with the layers of attention, if each has a number of its own; where a
    block holds both, the linear ones are in the stack "linear".
    """
    names = {name: module for name, module in modules.items() if name in linear or name in attention}
    together, alone = assign_layer_ids(names), assign_layer_ids(attention)
    if all(together[module] == layer_id for module, layer_id in alone.items()):
        return {module: together[module] for module in linear.values()}
    return {
        module: layer_id._replace(stack=".".join(filter(None, (layer_id.stack, LINEAR_STACK))))
        for module, layer_id in assign_layer_ids(linear).items()
    }


def mha_layer_ids(modules: Mapping[str, nn.Module]) -> dict[nn.MultiheadAttention, LayerId]:
    """Return the ids of PyTorch's attention modules in `{name: module}`."""
    stacks: dict[nn.Module, str] = {}
    for module in modules.values():
        if isinstance(module, nn.TransformerDecoderLayer):
            stacks |= {module.self_attn: "decoder", module.multihead_attn: "cross"}
    has_decoder = bool(stacks)
    for module in modules.values():
        if isinstance(module, nn.TransformerEncoderLayer):
            stacks[module.self_attn] = "encoder" if has_decoder else ""
    counts, ids = Counter[str](), {}
    for name, module in modules.items():
        if isinstance(module, nn.MultiheadAttention):
            stack = stacks.get(module, "")
            ids[module] = LayerId(counts[stack], name, stack)
            counts[stack] += 1
    return ids


def gpt_layer_ids(modules: Mapping[str, nn.Module]) -> dict[Attention, LayerId]:
    """Return the ids of Regard's attention layers in `{name: module}`, numbered in the model's order."""
    names = {module: name for name, module in modules.items() if isinstance(module, Attention)}
    return {module: LayerId(number, name) for number, (module, name) in enumerate(names.items())}


def number_in(name: str, default: int) -> int:
    """Return the first part of a module's name that is a number, or `default` if there is none."""
    return next((int(part) for part in name.split(".") if part.isdigit()), default)


def _group(name: str, module: nn.Module) -> str:
    """Return what the modules of a stack share: the name up to the first number, and "cross" if it is."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    rest = ".".join(parts[first:]).lower()
    # GPT-2 calls it crossattention, BART encoder_attn and T5 EncDecAttention.
    is_cross = any(mark in rest for mark in ("cross", "encoder_attn", "encdec"))
    # GPT-2's module says so itself.
    if is_cross or getattr(module, "is_cross_attention", False) is True:
        return ".".join([*parts[:first], "cross"])
    return ".".join(parts[:first])


def _stack_names(groups: list[str]) -> dict[str, str]:
    """Name each stack: "" for the only one; "encoder", "decoder" or "cross"; otherwise by what differs."""
    if len(groups) == 1:
        return {groups[0]: ""}
    paths = {group: group.split(".") for group in groups}
    names = {
        group: next((x for x in ("cross", "decoder", "encoder") if x in path), "")
        for group, path in paths.items()
    }
    if len(set(names.values())) == len(groups) and all(names.values()):
        return names
    # The first part of the names in which all differ, as vision_tower and language_model; or the whole name.
    for parts in zip(*paths.values(), strict=False):
        if len(set(parts)) == len(groups):
            return dict(zip(groups, parts, strict=True))
    return {group: group for group in groups}
