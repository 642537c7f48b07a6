"""`regard.layers.Attention` as a source, and with it `regard.gpt.GPT`.

Every such layer computes its attention in `layer.attend`. That method is wrapped while a capture is open: it
runs the same kernel and takes the kernel's lse as well. A cache that evicts keys passes on only those that
it still holds; the evicted ones are remembered here, so that the map shows every token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.backends.problem import prepare
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import as_mask
from regard.gpt import GPT
from regard.layers import Attention, KVCache
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.layer import LayerId
from regard.recorder.receiver import CallReceiver, PassTokens
from regard.recorder.sources.sdpa import CallListener, Computing, attend_with_overview, notify, wants_overview
from regard.recorder.sources.structure_of_models.structure import modules_of
from regard.support.override import ContextEntries, MethodWrappers

_ATTEND = Attention.attend


def fits(model: nn.Module) -> bool:
    """Whether the model has a `regard.layers.Attention` inside, as a GPT does."""
    return any(isinstance(module, Attention) for module in modules_of(model).values())


def layer_ids(model: nn.Module) -> dict[Attention, LayerId]:
    """Return the attention layers of a model, numbered in the model's order."""
    names = {module: name for name, module in modules_of(model).items() if isinstance(module, Attention)}
    return {module: LayerId(number, name) for number, (module, name) in enumerate(names.items())}


@contextmanager
def attach(model: nn.Module, receiver: CallReceiver) -> Iterator[None]:
    """Watch the attention layers of a model; restore them on leaving."""
    layers = layer_ids(model)
    receiver.expect(layers.values())
    wrappers = MethodWrappers()
    watches = {layer: LayerWatch(layer, layer_id, receiver) for layer, layer_id in layers.items()}
    for layer, watch in watches.items():
        wrappers.add(layer, "forward", watch.forward)
        wrappers.add(layer, "attend", watch.attend)
    for module in model.modules():
        if isinstance(module, GPT):
            wrappers.add(module, "states", functools.partial(_announce, receiver))
    with _watches.added(watches), wrappers.active():
        yield


_watches: ContextEntries[Mapping[Attention, LayerWatch]] = ContextEntries("layer_watches")
"""For each open capture and intervention of a context, what watches each layer."""


def _announce(
    receiver: CallReceiver,
    states: Callable[..., Tensor],
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Run a GPT's `states`, which both a plain call and `generate` use, as a pass of the receiver."""
    # Copied, since the caller may write to them later.
    ids = input_ids.detach().cpu().clone() if isinstance(input_ids, Tensor) else None
    is_token = attention_mask.detach().cpu().bool() if isinstance(attention_mask, Tensor) else None
    with receiver.forward_pass(PassTokens(ids, None, is_token)):
        return states(input_ids, attention_mask=attention_mask, **options)


class _LayerArguments(NamedTuple):
    """The arguments of the layer's current call."""

    cache: KVCache | None
    mask: Mask | Tensor | None


class LayerWatch:
    """Passes the calls of one attention layer to one receiver."""

    def __init__(self, layer: Attention, layer_id: LayerId, receiver: CallReceiver) -> None:
        self.layer, self.layer_id, self.receiver = layer, layer_id, receiver
        self._arguments = _LayerArguments(None, None)
        self._past: tuple[Tensor, Tensor] | None = None  # keys and values of all tokens so far

    def forward(self, forward: Callable[..., Tensor], *args: Any, **options: Any) -> Tensor:
        """Run the layer's `forward` and remember its cache and mask for `attend`."""
        self._arguments = _LayerArguments(options.get("cache"), options.get("mask"))
        return forward(*args, **options)

    def attend(
        self, own_attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> Tensor:
        """Run the layer's attention and pass it to every receiver that watches the layer."""
        # Nested captures and interventions wrap a layer several times, and its attention is to run once.
        if isinstance(getattr(getattr(own_attend, "func", None), "__self__", None), LayerWatch):
            return own_attend(q, k, v, mask)
        layer = self.layer
        dropout = layer.dropout if layer.training else 0.0
        settings: dict[str, Any] = {"scale": layer.scale, "softcap": layer.softcap, "sinks": layer.sinks}
        # A subclass may compute attention in its own way.
        is_plain = getattr(own_attend, "func", None) is _ATTEND
        watches = [watches[layer] for watches in _watches.get() if layer in watches]
        listeners = sorted((watch.listener for watch in watches), key=lambda x: not x.is_editor)
        with_overview = None
        if is_plain and not dropout and wants_overview(listeners):
            with_overview = attend_with_overview(prepare(q, k, v, mask=mask, **settings))
        kept = None
        with Computing():
            if with_overview is not None:
                output, lse, kept = with_overview
            elif is_plain:
                output, lse = attend(q, k, v, mask=mask, **settings, dropout=dropout, return_lse=True)
            else:
                output = own_attend(q, k, v, mask)
                with torch.no_grad():
                    # Any values do for the lse; the keys are at hand.
                    lse = attend(q, k, k, mask=mask, **settings, return_lse=True)[1]
        settings["scale"] = q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
        all_k, v, mask = self._with_evicted_keys(q, k, v, mask)
        # An overview is of the keys that the kernel saw, without those that were evicted.
        k, kept = all_k, kept if all_k is k else None
        problem = dropout_problem(dropout)
        call: Call = AttentionCall(
            q, k, v, output, lse, mask, **settings, own_lse=is_plain, problem=problem, kept=kept
        )
        call = notify(listeners, call)
        return output if isinstance(call, UnreadableCall) or call.used is None else call.used

    @property
    def listener(self) -> CallListener:
        """The listener that passes a call of the layer to the receiver."""
        receiver, layer_id = self.receiver, self.layer_id
        record = functools.partial(receiver.record, layer_id)
        return CallListener(
            record, receiver.is_editor, lambda: receiver.overviews and receiver.selects(layer_id)
        )

    def _with_evicted_keys(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Mask]:
        """Return keys, values and mask with the keys that the cache has evicted, if all were seen here."""
        cache, call_mask = self._arguments
        # Only a `SinkCache` evicts keys in the middle; what others evict comes first, and strips are joined
        # without it.
        if cache is None or not cache.first:
            return k, v, mask
        new, old = q.shape[2], cache.length - q.shape[2]
        k_new, v_new = (x[:, :, x.shape[2] - new :].detach() for x in (k, v))
        if self._past is None or not old or self._past[0].shape[2] != old or len(k) != len(self._past[0]):
            # A capture that was opened after the first tokens cannot show those that were evicted before.
            self._past = None if old else (k_new.clone(), v_new.clone())
        else:
            self._past = torch.cat([self._past[0], k_new], 2), torch.cat([self._past[1], v_new], 2)
        if self._past is None:
            return k, v, mask
        # The mask over all positions: the layer's own, the call's and the cache's.
        whole: Mask = full
        for part in (self.layer.mask, None if call_mask is None else as_mask(call_mask), cache.rule):
            if part is not None:
                whole = part if whole is full else whole & part
        return *self._past, whole
