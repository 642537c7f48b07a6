"""Turns Transformers' mask functions into mask rules.

Transformers describes a mask by a function of (batch, head, query, key), from which each attention builds the
tensor that it needs. This file recognises the functions that Transformers itself uses (causal, sliding
window, padding, packed sequences, …), returns equal rules, and checks them on a sample. Any other function is
kept and evaluated tile by tile. No T×S tensor is built.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask, conjunction, full
from regard.attention.masks.named_masks import Chunks, Window, causal, rule
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.certificates.certificate import sampled_rows
from regard.recorder.sources.mask_tensors import Origin
from regard.support.torch_internals import DisableTorchFunctionSubclass, indexing_by_tensors

Predicate = Callable[..., Any]


class MatrixPart(NamedTuple):
    """A part of the attention matrix: T queries from position `q_offset` on, S keys from `kv_offset` on."""

    B: int
    T: int
    S: int
    q_offset: int
    kv_offset: int
    device: torch.device

    def keys(self, table: Tensor, missing: int = 0) -> Tensor:
        """Return the columns of a (B, positions) table for these keys, filled up with `missing`."""
        part = table.to(self.device)[:, self.kv_offset : self.kv_offset + self.S]
        short = self.S - part.shape[1]
        # A static cache has room for more keys than the table has columns.
        return torch.nn.functional.pad(part, (0, short), value=missing) if short else part


class RuleMask(Tensor):
    """A mask rule in the guise of a boolean tensor (B, 1, T, S), which a model passes to its attention.

    It takes no memory. Code that computes with it gets the dense tensor.
    """

    rule: Mask
    keys: int
    """The number of keys that have been written: a static cache has room for more."""

    @staticmethod
    def make(rule: Mask, shape: Sequence[int], keys: int, device: torch.device) -> RuleMask:
        """Make a mask of this shape whose first `keys` keys follow the rule; the others are masked."""
        nothing = torch.zeros((), dtype=torch.bool, device=device).expand(shape)
        mask = nothing.as_subclass(RuleMask)
        mask.rule, mask.keys = rule, keys
        return mask

    def dense_tensor(self) -> Tensor:
        """Return the mask as a dense boolean tensor."""
        # Its own shape would come back to `__torch_function__` otherwise.
        with DisableTorchFunctionSubclass():
            B, H, T, S = self.shape
            allowed = self.rule.tile(range(T), range(self.keys), (B, H, T, self.keys), device=self.device)
            allowed = allowed.expand(B, H, T, self.keys)
            return torch.nn.functional.pad(allowed, (0, S - self.keys), value=False)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _INSPECTIONS:
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, RuleMask) and func in _MAYBE_UNCHANGED:
            with DisableTorchFunctionSubclass():
                # The result for one entry, or for the view, shows whether anything but the device changes.
                small = first if func in _VIEWS else torch.zeros((), dtype=torch.bool, device=first.device)
                result = func(small, *args[1:], **kwargs)
            if result.dtype == torch.bool and result.shape == small.shape:
                return RuleMask.make(first.rule, first.shape, first.keys, result.device)
        return func(*map(_plain, args), **{name: _plain(x) for name, x in kwargs.items()})


def _plain(x: Any) -> Any:
    """Return x with the dense tensor in place of every mask in it, in lists and tuples too."""
    if isinstance(x, RuleMask):
        return x.dense_tensor()
    return type(x)(map(_plain, x)) if type(x) in (list, tuple) else x


# Models ask these of a mask that they only pass on, for which no dense tensor is to be made.
_INSPECTIONS = {
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
_MAYBE_UNCHANGED = _VIEWS | {
    Tensor.to,
    Tensor.bool,
    Tensor.detach,
    Tensor.cuda,
    Tensor.clone,
    Tensor.contiguous,
}


def rule_mask(*args: Any, allow_is_bidirectional_skip: bool = False, **kwargs: Any) -> RuleMask | None:
    """Return the mask that Transformers asks for as a rule, or None if every key is visible.

    The other arguments are those of `describe_mask`.
    """
    (mask, keys), part = describe_mask(*args, **kwargs)
    # As in eager attention, no mask means that every query sees every key, and nothing else.
    if allow_is_bidirectional_skip and keys == part.S and mask.simplified((part.B, 1, part.T, keys)) is full:
        return None
    return RuleMask.make(mask, (part.B, 1, part.T, part.S), keys, part.device)


def describe_mask(
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
) -> tuple[Origin, MatrixPart]:
    """Return the rule of the mask that Transformers asks for by these arguments, and what it is a mask of.

    This is their only signature here. Other arguments do not change the mask.
    """
    # Transformers 5.0 to 5.3 pass positions, in place of a length and an offset
    # (huggingface/transformers#44181).
    if cache_position is not None:
        q_length, q_offset = len(cache_position), int(cache_position[0])
        device = cache_position.device
    if q_length is None:
        raise TypeError("q_length is missing")
    part = MatrixPart(
        batch_size, q_length, kv_length, int(q_offset), kv_offset, torch.device(device or "cpu")
    )
    mask, keys = _rule_of(mask_function or _transformers_function("causal_mask_function"), part, use_vmap)
    if attention_mask is not None:
        is_token = part._replace(S=keys).keys(attention_mask.bool())
        if not bool(is_token.all()):
            mask = Padding(is_token) if mask is full else mask & Padding(is_token)
    return Origin(mask, keys), part


def _transformers_function(name: str) -> Predicate:
    from transformers import masking_utils

    function: Predicate = getattr(masking_utils, name)
    return function


def _rule_of(predicate: Predicate, part: MatrixPart, use_vmap: bool) -> tuple[Mask, int]:
    """Return the rule that is equal to a function, and the number of keys that it is about."""
    reach = part.q_offset + part.T - part.kv_offset  # the number of keys up to the last query's own
    exact = _predicate_mask(predicate, part, use_vmap)
    if 0 < reach < part.S:  # a static cache: the keys after the last query are not written yet
        mask = recognise(predicate, part._replace(S=reach))
        # Only a causal mask hides all keys after the last query, which may not have been written.
        if mask is not None and causal in mask.conjuncts() and _agree(mask, reach, exact, part):
            return mask, reach
    mask = recognise(predicate, part)
    if mask is not None and _agree(mask, part.S, exact, part):
        return mask, part.S
    return exact, part.S


def recognise(predicate: Predicate, part: MatrixPart) -> Mask | None:
    """Return the rule for one of Transformers' own mask functions, or None for any other function."""
    # A user's function may have the same name and mean something else.
    if getattr(predicate, "__module__", "") != "transformers.masking_utils":
        return None
    # They are closures: `sliding_window_overlay.<locals>.inner_mask`.
    name = predicate.__qualname__.split(".")[0]
    closure = predicate.__closure__ or ()
    variables = dict(zip(predicate.__code__.co_freevars, (c.cell_contents for c in closure), strict=True))
    if name in ("and_masks", "or_masks"):
        masks = [recognise(function, part) for function in variables["mask_functions"]]
        recognised = [mask for mask in masks if mask is not None]
        if len(recognised) < len(masks):
            return None
        if name == "or_masks":
            return functools.reduce(operator.or_, recognised)
        # Causal comes first, so that equal masks print alike.
        narrowing = sorted(
            (mask for mask in recognised if mask is not full), key=lambda mask: mask is not causal
        )
        return conjunction(narrowing)
    if name == "bidirectional_mask_function":
        return full
    if name == "padding_mask_function":
        return Padding(part.keys(variables["padding_mask"].bool()))
    if name == "add_offsets_to_mask_function":
        q_offset, kv_offset = part.q_offset + variables["q_offset"], part.kv_offset + variables["kv_offset"]
        return recognise(variables["mask_function"], part._replace(q_offset=q_offset, kv_offset=kv_offset))
    if part.q_offset + part.T != part.kv_offset + part.S:
        return None  # in the other rules the queries are the last of the positions
    if name == "causal_mask_function":
        return causal
    if name == "sliding_window_overlay":
        return Window(variables["sliding_window"])
    if name == "sliding_window_bidirectional_overlay":
        # Transformers' window of w to both sides includes the distance w; the causal one does not.
        return Window(variables["sliding_window"] + 1, variables["sliding_window"])
    if name == "chunked_overlay":
        # Llama 4 counts its chunks from the first token of each text, after the padding.
        shift = part.kv_offset - variables["left_padding"].to(part.device).view(-1, 1)
        if not bool((shift % variables["chunk_size"]).any()):
            return Chunks(variables["chunk_size"])
        return Documents((torch.arange(part.S, device=part.device) + shift) // variables["chunk_size"])
    if name == "packed_sequence_mask_function":
        return Documents(part.keys(variables["packed_sequence_mask"]))
    if name == "blockwise_overlay":
        ids = part.keys(variables["block_sequence_ids"], missing=-1)
        # Text has the block −1, which sees nothing by this mask.
        return Documents(ids) & Padding(ids >= 0)
    return None


def _predicate_mask(predicate: Predicate, part: MatrixPart, use_vmap: bool) -> Mask:
    """Return the function itself as a mask, evaluated again for every tile."""

    @functools.wraps(predicate)
    def shifted(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        q, k = q + (part.q_offset + part.T - part.S), k + part.kv_offset
        if not use_vmap:
            allowed: Tensor = predicate(b, h, q, k)
            return allowed
        each = predicate
        for dims in (
            (None, None, None, 0),
            (None, None, 0, None),
            (None, 0, None, None),
            (0, None, None, None),
        ):
            each = torch.vmap(each, in_dims=dims)
        with indexing_by_tensors():
            allowed = each(b.flatten(), h.flatten(), q.flatten(), k.flatten())
        return allowed

    return rule(shifted)


def _agree(mask: Mask, keys: int, exact: Mask, part: MatrixPart) -> bool:
    """Whether a rule over the first `keys` keys is equal to the exact mask on a sample of entries."""
    rows, columns = sampled_rows(part.T, 16), sampled_rows(part.S, 64)
    near = columns[columns < keys]
    shape = (part.B, 1, part.T)
    expected = exact.tile(rows, columns, (*shape, part.S), device=part.device)
    allowed = mask.tile(rows, near, (*shape, keys), device=part.device)
    return bool((expected[..., : len(near)] == allowed).all()) and not bool(expected[..., len(near) :].any())
