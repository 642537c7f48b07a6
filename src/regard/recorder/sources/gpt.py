"""`regard.layers.Attention` as a source, and with it `regard.gpt.GPT`: everything passes `layer.attend`.

That method is covered while a capture is open; the layer computes as before, on the same kernel, which gives
its lse as well. A cache that forgets what lies between its first and its latest keys hands over only what it
holds; the keys in between are remembered here, so that the map shows every token there was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import as_mask
from regard.gpt import GPT
from regard.layers import Attention, KVCache
from regard.override import override_attribute
from regard.recorder.attention_call import AttentionCall, dropout_problem
from regard.recorder.recording import LayerId, Recording, Tokens


def fits(model: nn.Module) -> bool:
    """Whether the model has `regard.layers.Attention` inside, as a GPT does."""
    return any(isinstance(module, Attention) for module in model.modules())


def places(model: nn.Module) -> dict[Attention, LayerId]:
    """The attentions of a model, numbered in the order in which they stand in it."""
    found = {m: name for name, m in model.named_modules() if isinstance(m, Attention)}
    return {module: LayerId(number, name) for number, (module, name) in enumerate(found.items())}


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a model's `Attention`s; on leaving, they are as they were."""
    known = places(model)
    recording.expect(known.values())
    with ExitStack() as undo:
        for layer, place in known.items():
            watch = _Watch(layer, place, recording)
            undo.enter_context(override_attribute(layer, "forward", watch.forward))
            undo.enter_context(override_attribute(layer, "attend", watch.attend))
        for module in model.modules():
            if isinstance(module, GPT):
                undo.enter_context(override_attribute(module, "states", _beginning(module.states, recording)))
        yield


def _beginning(states: Callable[..., Tensor], recording: Recording) -> Callable[..., Tensor]:
    """A GPT's `states`, through which both a plain call and `generate` go."""

    @functools.wraps(states)
    def begin(input_ids: Tensor, *, attention_mask: Tensor | None = None, **others: Any) -> Tensor:
        ids = input_ids.detach().cpu().clone() if isinstance(input_ids, Tensor) else None
        is_token = attention_mask.detach().cpu().bool() if isinstance(attention_mask, Tensor) else None
        recording.begin(Tokens(ids, None, is_token))
        with recording.forward_pass():
            return states(input_ids, attention_mask=attention_mask, **others)

    return begin


class _Call(NamedTuple):
    """What a call of a layer was given."""

    cache: KVCache | None
    mask: Mask | Tensor | None


class _Watch:
    """One layer, watched."""

    def __init__(self, layer: Attention, place: LayerId, recording: Recording) -> None:
        self.layer, self.place, self.recording = layer, place, recording
        self._forward, self._attend = layer.forward, layer.attend
        self._own = type(layer).attend is Attention.attend and "attend" not in vars(layer)
        self._call = _Call(None, None)
        self._past: tuple[Tensor, Tensor] | None = None  # keys and values of all the tokens so far

    def forward(self, x: Tensor, context: Tensor | None = None, **others: Any) -> Tensor:
        self._call = _Call(others.get("cache"), others.get("mask"))
        return self._forward(x, context, **others)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        layer = self.layer
        dropout = layer.dropout if layer.training else 0.0
        settings: dict[str, Any] = {"scale": layer.scale, "softcap": layer.softcap, "sinks": layer.sinks}
        if self._own:
            output, lse = attend(q, k, v, mask=mask, **settings, dropout=dropout, return_lse=True)
        else:
            output = self._attend(q, k, v, mask)
            with torch.no_grad():
                lse = attend(q, k, k, mask=mask, **settings, return_lse=True)[1]
        settings["scale"] = q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
        k, v, mask = self._everything(q, k, v, mask)
        call = AttentionCall(
            q, k, v, output, lse, mask, **settings, own_lse=self._own, problem=dropout_problem(dropout)
        )
        self.recording.take(self.place, call)
        return output

    def _everything(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Mask]:
        """Keys, values and rule with those between that the cache has forgotten, where all were seen here."""
        cache, given = self._call
        if cache is None or not cache.first:
            return k, v, mask
        new, old = q.shape[2], cache.length - q.shape[2]
        k_new, v_new = (x[:, :, x.shape[2] - new :].detach() for x in (k, v))
        if self._past is None or not old or self._past[0].shape[2] != old or len(k) != len(self._past[0]):
            self._past = None if old else (k_new.clone(), v_new.clone())
        else:
            self._past = torch.cat([self._past[0], k_new], 2), torch.cat([self._past[1], v_new], 2)
        if self._past is None:
            return k, v, mask
        rules = [self.layer.mask, None if given is None else as_mask(given), cache.rule]
        rule: Mask = full
        for part in rules:
            if part is not None:
                rule = part if rule is full else rule & part
        return *self._past, rule
