"""`Recording`: takes what attentions hand it and becomes a `Capture`.

It knows tensors, places and what was asked for; it does not know where the tensors come from. Sources
(`listener`, `torch_source`, …) hand it every attention as it runs, through `take`; a store keeps
the layers that come of it, in memory or elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.masks.base import And, Mask, Not, Or, Rows
from regard.attention.masks.named import Alibi, Padding, Relative, Rule, TensorMask
from regard.maps import AttentionMap, attention_map
from regard.recorder.attention_call import AttentionCall, Unreadable
from regard.recorder.certificate import OWN_OUTPUT, ROWS, Evidence, examine
from regard.recorder.generation.mask_join import joined_mask, parts_of
from regard.recorder.generation.piecewise_mask import CallSizes
from regard.recorder.generation.strips import Addition, Strip, StripStep
from regard.recorder.result import Capture, Layer


class LayerId(NamedTuple):
    """Where an attention stands in its model."""

    number: int
    """Its place in its stack, counted from 0."""
    name: str
    """The module's name: `transformer.h.0.attn`."""
    stack: str = ""
    """"" where a model has one stack; else "encoder", "decoder" or "cross"."""

    @property
    def key(self) -> str:
        """What its layer is called: "3", or "decoder.3"."""
        return f"{self.stack}.{self.number}" if self.stack else str(self.number)


class Store(Protocol):
    """Keeps the layers of a capture."""

    def expect(self, layers: int) -> None:
        """So many more layers are to come, as far as is known."""

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        """Keep a layer, perhaps instead of one that has grown. What comes back stands for it in `Capture`."""

    def finish(self, seen: Capture) -> None:
        """The capture is whole."""


class Memory:
    """Layers stay where they are."""

    def expect(self, layers: int) -> None:
        pass

    def put(self, layer: Layer, instead_of: Layer | None = None) -> Layer:
        return layer

    def finish(self, seen: Capture) -> None:
        pass


class Tokens(NamedTuple):
    """The tokens that a forward pass reads, as far as they can be seen."""

    ids: Tensor | None = None  # (B, T)
    target_ids: Tensor | None = None  # (B, T) of a decoder that stands beside an encoder
    real: Tensor | None = None  # (B, tokens so far)


