"""Mutants: a target that gives the answer of one mistake of the catalogue, in its own signature.

A mutant calls the target, reads what the call asked for (`call_reader`) and puts the answer of the wrong
variant in place of the target's. A call that cannot be read keeps its right answer.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.mistake_visibility import Asked
from regard.checker.oracle.oracle import relative_error
from regard.checker.oracle.question import Answer
from regard.mutants.call_reader import (
    CallReader,
    CallSignature,
    Reading,
    as_output,
    in_layout,
    read_signature,
    tensors_by_place,
)

UNSEEN = 1e-6  # a relative difference that is rounding
EXPLAINED = 200  # reasons after which no more are asked for: gradcheck makes thousands of calls
BLOCK = 16  # keys in a block, for the mistakes that are made between blocks
_MASKS = ("causal", "mask", "padding", "window", "left window", "right window")
# The arguments, one of which a target must have for a field of a variant to make a difference.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "causal": ("causal",),
    "always_causal": ("causal",),
    "mask_argument": ("mask",),
    "padding": ("padding", "mask"),
    "window": ("window", "left window"),
    "ahead": ("right window", "ahead"),
    "softcap": ("softcap",),
    "sinks": ("sinks",),
    "masking": _MASKS,
    "fill": _MASKS,
    "inverted": _MASKS,
}
_PARTS = {
    **dict.fromkeys(("split", "merge", "out", "layers"), "projections of its own"),
    **dict.fromkeys(("rotated", "rotation"), "rotary positions of its own"),
    "normalised": "norms of its own",
    "bias": "biases of its own",
}


@dataclass(frozen=True)
class Mutant:
    """A mistake of the catalogue in one form: the fields of the right variant that it changes."""

    mistake: str
    change: dict[str, Any]
    form: str = ""  # which of its forms, if the target can have several

    @property
    def name(self) -> str:
        """The mistake's name, with its form."""
        return f"{self.mistake} ({self.form})" if self.form else self.mistake


def all_mutants() -> list[Mutant]:
    """Return every mutant that a function of queries, keys and values can have.

    The forms of a mistake that change the same fields differ in a number alone, and one stands for them.
    Forms that change more fields than another one are easier to notice, and are left out.
    """
    mutants = []
    for mistake in CATALOGUE.values():
        by_fields: dict[frozenset[str], dict[str, Any]] = {}
        for change in sorted(mistake.changes, key=lambda change: abs(_block(change) - BLOCK)):
            if not change.keys() & _PARTS.keys():
                by_fields.setdefault(frozenset(change), change)
        smallest = [names for names in by_fields if not any(other < names for other in by_fields)]
        for names in smallest:
            form = ", ".join(sorted(names)).replace("_argument", "") if len(smallest) > 1 else ""
            mutants.append(Mutant(mistake.name, by_fields[names], form))
    return mutants


def _block(change: dict[str, Any]) -> float:
    # Without a size of its own a chunk is what the target's argument says, and few targets have one.
    size = change.get("block", change.get("chunk", BLOCK))
    return math.inf if size is None else float(size)


def why_left_out(mutant: Mutant, options: set[str], layout: str) -> str:
    """Return why a target with these options cannot have a mistake; "" if it can."""
    layouts = CATALOGUE[mutant.mistake].layouts
    if layouts and layout not in layouts:
        # "paged or not" is a kernel that takes pages if it is given a table of them.
        kinds = dict.fromkeys(kind.removesuffix(" or not") for kind in layouts)
        return f"only a target with {' or '.join(kinds)} inputs can have it"
    for name in mutant.change:
        if name in _OPTIONS and not options & set(_OPTIONS[name]):
            return f"the target has no argument for {' or '.join(_OPTIONS[name][:2])}"
    if "joined" in mutant.change and len(options & {"causal", "mask", "padding", "window"}) < 2:
        return "the target has no second mask"
    if mutant.change.get("masking") == "scaled" and not options & {"mask", "bias"}:
        return "the target has no mask that is added to the scores"
    return ""


def without_mutant() -> dict[str, str]:
    """Return the mistakes that are no wrong answer of a single call, each with the reason."""
    reasons = {}
    for name, mistake in CATALOGUE.items():
        if mistake.cache_changes and not mistake.changes:
            reasons[name] = "it is made by a cache between two calls"
        elif not mistake.changes:
            reasons[name] = "it is no other formula for the output"
        elif all(change.keys() & _PARTS.keys() for change in mistake.changes):
            field_name = next(iter(mistake.changes[0].keys() & _PARTS.keys()))
            reasons[name] = f"the target has no {_PARTS[field_name]}"
    return reasons


