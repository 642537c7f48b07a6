"""`CallReceiver`: receives the attention calls of a running model from the sources, and names their layers.

A `Recording` stores the calls in a capture, and an intervention changes what the model goes on with. What
both need is here: where a forward pass begins and ends, which tokens it reads, and which layer a call
belongs to. This file knows layer ids and passes; it does not know where the calls come from.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.recorder.attention_call import AttentionCall, Call
from regard.recorder.layer import LayerId
from regard.recorder.sources.structure_of_models.vision_tower import PixelInputs
from regard.recorder.sources.token_order import TokenOrder
from regard.support.override import ContextEntries


class PassTokens(NamedTuple):
    """The tokens that a forward pass reads, as far as its arguments show them."""

    ids: Tensor | None = None  # (B, T)
    target_ids: Tensor | None = None  # (B, T) of a decoder beside an encoder
    attention_mask: Tensor | None = None  # (B, tokens so far), True for tokens and False for padding
    pixels: PixelInputs | None = None  # of the pictures
    others: tuple[Tensor, ...] = ()  # further arguments that may hold token ids
    cache: Any = None  # the cache that a Transformers model was given
    batch: tuple[int, ...] = ()  # the first two lengths of the first tensor, one of which counts the texts


class ModelArguments(NamedTuple):
    """The arguments of a forward pass, and where among them the token ids are."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def ids(self) -> Any:
        """The token ids, or whatever stands where they are expected."""
        return self.args[0] if self.args else self.kwargs.get(self._name)

    @property
    def _name(self) -> str:
        return "input_ids" if "input_ids" in self.kwargs else "ids"

    def with_ids(self, ids: Tensor) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments with other ids, of the same dtype and on the same device."""
        ids = ids.to(self.ids)
        return ((ids, *self.args[1:]), self.kwargs) if self.args else ((), {**self.kwargs, self._name: ids})


Slot = tuple[str, int]
"""The name of a module, and how often it ran before in this forward pass."""


class CallReceiver:
    """The forward passes of a model, and the layers that its attention calls belong to."""

    is_editor = False
    """Whether it may change the output with which the model goes on."""
    overviews = False
    """Whether the attention of the layers that it selects should hand out overviews."""
    takes_recurrences = False
    """Whether it receives the calls of linear layers."""
    watches_tokens = False
    """Whether it matters to the receiver which tokens the rows and keys of a call are."""
    keeps_arguments = False
    """Whether the forward pass may be run again later, with other tokens."""

    def __init__(self) -> None:
        self.forwards = 0  # forward passes of the model so far
        self.running = 0  # forward passes of the model that have begun and not ended
        self.refusal: str | None = None  # why nothing that was received can be trusted
        self.unreadable: dict[str, str] = {}  # by module name: why its attention could not be interpreted
        self.heard: set[str] = set()  # names of the modules whose attention ran, selected or not
        self._other_text = False  # whether a model inside the model is reading a second text
        self._lock, self._thread = threading.RLock(), 0  # the thread that runs the model
        self._calls: Counter[str] = Counter()  # calls of each module in this forward pass
        self._names: dict[int | str, str] = {}  # by layer key: the name of its module
        self._modules: Counter[str] = Counter()  # modules in each stack
        self._tokens: PassTokens | None = None  # of this forward pass
        self.order: TokenOrder | None = None  # what was done to the tokens of this forward pass
        self.prompt: int | None = None  # how many tokens the prompt of the running generation has
        self.cache: Any = None  # that the model was given in this forward pass
        self.arguments: ModelArguments | None = None  # of the forward pass, where it may be run again
        self.known_code: tuple[str, ...] = ()  # names of modules whose code keeps tokens in order
        self.modules: frozenset[nn.Module] = frozenset()  # of the model whose calls are received

    def selects(self, layer_id: LayerId) -> bool:
        """Whether the calls of this layer matter to the receiver."""
        return True

    def descriptions(self) -> list[str]:
        """Return a sentence for each of its edits, if it is an editor."""
        return []

    def editors(self) -> list[CallReceiver]:
        """Return the open receivers that edit the model, or a part of it."""
        return [x for x in open_receivers.get() if x.is_editor and not x.modules.isdisjoint(self.modules)]

    def is_known(self, name: str) -> bool:
        """Whether a module is part of a model whose code is known to keep its tokens in order."""
        return any(not known or f"{name}.".startswith(f"{known}.") for known in self.known_code)

    def expect(self, layer_ids: Collection[LayerId]) -> None:
        """Announce the layers whose attention a source is going to see."""
        self._modules.update(layer_id.stack for layer_id in layer_ids)

    def record(self, layer_id: LayerId, call: Call) -> Call:
        """Receive an attention call that a module has made; return the call with which the model goes on."""
        raise NotImplementedError

    def disown(self, slot: Slot) -> None:
        """Learn that the output of an attention call was not used by the module that computed it."""

    def unplace(self, slot: Slot, reason: str) -> None:
        """Learn that the axes of an attention call are not texts, heads and tokens."""

    def last_slot(self, name: str) -> Slot:
        """Return the slot of the last call of a module."""
        return name, self._calls[name] - 1

    @contextmanager
    def forward_pass(self, tokens: PassTokens, in_decoder: bool = False) -> Iterator[None]:
        """Mark the block as a forward pass that reads `tokens`, or as a part of the pass that is running.

        `in_decoder` says that the tokens are those of a decoder, which may stand beside an encoder.
        """
        with self._lock:
            is_alone, other_text = self._is_alone(), self._other_text
            if is_alone and not self.running:
                self._thread = threading.get_ident()
                self._begin(tokens)
                self._take_pixels(tokens.pixels)
            elif is_alone:
                self._take_pixels(tokens.pixels)
                self._other_text = not self._belongs(tokens, in_decoder)
            self.running += is_alone
        try:
            yield
            if is_alone and self.running == 1:
                self._check_pass()
        finally:
            with self._lock:
                self.running -= is_alone
                self._other_text = other_text

    def _begin(self, tokens: PassTokens | None = None) -> None:
        """Begin a forward pass of the model that reads `tokens`."""
        self._finish_forward()
        self.forwards += 1
        self._calls.clear()
        self._tokens, self.order = tokens, None
        self.cache = None if tokens is None else tokens.cache

    def _take_pixels(self, pixels: PixelInputs | None) -> None:
        """Take the pixels that this forward pass, or a part of it, reads."""

    def _finish_forward(self) -> None:
        """Finish what the last forward pass has begun."""

    def _check_pass(self) -> None:
        """Called when a forward pass of the whole model ends without an error."""

    def _belongs(self, tokens: PassTokens, in_decoder: bool) -> bool:
        """Return whether a model inside the model reads the text of this forward pass.

        Its ids are used if the outer call had none (`inputs_embeds`) or none of a decoder, or if nothing has
        attended yet: it may have been handed a part of the text.
        """
        ids, announced = tokens.ids, self._tokens
        if ids is None or announced is None:
            return True
        known = [x for x in (announced.ids, announced.target_ids) if x is not None]
        if any(x.shape == ids.shape and torch.equal(x, ids) for x in known):
            return True
        if announced.ids is None or not self._calls:
            self._tokens = announced._replace(ids=ids, attention_mask=tokens.attention_mask)
        elif in_decoder and announced.target_ids is None:
            self._tokens = announced._replace(target_ids=ids)
        else:
            return False
        return True

    def _is_alone(self) -> bool:
        """Return whether no other thread is running the model for this receiver; otherwise refuse it.

        A receiver belongs to a context. If two threads have copies of that context and run the model at once,
        nothing shows which of their calls belong together.
        """
        if self.running and self._thread != threading.get_ident():
            self.refusal = (
                "two threads ran the model at once inside one block, and their calls cannot be told apart: "
                "open a block in each thread"
            )
        return self.refusal is None

    def _locate(self, layer_id: LayerId, call: Call) -> tuple[Slot, LayerId]:
        """Return the slot of a call, and its layer id made unique."""
        same_call = isinstance(call, AttentionCall) and (call.part is not None or call.again)
        if not self.forwards and not same_call:  # no source announces forward passes: every call is one
            self._finish_forward()
            self._calls.clear()
        elif self.forwards and not self.running and not same_call:  # a module called after the model ran
            self._begin()
        self.heard.add(layer_id.name)
        self._calls[layer_id.name] += not same_call
        repeats = self._calls[layer_id.name] - 1
        slot = (layer_id.name, repeats)
        # ALBERT runs one module several times, as if it were several layers.
        if repeats:
            number = layer_id.number + repeats * self._modules[layer_id.stack]
            layer_id = layer_id._replace(number=number, name=f"{layer_id.name}#{repeats}")
        if self._names.setdefault(layer_id.key, layer_id.name) != layer_id.name:  # of another module
            layer_id = layer_id._replace(stack=layer_id.name)
            self._names[layer_id.key] = layer_id.name
        return slot, layer_id


open_receivers: ContextEntries[CallReceiver] = ContextEntries("open_receivers")
"""The receivers whose blocks are open in a context."""