class Recording:
    """What is asked for of a capture, and what came of it so far.

    - `layers`: numbers (of every stack), keys as "decoder.3" or module names; `heads`: numbers; None for all.
    - `dtype`: what q and k are kept in; as they are if None. `values`: keep v, too. `verify`: compare all
      rows with the model's output, not a sample of them.
    - `store`: where layers go. `stitch`: whether later calls may continue earlier ones. `spell`: ids as text.
    """

    def __init__(
        self,
        *,
        layers: Collection[int | str] | None = None,
        heads: Collection[int] | None = None,
        dtype: torch.dtype | None = None,
        values: bool = False,
        verify: bool = False,
        store: Store | None = None,
        stitch: bool = True,
        model: str = "",
        spell: Callable[[Tensor], list[list[str]]] | None = None,
    ) -> None:
        for name, given in (("layers", layers), ("heads", heads)):
            if isinstance(given, int | str):
                raise ValueError(f"{name}: expected a list of them, as [{given!r}], got {given!r}")
        self.layers = None if layers is None else {str(layer) for layer in layers}
        self.heads = None if heads is None else sorted(set(heads))
        self.dtype, self.values, self.verify, self.stitch = dtype, values, verify, stitch
        self.store: Store = Memory() if store is None else store
        self.spell = spell
        self.seen = Capture(model=model)
        self.forwards = 0
        self.running = 0  # forward passes of the model that have begun and not ended
        self.unreadable: dict[str, str] = {}  # modules whose attention could not be understood, and why
        self.heard: set[str] = (
            set()
        )  # the names of all modules whose attention ran, also of layers not asked for
        self._strips: dict[tuple[str, int], Strip] = {}  # by module and how many times it ran before
        self._calls: Counter[str] = Counter()  # of each module, in this forward pass
        self._keys: dict[str, str] = {}  # of every layer that ran, and the name of its module
        self._modules: Counter[str] = Counter()  # in each stack
        self._tokens: Tokens | None = None  # of this forward pass, until it is known what it continues
        self._waiting: list[tuple[Strip, Addition]] = []  # what this forward pass adds to layers
        self._versions: list[tuple[Layer, list[tuple[Tensor, int]]]] = []  # of tensors that layers share
        self._joined: dict[tuple[object, ...], tuple[Mask, ...]] = {}  # masks of this forward pass

    def wants(self, place: LayerId) -> bool:
        """Whether this layer was asked for."""
        return self.layers is None or not self.layers.isdisjoint((str(place.number), place.key, place.name))

    def expect(self, places: Collection[LayerId]) -> None:
        """Where attention is going to be seen, as far as a source knows."""
        self._modules.update(place.stack for place in places)
        self.store.expect(sum(self.wants(place) for place in places))

    @contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Inside the block, what is taken belongs to a forward pass of the model."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def begin(self, tokens: Tokens | None = None) -> None:
        """A forward pass of the model begins."""
        self._settle()
        self.forwards += 1
        self._calls.clear()
        self._tokens = tokens

    def take(
        self,
        place: LayerId,
        call: AttentionCall | Unreadable,
        *,
        against: str = OWN_OUTPUT,
        part: bool = False,
    ) -> None:
        """An attention has run at a place.

        `against` says what the call's output is; `part` that the module cuts its tokens into stretches that
        do not see each other, and this is not the first of them.
        """
        if torch._C._current_graph_task_id() != -1:
            return  # computed once more for its gradients (checkpointing), and seen before
        if isinstance(call, Unreadable):
            self.unreadable[place.name] = call.reason
            return
        if not self.forwards and not part:  # nobody says where a forward pass begins: every call is one
            self._settle()
            self._calls.clear()
        elif self.forwards and not self.running and not part:  # a module on its own, after the model ran
            self.begin()
        self.heard.add(place.name)
        self._calls[place.name] += not part
        times = self._calls[place.name] - 1
        slot = (place.name, times)
        if times:  # a model that runs one module several times, as layers of their own
            number = place.number + times * self._modules[place.stack]
            place = place._replace(number=number, name=f"{place.name}#{times}")
        if self._keys.setdefault(place.key, place.name) != place.name:  # seen by another source
            place = place._replace(stack=place.name)
            self._keys[place.key] = place.name
        if not self.wants(place):
            return
        with torch.no_grad(), torch.autocast(call.q.device.type, enabled=False):
            q, k, v, output, lse = (x.detach() for x in call[:5])
            lse = lse.to(working_dtype(q.dtype))
            sinks = None if call.sinks is None else call.sinks.detach()
            whole = AttentionMap(
                q=q,
                k=k,
                lse=lse,
                mask=call.mask,
                scale=call.scale,
                softcap=call.softcap,
                sinks=sinks,
            )
            if self.dtype is not None:
                whole = cast(whole, self.dtype)  # and what is kept is compared
            most = None if self.verify else ROWS
            evidence = examine(
                whole,
                v,
                output,
                weights=call.weights,
                own_lse=call.own_lse,
                soft_blind=call.soft_blind,
                problem=call.problem,
                against=against,
                most=most,
            )
            map, heads, readers = select(whole, self.heads)
            values = v[:, readers] if self.values else None
            strip = self._strips.get(slot)
            step = None
            if strip is not None and self.stitch:
                step = StripStep("beside") if part else strip.step(map)
            if strip is None or step is None:
                if strip is not None:
                    self._finish_pass()
                self._strips[slot] = self._started(place, map, values, evidence, heads)
                return
            added = strip.addition(step, map, values, evidence)
            if part:
                strip.extend(added, None, self._joint(strip, added, None))
            else:
                self._waiting.append((strip, added))

    def _started(
        self,
        place: LayerId,
        map: AttentionMap,
        values: Tensor | None,
        evidence: Evidence,
        heads: tuple[int, ...],
    ) -> Strip:
        map = compact(map)
        layer = Layer(*place, map, evidence, heads, None if values is None else own(values))
        stored = self.store.put(layer)
        if stored is layer:
            self._versions.append((layer, [(x, version(x)) for x in (map.q, map.k)]))
        self.seen.layers.append(stored)
        return Strip(stored, map)

    def _settle(self) -> None:
        """A forward pass is over: what it added goes to its layers, and its tokens to the others.

        Only now is it known in which order a beam search has put the batch: some layers cannot tell (an
        encoder's keys are the same for all beams, a window forgets where they parted), but all together can.
        """
        waiting, self._waiting = self._waiting, []
        order, problem = self._order([added.step for _, added in waiting])
        for strip, added in waiting:
            if added.step.kind == "after" and added.sizes.T == 1 and self.seen.boundary is None:
                self.seen.boundary = strip.T
            if problem is not None:
                added = added._replace(evidence=dataclasses.replace(added.evidence, problem=problem))
            strip.extend(added, order, self._joint(strip, added, order))
        self._joined.clear()
        tokens, self._tokens = self._tokens, None
        if tokens is not None and self._calls:
            self._place(tokens, bool(waiting), order)

    def _order(self, steps: list[StripStep]) -> tuple[Tensor | None, str | None]:
        """The old sequence that each of the batch continues, or None for its own; and what is wrong."""
        if all(step.new is None for step in steps):
            return None, None
        matches = [match.cpu() for step in steps if (match := step.match()) is not None]
        common = torch.stack(matches).all(0)  # (B, B)
        if not bool(common.any(1).all()):
            return None, "its batch was reordered, and not in the same way in all layers"
        order = common.int().argmax(1)
        ids = self.seen.ids if self.seen.target_ids is None else self.seen.target_ids
        if ids is None:
            unclear = common & ~torch.nn.functional.one_hot(order, len(order)).bool()
        else:  # sequences with one past are as good as each other
            unclear = common & (ids[order][:, None] != ids[None]).any(-1)
        doubt = "beams changed places, and the layers that were captured do not show which went where"
        return order, doubt if bool(unclear.any()) else None

    def _joint(self, strip: Strip, added: Addition, order: Tensor | None) -> Mask:
        """The rule for a strip and a call that continues it: the same for the layers that share a mask."""
        B, H = added.q.shape[:2]
        kind, before, device = added.step.kind, CallSizes(strip.T, strip.S), added.q.device
        question = (id(strip.mask), id(added.mask), kind, before, added.sizes, device)
        if question not in self._joined:
            rule = joined_mask(strip.mask, before, added.mask, added.sizes, kind, order, B, H, device)
            self._joined[question] = (rule, strip.mask, added.mask)  # kept alive: no id is used twice
        return self._joined[question][0]

    def _place(self, tokens: Tokens, continues: bool, order: Tensor | None) -> None:
        """What a forward pass read, after what it continues or instead of it."""
        seen = self.seen
        for name in ("ids", "target_ids"):
            old, new = getattr(seen, name), getattr(tokens, name)
            if new is not None and old is not None and continues and len(old) == len(new):
                new = torch.cat([old if order is None else old[order], new], 1)
            if new is not None:
                setattr(seen, name, new)
        if tokens.real is not None and seen.ids is not None and tokens.real.shape == seen.ids.shape:
            seen.real = tokens.real

    def _finish_pass(self) -> None:
        """The layers so far are all that this pass will have; what comes is another."""
        self._finish_layers()
        earlier = dataclasses.replace(self.seen, passes=[])  # shares what is missing
        self.seen.passes.append(earlier)
        self.seen.layers = []
        self.seen.ids = self.seen.target_ids = self.seen.tokens = self.seen.target_tokens = None
        self.seen.real = self.seen.boundary = None

    def _finish_layers(self) -> None:
        for strip in self._strips.values():
            if strip.grown:
                whole = self.store.put(strip.finished(), instead_of=strip.layer)
                self.seen.layers[self.seen.layers.index(strip.layer)] = whole
        seen = self.seen
        if seen.real is None and seen.ids is not None:
            seen.real = self._real(seen.ids.shape)
        if seen.real is not None and bool(seen.real.all()):
            seen.real = None
        seen.seal()
        self._strips.clear()
        if self.spell is not None:
            seen.tokens = None if seen.ids is None else self.spell(seen.ids)
            seen.target_tokens = None if seen.target_ids is None else self.spell(seen.target_ids)

    def _real(self, shape: torch.Size) -> Tensor | None:
        """Which tokens the layers' own masks say are real, where the model was not told so in the open."""
        for strip in self._strips.values():
            for part in parts_of(strip.mask):
                if isinstance(part, Padding) and part.real.shape == shape:
                    return part.real.cpu()
        return None

    def close(self, missing: Mapping[str, str] | None = None) -> None:
        """Nothing more comes. `missing` are the modules that mix tokens and were not heard."""
        with torch.no_grad():
            self._settle()
            for layer, tensors in self._versions:
                if any(version(x) != before for x, before in tensors):
                    problem = "its queries or keys were written to after its attention had run"
                    layer.evidence = dataclasses.replace(layer.evidence, problem=problem)
            self.seen.missing = dict(missing or {})
            self._finish_layers()
        if self.forwards and self.layers is not None and not self.seen.layers and self._keys:
            known = ", ".join(map(repr, self._keys))
            raise ValueError(f"layers: expected some of those that ran ({known}), got {sorted(self.layers)}")
        if self.seen.layers:
            self.store.finish(self.seen)


