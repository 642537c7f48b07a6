"""The role of every module on a model's residual path, read from the model's structure.

The residual stream goes from block to block. Inside a block, a branch reads the stream through a norm and
adds something to it. A role says how a module is treated while the stream is recorded: as a branch whose
output is a term of the stream, as a norm or a linear map that the stream passes through, or as attention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple

from torch import nn

from regard.recorder.contributions.frozen_modules import is_norm
from regard.recorder.contributions.output_projection import is_linear
from regard.recorder.sources.structure_of_models.model_parts import is_inside

Role = Literal[
    "block", "attention", "branch", "mixer", "linear", "attention linear", "norm", "head linear", "activation"
]
"""- "block": a layer of the stack.
- "attention": an attention module that the capture hears.
- "branch": an MLP or another module of a block that adds to the stream and has neither norm nor attention.
- "mixer": a module of a block that mixes tokens and is not softmax attention.
- "linear": a linear layer of a block, beside norms (BERT's output projection and its MLP are such layers).
- "attention linear": a linear layer inside an attention module, of a block.
- "norm": a norm, of a block or not.
- "head linear", "activation": a linear layer and an elementwise function that stand outside the blocks."""
PASSED_THROUGH = ("Dropout", "Identity", "Flatten")  # beginnings of class names of modules that need no care


class ModuleRole(NamedTuple):
    """A module with its role."""

    name: str
    module: nn.Module
    role: Role
    block: str = ""
    """The name of the block that the module is in."""
    attention: str = ""
    """The name of the attention module that the module is in."""


def module_roles(
    model: nn.Module, attention: Collection[str], mixers: Collection[str]
) -> tuple[ModuleRole, ...]:
    """Return the modules that matter for the residual stream, with their roles.

    `attention` are the names of the attention modules that a capture hears, and `mixers` those of all modules
    that mix tokens.
    """
    modules = dict(model.named_modules())
    blocks = _blocks(modules, attention)
    roles = [ModuleRole(name, modules[name], "block", name) for name in blocks]
    for block in blocks:
        roles += _inside_block(modules, block, block, attention, mixers)
    inside = {id(x) for name in blocks for x in modules[name].modules()}
    roles += [
        ModuleRole(name, module, role)
        for name, module in modules.items()
        if id(module) not in inside and (role := _role_outside(module)) is not None
    ]
    first: dict[int, ModuleRole] = {}
    for module_role in roles:  # blocks may share a module
        first.setdefault(id(module_role.module), module_role)
    return tuple(first.values())


def _blocks(modules: dict[str, nn.Module], attention: Collection[str]) -> list[str]:
    """Return the names of the blocks: the elements of the outermost lists that hold attention."""
    blocks: list[str] = []
    for name, module in modules.items():
        if any(name.startswith(f"{block}.") for block in blocks):
            continue
        if isinstance(module, nn.ModuleList | nn.Sequential):
            elements = [f"{name}.{child}".lstrip(".") for child in module._modules]
            holding = [x for x in elements if any(is_inside(y, x) for y in attention)]
            # A Sequential with one such element is a whole model, or a block itself.
            if len(holding) > 1 or (holding and isinstance(module, nn.ModuleList)):
                blocks += [x for x in elements if x in modules]
    return blocks


def _inside_block(
    modules: dict[str, nn.Module],
    name: str,
    block: str,
    attention: Collection[str],
    mixers: Collection[str],
) -> Iterator[ModuleRole]:
    """Yield the roles of a module of a block, or of the modules inside it."""
    module = modules.get(name)
    if module is None:  # registered under another name, too
        return
    if name in attention:
        yield ModuleRole(name, module, "attention", block, name)
        for child, inner in module.named_modules():
            full_name = f"{name}.{child}".rstrip(".")
            if is_linear(inner):
                yield ModuleRole(full_name, inner, "attention linear", block, name)
            elif is_norm(inner):
                yield ModuleRole(full_name, inner, "norm", block, name)
        return
    holds_attention = any(is_inside(x, name) for x in attention)
    if name in mixers and not holds_attention:
        yield ModuleRole(name, module, "mixer", block)
    elif is_norm(module):
        yield ModuleRole(name, module, "norm", block)
    elif is_linear(module):
        yield ModuleRole(name, module, "linear", block)
    # Dropout and activations belong to what is around them.
    elif not any(True for _ in module.parameters()):
        return
    elif not holds_attention and name != block and not any(map(is_norm, module.modules())):
        yield ModuleRole(name, module, "branch", block)
    else:
        for child in module._modules:
            yield from _inside_block(modules, f"{name}.{child}", block, attention, mixers)


def _role_outside(module: nn.Module) -> Role | None:
    """Return the role of a module outside the blocks."""
    if is_norm(module):
        return "norm"
    if is_linear(module):
        return "head linear"
    is_leaf = not any(True for _ in module.children())
    is_plain = is_leaf and not any(True for _ in module.parameters())
    return "activation" if is_plain and not type(module).__name__.startswith(PASSED_THROUGH) else None
