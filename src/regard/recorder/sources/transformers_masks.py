"""Transformers' masks as rules.

Transformers describes a mask by a function of (batch, head, query, key) and asks each attention for the
tensor that it wants of it. This file recognises the functions that Transformers builds with (causal, sliding
windows, padding, packed sequences, …), gives the same as rules, and checks the answer on a sample. What it
does not recognise stays the function that it is, asked tile by tile. Nothing T×S is built.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named import Chunks, Documents, Padding, Window, causal, rule
from regard.recorder.certificate import sampled_rows
from regard.recorder.sources.mask_recognition import Origin

Predicate = Callable[..., Any]


class Spot(NamedTuple):
    """Which part of the matrix is asked for: T queries from `q_offset` on, S keys from `kv_offset` on."""

    B: int
    T: int
    S: int
    q_offset: int
    kv_offset: int
    device: torch.device

    def keys(self, table: Tensor, missing: int = 0) -> Tensor:
        """The columns of a (B, positions) table that belong to the keys here."""
        part = table.to(self.device)[:, self.kv_offset : self.kv_offset + self.S]
        short = self.S - part.shape[1]
        return torch.nn.functional.pad(part, (0, short), value=missing) if short else part


class RuleMask(Tensor):
    """A rule that passes for the boolean (B, 1, T, S) mask that stands between a model and its attention.

    It takes no memory. Code that does arithmetic with it gets the dense tensor, which is what it asked for.
    """

    rule: Mask
    keys: int
    """How many of the keys there are to see: a static cache holds places for more."""

    @staticmethod
    def made(rule: Mask, shape: Sequence[int], keys: int, device: torch.device) -> RuleMask:
        nothing = torch.zeros((), dtype=torch.bool, device=device).expand(shape)
        mask = nothing.as_subclass(RuleMask)
        mask.rule, mask.keys = rule, keys
        return mask

    def spelled_out(self) -> Tensor:
        """The dense boolean tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            B, H, T, S = self.shape
            allowed = self.rule.tile(range(T), range(self.keys), (B, H, T, self.keys), device=self.device)
            allowed = allowed.expand(B, H, T, self.keys)
            return torch.nn.functional.pad(allowed, (0, S - self.keys), value=False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ASKS_ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, RuleMask) and func in _MAY_CHANGE_NOTHING:
            with torch._C.DisableTorchFunctionSubclass():
                # Asked of one entry, or of the view: the result says whether anything but the device changes.
                small = first if func in _VIEWS else torch.zeros((), dtype=torch.bool, device=first.device)
                result = func(small, *args[1:], **kwargs)
            if result.dtype == torch.bool and result.shape == small.shape:
                return RuleMask.made(first.rule, first.shape, first.keys, result.device)
        return func(*map(_plain, args), **{name: _plain(x) for name, x in kwargs.items()})


def _plain(x: Any) -> Any:
    """x with the dense tensor for every mask in it, in lists and tuples too."""
    if isinstance(x, RuleMask):
        return x.spelled_out()
    return type(x)(map(_plain, x)) if type(x) in (list, tuple) else x


_ASKS_ABOUT = {
    getattr(Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "requires_grad",
        "layout",
    )
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point, Tensor.untyped_storage}
_VIEWS = {Tensor.__getitem__, Tensor.expand}
_MAY_CHANGE_NOTHING = _VIEWS | {
    Tensor.to,
    Tensor.bool,
    Tensor.detach,
    Tensor.cuda,
    Tensor.clone,
    Tensor.contiguous,
}


def rule_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Predicate | None = None,
    attention_mask: Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: torch.device | str | None = None,
    cache_position: Tensor | None = None,
    **others: Any,
) -> RuleMask | None:
    """What Transformers calls for a mask: the rule, or None where everything may be seen."""
    spot = _spot(batch_size, q_length, kv_length, q_offset, kv_offset, device, cache_position)
    rule, keys = _described(spot, mask_function, attention_mask, use_vmap)
    # As for eager attention: no mask at all means that every query sees every key, and nothing else.
    plain = rule.simplified((batch_size, 1, spot.T, keys))
    if plain is full and keys == kv_length and allow_is_bidirectional_skip:
        return None
    return RuleMask.made(rule, (batch_size, 1, spot.T, kv_length), keys, spot.device)


def mask_origin(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Predicate | None = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str | None = None,
    cache_position: Tensor | None = None,
    **others: Any,
) -> Origin:
    """The rule of the mask that Transformers makes for these arguments."""
    spot = _spot(batch_size, q_length, kv_length, q_offset, kv_offset, device, cache_position)
    return _described(spot, mask_function, attention_mask, use_vmap)


def _spot(
    B: int,
    q_length: int | None,
    kv_length: int,
    q_offset: int | Tensor,
    kv_offset: int,
    device: torch.device | str | None,
    cache_position: Tensor | None,
) -> Spot:
    if cache_position is not None:  # before Transformers 5
        q_length, q_offset = len(cache_position), int(cache_position[0])
        device = cache_position.device
    if q_length is None:
        raise TypeError("q_length is missing")
    return Spot(B, q_length, kv_length, int(q_offset), kv_offset, torch.device(device or "cpu"))