def select(
    map: AttentionMap, heads: Sequence[int] | None
) -> tuple[AttentionMap, tuple[int, ...], list[int] | slice]:
    """The map of some heads only, their numbers, and those of the key/value heads that they read."""
    H, G = map.q.shape[1], map.k.shape[1]
    if heads is None:
        return map, tuple(range(H)), slice(None)
    if not heads or not all(0 <= head < H for head in heads):
        raise ValueError(f"heads: expected numbers from 0 to {H - 1}, got {list(heads)}")
    readers = [head // (H // G) for head in heads]  # the key/value head of each
    groups = sorted(set(readers))
    evenly = readers == sorted(groups * (len(heads) // len(groups)))
    q, lse = map.q[:, heads], map.lse[:, heads]
    kept = groups if evenly else readers
    sinks = None if map.sinks is None else map.sinks[heads]
    mask = mask_of_heads(map.mask, heads)
    k = map.k[:, kept]
    return map._with(q=q, k=k, lse=lse, mask=mask, sinks=sinks), tuple(heads), kept


def mask_of_heads(mask: Mask, heads: Sequence[int]) -> Mask:
    """The rule for some heads only, numbered from 0 again, in any order."""
    if isinstance(mask, And | Or):
        return type(mask)(mask_of_heads(mask.left, heads), mask_of_heads(mask.right, heads))
    if isinstance(mask, TensorMask):
        return mask if mask.tensor.shape[1] == 1 else TensorMask(mask.tensor[:, heads])
    if isinstance(mask, Alibi):
        return Alibi(mask.slopes[heads])
    if isinstance(mask, Relative):
        return mask if len(mask.table) == 1 else Relative(mask.table[heads], mask.zero)
    if isinstance(mask, Not | Rows):
        return replace(mask, inner=mask_of_heads(mask.inner, heads))
    if isinstance(mask, Rule):
        says, numbers = mask.says, torch.tensor(heads)
        return Rule(functools.wraps(says)(lambda b, h, q, k: says(b, numbers.to(h.device)[h], q, k)))
    return mask


def cast(map: AttentionMap, dtype: torch.dtype) -> AttentionMap:
    """The map with q and k in another dtype, and the lse that belongs to them."""
    q, k, lse = map.q.to(dtype), map.k.to(dtype), map.lse.to(working_dtype(dtype))
    if torch.promote_types(dtype, map.q.dtype) != dtype:  # rounded queries and keys have other scores
        lse = attention_map(q, k, mask=map.mask, scale=map.scale, softcap=map.softcap, sinks=map.sinks).lse
    return map._with(q=q, k=k, lse=lse)


def compact(map: AttentionMap) -> AttentionMap:
    """The map with q, k and lse in memory of their own, no larger than they are, that nobody writes to."""
    return map._with(q=own(map.q), k=own(map.k), lse=own(map.lse))


def own(x: Tensor) -> Tensor:
    """x, or a copy where it is part of something larger or has been written to in place before."""
    alone = x.untyped_storage().nbytes() <= 1.05 * x.nbytes
    return unwritten(x) if alone else x.clone(memory_format=torch.contiguous_format)


def version(x: Tensor) -> int:
    """How often a tensor has been written to in place, as far as PyTorch counts it."""
    return 0 if x.is_inference() else x._version


def unwritten(x: Tensor) -> Tensor:
    """x, or a copy where it has been written to in place before and may be again, as a static cache is."""
    return x.clone() if x.is_inference() or x._version else x
