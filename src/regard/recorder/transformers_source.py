"""Transformers' models as a source: an attention named "regard", registered beside "sdpa" and "eager".

It computes with `attend`, on the kernel that the model would have used, and hands what it sees to whoever
records the module that called. `attach` switches a model to it and back.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.attention.attend import attend
from regard.attention.masks import Padding, causal
from regard.attention.rules import Mask, full
from regard.maps import AttentionMap
from regard.recorder import sdpa_source
from regard.recorder.dense_masks import as_bias, as_rule
from regard.recorder.places import mentions, placed
from regard.recorder.recording import Place, Recording, unwritten
from regard.recorder.transformers_masks import RuleMask, rule_mask

NAME = "regard"  # names with "flash", "sdpa" or "flex" in them switch on other code in Transformers

_listening: dict[nn.Module, list[tuple[Recording, Place]]] = {}
"""Who records which module's attention, while captures are open."""
_calls: Counter[nn.Module] = Counter()
"""How often each of those modules has called the attention since it was called itself."""


def register() -> None:
    """Make the attention known to Transformers: `model.set_attn_implementation("regard")`."""
    try:
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.modeling_utils import AttentionInterface
    except ImportError:
        raise ImportError("capture of Transformers' models needs a Transformers of 4.54 or later") from None
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
    query, key, value = sdpa_source.autocast(query, key, value)
    mask, S = _rule(attention_mask, is_causal, query.shape[2], key.shape[2])
    key, value = key[:, :, :S], value[:, :, :S]
    if position_bias is not None:
        bias = as_bias(position_bias[..., :S])
        mask = bias if mask is full else mask if bias is full else mask & bias
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
    listeners = _listening.get(module, ())
    # Some vision towers cut their tokens into images or windows, and call for each of them.
    part = _calls[module] > 0
    if listeners:
        _calls[module] += 1
    for recording, place in listeners:
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
            part=part,
        )
    sinks = None if s_aux is None else s_aux.detach()
    map = AttentionMap(query.detach(), unwritten(key.detach()), lse, mask, scale, softcap, sinks)
    return output.transpose(1, 2).contiguous(), map


def _rule(given: Tensor | None, is_causal: bool, T: int, S: int) -> tuple[Mask, int]:
    """The mask that a layer was given as a rule, and how many of its keys there are to see."""
    if given is None:
        # As everywhere in Transformers: one query sees all keys, several see from the first key on.
        if not is_causal or T == 1:
            return full, S
        return (causal, T) if T <= S else (causal.top_left, S)
    if isinstance(given, RuleMask):
        return given.rule, given.keys
    if given.ndim == 2:
        return Padding(given[:, -S:].bool()), S
    return as_rule(given[..., :S]), S


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a Transformers model's attention; on leaving, the model is as it was."""
    register()
    places = placed(_attentions(model))
    calling = sdpa_source.attentions(model)
    if not places and not calling:
        raise ValueError(_no_way_in(model))
    if left_out := _left_out(model, [place.name for place in places.values()] + list(calling)):
        warnings.warn(
            f"{type(model).__name__}: its {', '.join(left_out)} cannot be captured and will be missing; "
            "regard.capture(model, at={name: adapter}) serves any module",
            stacklevel=4,
        )
    recording.expect(places.values())
    configs = _configs(model)
    # Models outside the interface have a branch for "sdpa" instead, which `sdpa_source` listens to.
    outside = {id(getattr(m, "config", None)) for m in calling.values()} - {
        id(getattr(m, "config", None)) for m in places
    }
    before = [config._attn_implementation_internal for config in configs]
    hooks: list[RemovableHandle] = []
    try:
        for config in configs:
            config._attn_implementation_internal = "sdpa" if id(config) in outside else NAME
        for module, place in places.items():
            _listening.setdefault(module, []).append((recording, place))
            hooks.append(module.register_forward_pre_hook(_called_itself))
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name
        for module, place in places.items():
            _listening[module].remove((recording, place))
            if not _listening[module]:
                del _listening[module]
            _calls.pop(module, None)
        for hook in hooks:
            hook.remove()


def _called_itself(module: nn.Module, _: Any) -> None:
    _calls.pop(module, None)


def _no_way_in(model: nn.Module) -> str:
    kinds = {
        type(module).__name__: None for module in model.modules() if "Attention" in type(module).__name__
    }
    return (
        f"{type(model).__name__} cannot be captured: its attention ({', '.join(kinds) or 'none found'}) "
        "goes neither through Transformers' AttentionInterface nor through PyTorch's "
        "scaled_dot_product_attention; regard.capture(model, at={name: adapter}) serves any module"
    )


def _left_out(model: nn.Module, seen: list[str]) -> dict[str, None]:
    """The kinds of modules that are attention by their name, and neither seen, inside nor around what is."""
    seen = seen + [
        name for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)
    ]
    return {
        type(module).__name__: None
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Attention")
        and not any(f"{x}.".startswith(f"{name}.") or name.startswith(f"{x}.") for x in seen)
    }


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


def _attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that ask Transformers' interface for their attention."""
    return {name: m for name, m in model.named_modules() if mentions(m.__class__, "ALL_ATTENTION_FUNCTIONS")}
