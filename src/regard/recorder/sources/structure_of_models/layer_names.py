"""Assigns layer ids to attention modules by their names: the stack, and the number in it.

Transformers' models name their modules in many ways; the few rules here cover those that were tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn

from regard.recorder.layer import LayerId


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