@dataclass
class CallLog:
    """What the calls of a target were, while a test suite ran."""

    calls: int = 0
    unread: Counter[str] = field(default_factory=Counter)  # why calls were left as they are
    options: set[str] = field(default_factory=set)  # what calls asked for
    difference: float = 0.0  # the largest of a mutant from the right answer, relative to its largest number
    reasons: Counter[str] = field(default_factory=Counter)  # why a mutant made no difference
    example: tuple[dict[str, Any], Reading] | None = None  # the plainest call that was read

    def add(self, arguments: dict[str, Any], reading: Reading) -> None:
        """Count a call that was read."""
        self.options |= set(reading.question.options())
        if self.example is None or _plainness(reading) < _plainness(self.example[1]):
            self.example = arguments, reading

    def to_dict(self) -> dict[str, Any]:
        """Return the log as plain data that JSON can hold."""
        return {
            "calls": self.calls,
            "read": self.calls - sum(self.unread.values()),
            "unread": dict(self.unread),
            "options": sorted(self.options),
            "difference": self.difference if math.isfinite(self.difference) else None,
            "reasons": dict(self.reasons),
        }


def _plainness(reading: Reading) -> tuple[bool, bool, int]:
    """Return a sort key of calls: those with several heads and in single precision first, then small ones."""
    question = reading.question
    has_heads = reading.convention.layout not in ("BTD", "TBD", "TD")
    return not has_heads, question.dtype == torch.float64, question.q.numel() + question.k.numel()


def make_mutant(
    target: Callable[..., Any], mutant: Mutant | None, log: CallLog, signature: CallSignature | None = None
) -> Callable[..., Any]:
    """Return a function that is called as the target is, and answers with a mistake; None only logs."""
    reader = CallReader(signature or read_signature(target))
    inside = threading.local()  # a target that calls itself by its own name is one call

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        # A call that torch.compile traces would trace the mutant's own code: it is not counted.
        if torch.compiler.is_compiling() or getattr(inside, "busy", False):
            return target(*args, **kwargs)
        inside.busy = True
        try:
            result = target(*args, **kwargs)
            log.calls += 1
            arguments = reader.signature.bind(args, kwargs)
            reading = reader.read(arguments, result)
            if isinstance(reading, str):
                log.unread[reading] += 1
                return result
            log.add(arguments, reading)
            return result if mutant is None else _answer(result, reading, mutant, log)
        finally:
            inside.busy = False

    return call


def _answer(result: Any, reading: Reading, mutant: Mutant, log: CallLog) -> Any:
    question, right = reading.question, reading.right
    # Kernels compute in float32 where their inputs are in half precision.
    dtype = torch.promote_types(question.dtype, torch.float32)
    answer = reading.mutated(mutant.change).answer(question.to(dtype), reading.wiring)
    output = answer.output
    if answer.free is not None:  # rows that see no key: programs differ in what they give there
        output = output.masked_fill(answer.free, 0.0)
    if right.free is not None:
        kept = as_output(dict(tensors_by_place(result))[reading.places["output"]], reading)
        assert kept is not None, "the reading has found it there"
        output = torch.where(right.free, kept.to(output.dtype), output)
    # A mutant without gradients has the right output, up to rounding.
    difference = 0.0 if "detach" in mutant.change else relative_error(Answer(output), right)
    if "weights" in reading.places and answer.weights is not None and right.weights is not None:
        weights = answer.weights.detach().to(right.weights.dtype)
        difference = max(difference, relative_error(Answer(weights), right._replace(output=right.weights)))
    log.difference = max(log.difference, difference)
    if difference < UNSEEN and log.reasons.total() < EXPLAINED:
        asked = Asked(question.map_inputs(Tensor.detach).to(dtype), reading.wiring, UNSEEN)
        log.reasons.update(asked.reasons(mutant.change) or {"nothing in its calls depends on it"})
    parts = {reading.places["output"]: in_layout(output, reading)}
    if "weights" in reading.places and answer.weights is not None:
        parts[reading.places["weights"]] = answer.weights
    return _with_parts(result, parts, keep_values=difference < UNSEEN)


def _with_parts(result: Any, parts: dict[Any, Tensor], *, keep_values: bool) -> Any:
    """Return a result with some tensors replaced, each by one of the same shape, strides, dtype and kind.

    Those that keep their values have the gradients of the new ones: without a scale the output of zero
    queries is the same, and their gradient is not.
    """

    def as_before(before: Any, new: Tensor) -> Any:
        is_tensor = isinstance(before, Tensor)
        if keep_values and not (is_tensor and (before.requires_grad or new.requires_grad)):
            return before
        if not is_tensor:
            return new.detach().to(torch.from_numpy(before).dtype).numpy().reshape(before.shape)
        # Its strides, too: a test of these would fail on every mutant.
        after = torch.empty_like(before, requires_grad=False).copy_(new.reshape(before.shape))
        if keep_values:  # a suite that compares bits would notice this formula's own rounding
            after.detach().copy_(before.detach())
        return after

    if None in parts:
        return as_before(result, parts[None])
    if isinstance(result, dict):
        return type(result)({k: as_before(x, parts[k]) if k in parts else x for k, x in result.items()})
    if hasattr(result, "__dataclass_fields__"):
        return replace(result, **{name: as_before(getattr(result, name), x) for name, x in parts.items()})
    items = [as_before(x, parts[i]) if i in parts else x for i, x in enumerate(result)]
    return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
