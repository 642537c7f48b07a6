"""Modules that call PyTorch's `scaled_dot_product_attention` themselves, as a source.

Every call is let through as it is, or computed by the same kernel where that also gives lse; the output is
the model's own in any case, and the certificate holds the map against it. Models of Transformers that do not
use its interface are switched to their own call of this function while the capture lasts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from regard.attention.attend import attend, explain
from regard.attention.masks import causal
from regard.attention.rules import Mask, full
from regard.maps import weights
from regard.recorder.dense_masks import as_rule
from regard.recorder.places import mentions, placed
from regard.recorder.recording import Place, Recording


def attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that call the function."""
    return {
        name: m for name, m in model.named_modules() if mentions(m.__class__, "scaled_dot_product_attention")
    }


def fits(model: nn.Module) -> bool:
    return bool(attentions(model))


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Listen to the calls of a model's modules; on leaving, the model is as it was."""
    places = placed(attentions(model))
    recording.expect(places.values())
    with ExitStack() as undo:
        undo.callback(_running.__delitem__, slice(len(_running), None))  # hooks miss a KeyboardInterrupt
        for module, place in places.items():
            if module not in _listening:  # captures inside captures share what the outermost has put there
                _listening[module] = []
                undo.callback(_listening.pop, module)
                undo.callback(module.register_forward_pre_hook(_enter).remove)
                undo.callback(module.register_forward_hook(_leave, always_call=True).remove)
            _listening[module].append((recording, place))
            undo.callback(_listening[module].remove, (recording, place))
        if not any(isinstance(mode, Listening) for mode in _get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
            undo.enter_context(Listening())
        yield


_listening: dict[nn.Module, list[tuple[Recording, Place]]] = {}
"""Who records which module's attention, while captures are open."""
_running: list[list[Any]] = []
"""The modules inside of which we are, the innermost last, and how often each has called."""


def _enter(module: nn.Module, *_: Any) -> None:
    _running.append([module, 0])


def _leave(*_: Any) -> None:
    _running.pop()


class Listening(TorchFunctionMode):
    """While it is on, sees the calls of `scaled_dot_product_attention`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention or not _running:
            return func(*args, **kwargs)
        module, calls = _running[-1]
        _running[-1][1] += 1
        return self._call(_listening[module], calls > 0, *args, **kwargs)

    def _call(
        self,
        listeners: list[tuple[Recording, Place]],
        again: bool,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        query, key, value = autocast(query, key, value)
        if query.ndim == 3:  # one head
            q, k, v = (x.unsqueeze(1) for x in (query, key, value))
            mask_3d = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
            return self._call(listeners, again, q, k, v, mask_3d, dropout_p, is_causal, scale).squeeze(1)
        if query.ndim != 4:
            name = listeners[0][1].name
            raise ValueError(f"{name}: expected q (batch, heads, length, width), got {tuple(query.shape)}")
        mask: Mask = full
        k, v = key, value
        if attn_mask is not None:
            reach = _reach(attn_mask)
            k, v, mask = key[:, :, :reach], value[:, :, :reach], as_rule(attn_mask[..., :reach])
        if is_causal:
            order = causal if query.shape[2] == k.shape[2] else causal.top_left
            mask = order if mask is full else mask & order
        if scale is None:
            scale = 1.0 / math.sqrt(
                query.shape[-1]
            )  # as PyTorch has it: in float64 not the same as D ** -0.5
        settings: dict[str, Any] = {"mask": mask, "scale": scale}
        if attn_mask is None and not dropout_p and explain(query, k, v, **settings).backend == "torch":
            output, lse = attend(query, k, v, **settings, return_lse=True)
        else:
            output = scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=attn_mask,
                dropout_p=dropout_p,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
            lse = weights(query, k, **settings).lse
        for recording, place in listeners:
            recording.take(
                place,
                query,
                k,
                v,
                output,
                lse=lse,
                mask=mask,
                scale=scale,
                problem=f"dropout {dropout_p} was on, which no map shows" if dropout_p else None,
                part=again,
            )
        return output


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """q, k and v as PyTorch's own attention takes them where autocast is on."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def _reach(mask: Tensor) -> int:
    """How many keys there are up to the last that anyone may see: a static cache holds places for more."""
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    seen = (~hidden).flatten(0, -2).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) and mask.shape[-1] > 1 else mask.shape[-1]
