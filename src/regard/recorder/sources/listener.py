"""Listens to a model's attention while the model's own implementation computes it.

It hears four things: PyTorch's `scaled_dot_product_attention` and `regard.attend`, whichever module calls
them, the functions of Transformers' `AttentionInterface`, and attention that a module computes by a softmax
in its own code. Nothing in the model is switched or replaced. This file knows which module of the model a
call belongs to; what a call means is read in `sdpa`, `attend_function`, `transformers_interface` and
`eager_call`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import Tensor, nn

from regard.attention.context_parallel.ring import ring_listeners
from regard.layers import Attention
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall
from regard.recorder.call_receiver import CallReceiver
from regard.recorder.layer import LayerId
from regard.recorder.map_preparation import without_autocast
from regard.recorder.rank_group import is_distributed
from regard.recorder.sources import (
    attend_function,
    linear_attention,
    sdpa,
    token_order,
    torch_mha,
)
from regard.recorder.sources.call_listeners import (
    CallListener,
    Listening,
    listeners_to,
    notify,
    open_listeners,
    reading_mode,
)
from regard.recorder.sources.eager import eager_trace
from regard.recorder.sources.eager.eager_call import attention_call
from regard.recorder.sources.eager.eager_scores import EagerAttention
from regard.recorder.sources.earlier_calls import PARTS, EarlierCall
from regard.recorder.sources.evicted_keys import CacheWatch
from regard.recorder.sources.rank_placement import place_heads, place_rows
from regard.recorder.sources.sdpa_call import several_axes
from regard.recorder.sources.structure_of_models.layer_names import number_in
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.sources.transformers_library import transformers_interface
from regard.support.override import MethodWrappers, Replacement, SharedOverride
from regard.support.torch_internals import current_transform


class Source(Protocol):
    """A file that hears attention calls: it passes them to the listeners of the context that makes them."""

    def replacements(self, model: KnownModel) -> Iterator[Replacement]:
        """Yield the functions that are wrapped while a block is open. Without listeners nothing changes."""


SOURCES: tuple[Source, ...] = (sdpa, attend_function, torch_mha, transformers_interface, linear_attention)
_override = SharedOverride()
SHARED_KEYS = (
    "all its heads share their keys, and nothing shows which axis of its queries counts heads: "
    "name num_heads in the module"
)


class Listener:
    """Passes the attention calls of one model's modules to one receiver.

    `watched` are the modules that run in `run_module`.
    """

    def __init__(self, model: KnownModel, receiver: CallReceiver, watched: Iterable[nn.Module]) -> None:
        modules, parts = model
        self.receiver = receiver
        self.watched = frozenset(watched)
        self.names = {module: name for name, module in modules.items()}
        # An edit does not reach linear layers, and is not told of them.
        ids = parts.layer_ids if receiver.is_editor else parts.layer_ids | parts.linear_ids
        self.layer_ids = {modules[name]: layer_id for name, layer_id in ids.items()}
        self.caches = {x: CacheWatch(x) for x in self.layer_ids if isinstance(x, Attention)}
        """What the caches of Regard's own layers evict."""
        self.earlier: dict[nn.Module, list[EarlierCall]] = {}
        """The attention calls that each module has made since it was called itself."""

    def to(self, module: nn.Module) -> CallListener:
        """Return what receives the calls of one of the model's modules."""
        wants_overview = self.receiver.overviews and self.receiver.selects(self.layer_id(module))
        return CallListener(functools.partial(self.take, module), self.receiver.is_editor, wants_overview)

    def take(self, module: nn.Module, call: Call) -> Call:
        """Pass on an attention call of one of the model's modules, which may make several."""
        layer_id, part = self.layer_id(module), None
        if isinstance(call, AttentionCall) and call.recurrence is not None:
            # Of the receivers only a recording makes maps of recurrences.
            return self.receiver.record(layer_id, call) if self.receiver.takes_recurrences else call
        if isinstance(call, AttentionCall) and is_distributed():
            call = place_heads(module, self._parent(module), call)
            call = place_rows(call) if isinstance(call, AttentionCall) else call
        # Of these modules alone it is known when a run begins, and which calls are of one run.
        if module not in self.watched:
            return self.receiver.record(layer_id, call)
        earlier = self.earlier.setdefault(module, [])
        if isinstance(call, AttentionCall):
            this = EarlierCall.of(call)
            same = next((i for i, other in enumerate(earlier) if this.same_weights(other)), None)
            # The same weights applied to other values are no second map. A call with a problem is recorded
            # all the same: dropout in the second one would be lost otherwise.
            if call.problem is None and same is not None:
                layer_id = _numbered(layer_id, earlier[: same + 1])
                return self.receiver.record(layer_id, call._replace(again=True))
            part = this.part_of(earlier) if earlier else None
            if part is not None or call.again:
                call = call._replace(part=part, again=False)
            this.is_part = part is not None
            earlier.append(this)
            if part is None:
                layer_id = _numbered(layer_id, earlier)
        call = self.receiver.record(layer_id, call)
        slot = self.receiver.last_slot(layer_id.name)
        if earlier and isinstance(call, AttentionCall):
            earlier[-1].slot = slot
            # A part that could not be joined has other rows or keys than the tokens, and so has the first
            # one.
            if part is None and len(earlier) > 1 and earlier[-1].is_cut_like(earlier[0]):
                for place in (earlier[0].slot, slot):
                    self.receiver.unplace(place, PARTS)
            call = call._replace(if_unused=(*call.if_unused, functools.partial(self.receiver.disown, slot)))
        return call

    def _parent(self, module: nn.Module) -> nn.Module | None:
        """Return the module around one of the model's modules."""
        name = self.names[module].rpartition(".")[0]
        return next((other for other, own in self.names.items() if own == name and other is not module), None)

    def layer_id(self, module: nn.Module) -> LayerId:
        """Return the layer id of a module."""
        # Any running module may call the function, also one whose code did not show it beforehand.
        if module not in self.layer_ids:
            number = number_in(self.names[module], len(self.layer_ids))
            self.layer_ids[module] = LayerId(number, self.names[module])
        return self.layer_ids[module]

    def run_module(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a module's `forward`, with none of its earlier calls before it and after it."""
        self.earlier.pop(module, None)
        try:
            return forward(*args, **kwargs)
        finally:
            # Earlier calls hold queries and keys, which are to be freed with the module's own.
            self.earlier.pop(module, None)


def _eager_call(attention: EagerAttention, independent: str | None) -> Call:
    """Read an attention in a module's own code, or say why it cannot be read.

    `independent` says why its queries and keys are no tokens, if they are not.
    """
    module = attention.modules[-1]
    try:
        call = attention_call(attention, module)
        reason = several_axes(attention.output.shape) or independent
        if attention.is_told:
            return call._replace(unplaced=reason)
        # Its numbers may be right and its heads and queries exchanged, which no output can show.
        return call._replace(problem=SHARED_KEYS, unplaced=SHARED_KEYS)
    except (ValueError, RuntimeError) as error:
        return UnreadableCall(f"{type(module).__name__}, as {error}")


def _hear_eager(attention: EagerAttention) -> Tensor | None:
    """Pass an attention in a module's own code to the listeners of this context; return an edited output."""
    listeners = listeners_to(*attention.modules)
    # A transform of torch.func hides its numbers; `TokenMixers` then names the module as missing.
    if not listeners or current_transform() is not None:
        return None
    device, scores = attention.v.device, attention.weights.scores
    # Asked of the tensors as the model has them, before reading makes copies that nothing follows.
    independent = token_order.why_independent(scores.left, scores.right) if scores.is_known else None
    # Reading the call multiplies and takes a softmax itself; PyTorch has taken the mode off here.
    with reading_mode(listeners), Listening():
        call = _eager_call(attention, independent)
        with without_autocast(device):
            call = notify(listeners, call)
    return None if call.edited is None else attention.restore(call.edited.reshape(attention.output.shape))


def _numbered(layer_id: LayerId, calls: list[EarlierCall]) -> LayerId:
    """Return the layer id of the last of a module's calls: differential attention makes several."""
    number = sum(not call.is_part for call in calls)
    if number == 1:
        return layer_id
    stack = ".".join(filter(None, (layer_id.stack, f"attention{number}")))
    return layer_id._replace(stack=stack, name=f"{layer_id.name}#attention{number}")


@contextmanager
def attached(model: KnownModel, receiver: CallReceiver, wrappers: MethodWrappers) -> Iterator[None]:
    """Inside the block, with the wrappers that it adds, a receiver gets the attention calls of a model."""
    modules, parts = model
    watched = [modules[name] for name in dict.fromkeys((*parts.attention, *parts.traced))]
    listener = Listener(model, receiver, watched)
    receiver.expect(listener.layer_ids.values())
    for module in watched:
        wrappers.add(module, "forward", functools.partial(listener.run_module, module))
    for name in parts.traced:
        wrappers.add(modules[name], "forward", functools.partial(eager_trace.run_traced, _hear_eager))
    # In a mode PyTorch leaves its fast path, in which the output of an attention cannot be changed.
    run_fused = sdpa.run_in_mode if receiver.is_editor else sdpa.run_without_mode
    for name in parts.fused:
        wrappers.add(modules[name], "forward", run_fused)
    for layer, cache in listener.caches.items():
        wrappers.add(layer, "forward", cache.forward)
    linear_attention.watch_lightning(model, listener.take, wrappers)
    with ExitStack() as undo:
        undo.enter_context(ring_listeners.added(attend_function.hear_ring))
        replacements = (row for source in SOURCES for row in source.replacements(model))
        undo.enter_context(_override.opened(replacements))
        undo.enter_context(open_listeners.added(listener))
        yield