def _described(spot: Spot, says: Predicate | None, attention_mask: Tensor | None, use_vmap: bool) -> Origin:
    rule, keys = _rule_of(says or _function("causal_mask_function"), spot, use_vmap)
    if attention_mask is not None:
        real = spot._replace(S=keys).keys(attention_mask.bool())
        if not bool(real.all()):
            rule = Padding(real) if rule is full else rule & Padding(real)
    return Origin(rule, keys)


def _function(name: str) -> Predicate:
    from transformers import masking_utils

    function: Predicate = getattr(masking_utils, name)
    return function


def _rule_of(says: Predicate, spot: Spot, use_vmap: bool) -> tuple[Mask, int]:
    """The rule that a function stands for, and how many of the keys it speaks of."""
    reach = spot.q_offset + spot.T - spot.kv_offset  # the keys up to the last query's own
    asked = _asked(says, spot, use_vmap)
    if 0 < reach < spot.S:  # a static cache: whatever lies ahead is not written yet
        found = recognised(says, spot._replace(S=reach))
        if found is not None and causal in found.conjuncts() and _agree(found, reach, asked, spot):
            return found, reach
    found = recognised(says, spot)
    if found is not None and _agree(found, spot.S, asked, spot):
        return found, spot.S
    return asked, spot.S


def recognised(says: Predicate, spot: Spot) -> Mask | None:
    """The rule for one of Transformers' own functions, or None."""
    if getattr(says, "__module__", "") != "transformers.masking_utils":
        return None
    name = says.__qualname__.split(".")[0]
    closure = says.__closure__ or ()
    held = dict(zip(says.__code__.co_freevars, (c.cell_contents for c in closure), strict=True))
    if name in ("and_masks", "or_masks"):
        parts = [recognised(part, spot) for part in held["mask_functions"]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        if name == "or_masks":
            return functools.reduce(operator.or_, known)
        narrowing = sorted((part for part in known if part is not full), key=lambda part: part is not causal)
        return conjunction(narrowing)
    if name == "bidirectional_mask_function":
        return full
    if name == "padding_mask_function":
        return Padding(spot.keys(held["padding_mask"].bool()))
    if name == "add_offsets_to_mask_function":
        q_offset, kv_offset = spot.q_offset + held["q_offset"], spot.kv_offset + held["kv_offset"]
        return recognised(held["mask_function"], spot._replace(q_offset=q_offset, kv_offset=kv_offset))
    if spot.q_offset + spot.T != spot.kv_offset + spot.S:
        return None  # the other rules speak of queries at the end of the keys
    if name == "causal_mask_function":
        return causal
    if name == "sliding_window_overlay":
        return Window(held["sliding_window"])
    if name == "sliding_window_bidirectional_overlay":
        return Window(held["sliding_window"] + 1, held["sliding_window"])
    if name == "chunked_overlay":
        shift = spot.kv_offset - held["left_padding"].to(spot.device).view(-1, 1)
        if not bool((shift % held["chunk_size"]).any()):
            return Chunks(held["chunk_size"])
        return Documents((torch.arange(spot.S, device=spot.device) + shift) // held["chunk_size"])
    if name == "packed_sequence_mask_function":
        return Documents(spot.keys(held["packed_sequence_mask"]))
    if name == "blockwise_overlay":
        ids = spot.keys(held["block_sequence_ids"], missing=-1)
        return Documents(ids) & Padding(ids >= 0)
    return None


def _asked(says: Predicate, spot: Spot, use_vmap: bool) -> Mask:
    """The function itself as a rule, asked anew for every tile."""

    @functools.wraps(says)
    def predicate(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q, k = q + (spot.q_offset + spot.T - spot.S), k + spot.kv_offset
        if not use_vmap:
            answer: Tensor = says(b, h, q, k)
            return answer
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        each = says
        for dims in (
            (None, None, None, 0),
            (None, None, 0, None),
            (None, 0, None, None),
            (0, None, None, None),
        ):
            each = torch.vmap(each, in_dims=dims)
        with TransformGetItemToIndex():
            answer = each(b.flatten(), h.flatten(), q.flatten(), k.flatten())
        return answer

    return rule(predicate)


def _agree(found: Mask, keys: int, asked: Mask, spot: Spot) -> bool:
    """Whether a rule over the first `keys` keys says what the function says, on a sample of entries."""
    rows, columns = sampled_rows(spot.T, 16), sampled_rows(spot.S, 64)
    near = columns[columns < keys]
    shape = (spot.B, 1, spot.T)
    says = asked.tile(rows, columns, (*shape, spot.S), device=spot.device)
    ours = found.tile(rows, near, (*shape, keys), device=spot.device)
    return bool((says[..., : len(near)] == ours).all()) and not bool(says[..., len(near) :].any())
