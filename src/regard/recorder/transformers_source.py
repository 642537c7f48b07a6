"""Transformers' models as a source: an attention named "regard", registered beside "sdpa" and "eager".

It computes with `attend`, on the kernel that the model would have used, and hands what it sees to whoever
records the module that called. `attach` switches a model to it and back.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks import Dense, Padding, causal
from regard.attention.rules import Mask, full
from regard.maps import AttentionMap
from regard.recorder.recording import Place, Recording, own
from regard.recorder.transformers_masks import RuleMask, rule_mask

NAME = "regard"  # names with "flash", "sdpa" or "flex" in them switch on other code in Transformers

_listening: dict[nn.Module, list[tuple[Recording, Place]]] = {}
"""Who records which module's attention, while captures are open."""


def register() -> None:
    """Make the attention known to Transformers: `model.set_attn_implementation("regard")`."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, rule_mask)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, AttentionMap]:
    """What a Transformers layer calls: q (B, H, T, D), k and v (B, G, S, ·) to output (B, T, H, E) and a map.

    Windows, chunks and packed sequences come in the mask; `others` repeats them for other kernels.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    mask, S = _rule(attention_mask, is_causal, query.shape[2], key.shape[2])
    key, value = key[:, :, :S], value[:, :, :S]
    if position_bias is not None:
        bias = Dense(position_bias[..., :S])
        mask = bias if mask is full else mask & bias
    if s_aux is not None:
        s_aux = s_aux.to(query.dtype).flatten()
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    output, lse = attend(
        query,
        key,
        value,
        mask=mask,
        scale=scale,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
        return_lse=True,
    )
    for recording, place in _listening.get(module, ()):
        recording.take(
            place,
            query,
            key,
            value,
            output,
            lse=lse,
            mask=mask,
            scale=scale,
            softcap=softcap,
            sinks=s_aux,
            problem=f"dropout {dropout} was on, which no map shows" if dropout else None,
        )
    sinks = None if s_aux is None else s_aux.detach()
    map = AttentionMap(query.detach(), own(key.detach()), lse, mask, scale, softcap, sinks)
    return output.transpose(1, 2).contiguous(), map


def _rule(given: Tensor | None, is_causal: bool, T: int, S: int) -> tuple[Mask, int]:
    """The mask that a layer was given as a rule, and how many of its keys there are to see."""
    if given is None:
        # As everywhere in Transformers: one query sees all keys, several see from the first key on.
        return (causal, min(T, S)) if is_causal and T > 1 else (full, S)
    if isinstance(given, RuleMask):
        return given.rule, given.keys
    if given.ndim == 2:
        return Padding(given[:, -S:].bool()), S
    given = given[..., :S]
    if given.dtype == torch.bool:
        return Dense(given), S
    hidden = given <= torch.finfo(given.dtype).min / 2  # Transformers hides with the least number there is
    if bool((hidden | (given == 0)).all()):
        return Dense(~hidden), S
    return Dense(given.masked_fill(hidden, -torch.inf)), S


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a Transformers model's attention; on leaving, the model is as it was."""
    register()
    places = attentions(model)
    if not places:
        raise ValueError(
            f"{type(model).__name__} cannot be captured: none of its modules takes its attention from "
            "Transformers' AttentionInterface; regard.capture(model, at={name: adapter}) serves any module"
        )
    recording.expect(places.values())
    configs = _configs(model)
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = NAME
        for module, place in places.items():
            _listening.setdefault(module, []).append((recording, place))
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
        for module, place in places.items():
            _listening[module].remove((recording, place))
            if not _listening[module]:
                del _listening[module]


def fits(model: nn.Module) -> bool:
    """Whether this is a Transformers model, or has one inside."""
    return any(is_pretrained(module) for module in model.modules())


def is_pretrained(module: nn.Module) -> bool:
    return any(c.__module__ == "transformers.modeling_utils" for c in type(module).__mro__)


def _configs(model: nn.Module) -> list[Any]:
    """Every configuration in the model that says which attention to use, each once."""
    found: dict[int, Any] = {}
    waiting = [config for m in model.modules() if (config := getattr(m, "config", None)) is not None]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation_internal"):
            found[id(config)] = config
            waiting += [
                part for part in vars(config).values() if hasattr(part, "_attn_implementation_internal")
            ]
    return list(found.values())


def attentions(model: nn.Module) -> dict[nn.Module, Place]:
    """The modules that ask Transformers' interface for their attention, and where they stand."""
    found = {name: module for name, module in model.named_modules() if _asks_interface(type(module))}
    groups = {name: _group(name, module) for name, module in found.items()}
    stacks = _stack_names(list(dict.fromkeys(groups.values())))
    number_in_name = {
        name: int(n[0]) if (n := re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)) else -1 for name in found
    }
    counts = Counter((stacks[groups[name]], number_in_name[name]) for name in found)
    places, order = {}, Counter[str]()
    for name, module in found.items():
        stack, number = stacks[groups[name]], number_in_name[name]
        alone = all(
            counts[stack, number_in_name[other]] == 1 for other in found if stacks[groups[other]] == stack
        )
        places[module] = Place(number if alone and number >= 0 else order[stack], name, stack)
        order[stack] += 1
    return places


def _asks_interface(kind: type[nn.Module]) -> bool:
    forward = inspect.unwrap(kind.forward)
    names = getattr(getattr(forward, "__code__", None), "co_names", ())
    return "ALL_ATTENTION_FUNCTIONS" in names


def _group(name: str, module: nn.Module) -> str:
    """What the attentions of one stack have in common: their name up to the first number, and cross or not."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    before = parts[: numbers[0]] if numbers else parts[:-1]
    after = parts[numbers[0] + 1 :] if numbers else parts[-1:]
    own_name = ".".join(after).lower()
    cross = "cross" in own_name or "encoder_attn" in own_name or "encdec" in own_name
    return ".".join(
        [*before, "cross"] if cross or getattr(module, "is_cross_attention", False) is True else before
    )


def _stack_names(groups: list[str]) -> dict[str, str]:
    """A short name for each stack: "" if it is the only one; "encoder", "decoder", "cross"; or what differs."""
    if len(groups) == 1:
        return {groups[0]: ""}
    names = {}
    for group in groups:
        parts = group.split(".")
        known = [part for part in parts if part in ("encoder", "decoder", "cross")]
        names[group] = known[-1] if known else group
    return names
