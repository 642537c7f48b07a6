"""Reading a call of the target: which attention do its arguments ask for?

The names of the arguments say which hold queries, keys and values. Conventions differ: the order of the axes,
what True means in a mask, where a causal mask begins. So every convention is tried, and one counts only if
the right answer to its question is what the target has returned. A call that no convention explains stays as
it is, and is counted.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal
from regard.checker.catalogue import RULES
from regard.checker.interpretation.hypotheses import WINDOW_CONVENTIONS
from regard.checker.oracle.oracle import (
    Intent,
    WindowConvention,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT, AttentionVariant
from regard.checker.oracle.wiring import Wiring, split_heads
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import arrange
from regard.checker.subject.kernel_layouts import pack, unpack
from regard.checker.subject.kernel_recognition import recognize_layouts
from regard.checker.subject.vocabulary import arguments_of

ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class CallSignature:
    """The parameters of a target, and the names of its arguments by their meaning: {"mask": "attn_mask"}."""

    signature: inspect.Signature
    names: dict[str, str]
    layout: str = ""  # "packed" for sequences with `cu_seqlens`, "" for plain tensors

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name; TypeError if they do not fit."""
        bound = self.signature.bind(*args, **kwargs)
        named = dict(bound.arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(name, {})
        return named

    def without_self(self) -> CallSignature:
        """Return the signature of a bound method."""
        parameters = list(self.signature.parameters.values())
        return replace(self, signature=inspect.Signature(parameters[1:]))

    def value(self, arguments: dict[str, Any], meaning: str) -> Any:
        """Return the argument of a meaning, its default if it was not passed, None if there is none."""
        name = self.names.get(meaning, "")
        if name in arguments:
            return arguments[name]
        parameter = self.signature.parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default


def read_signature(target: Callable[..., Any]) -> CallSignature:
    """Return the signature of a function; ValueError says why it is none of attention."""
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        # `apply` itself takes anything; the first argument of `forward` is the context.
        parameters = list(inspect.signature(owner.forward).parameters.values())[1:]
    else:
        parameters = list(arguments_of(target).values())
    signature = inspect.Signature(parameters)
    order = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if order[:1] == ["self"]:  # a method that is replaced on its class
        del order[0]
    names: dict[str, str] = {}
    for name in order:
        # Only here: the checker would pass a tensor as FlexAttention's block mask.
        meaning = "mask" if name == "block_mask" else vocabulary.argument(name)
        if meaning is not None:
            names.setdefault(meaning, name)
    if not names.keys() >= set(ROLES):
        if len(order) < 3:
            raise ValueError(f"expected a function of queries, keys and values, got ({', '.join(order)})")
        names = {m: n for m, n in names.items() if n not in order[:3]} | dict(zip(ROLES, order, strict=False))
    try:
        recognized = recognize_layouts(target, dict.fromkeys(order))
    except ValueError:
        recognized = None
    if recognized is None:
        return CallSignature(signature, names)
    layouts, options = recognized
    return CallSignature(signature, options | names | layouts[0].names, layouts[0].kind)


LARGEST = 1 << 27  # weights of a call that is read: more would take gigabytes and minutes
# How far a right result may be from the right answer, relative to its largest number.
ROUNDING = {torch.float64: 1e-6, torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 8e-2}
LAYOUTS = {4: ("BHTD", "BTHD", "TBHD"), 3: ("BTD", "TBD"), 2: ("TD",)}  # by the number of axes


@dataclass(frozen=True)
class Convention:
    """How a target takes its inputs, and what its options mean."""

    layout: str = "BHTD"
    mask: str = "look"  # see `MaskForm.kind`
    padding: str = "hide"  # what True means there
    causal: bool = False  # whether it is causal without an argument that says so
    aligned: str = "bottom right"  # where a causal mask ends, or "top left", where it begins
    window: WindowConvention | None = None


@dataclass(frozen=True)
class Reading:
    """A call that is understood: its question, its right answer, and where in the result the answer is."""

    question: Question
    wiring: Wiring
    convention: Convention
    right: Answer
    places: dict[str, Any]  # "output", and "weights" and "lse" if they are there: keys of the result

    @property
    def variant(self) -> AttentionVariant:
        """The attention that the target computes."""
        return _variant(self.convention)

    def mutated(self, change: dict[str, Any]) -> AttentionVariant:
        """Return the attention that the target computes, with some fields changed.

        A mistake in a causal mask that begins at the top left is made there, as if there were as many keys as
        queries.
        """
        rule = change.get("causal")
        if rule is not None and self.convention.aligned == "top left":
            change = change | {"causal": lambda q, k, n: rule(q, k, n._replace(S=n.T))}
        return replace(self.variant, **change)


def _variant(convention: Convention) -> AttentionVariant:
    return replace(CORRECT, causal=RULES["top left"]) if convention.aligned == "top left" else CORRECT


class CallReader:
    """Reads the calls of one target, with the convention that explained the last one first."""

    def __init__(self, signature: CallSignature) -> None:
        self.signature = signature
        self.convention = Convention()

    def read(self, arguments: dict[str, Any], result: Any) -> Reading | str:
        """Return what a call asks for and where the answer is; text says why that cannot be told."""
        roles = [as_tensor(self.signature.value(arguments, role)) for role in ROLES]
        if not all(isinstance(x, Tensor) and x.is_floating_point() and x.numel() for x in roles):
            return "queries, keys and values are not three tensors"
        if self._drops(arguments):
            return "dropout is random"
        tensors = dict(tensors_by_place(result))
        nearest = math.inf
        for convention in self._conventions(arguments, roles):
            try:
                question, wiring = self.ask(arguments, roles, convention)
                if math.prod(question.q.shape[:3]) * question.k.shape[-2] > LARGEST:
                    return f"more than {LARGEST} weights"
                with torch.no_grad():
                    right = _variant(convention).answer(question.to(torch.float64), wiring)
            except (RuntimeError, ValueError, IndexError, TypeError):
                continue
            reading = Reading(question, wiring, convention, right, {})
            for place, tensor in tensors.items():
                output = as_output(tensor, reading)
                error = math.inf if output is None else relative_error(Answer(output), right)
                nearest = min(nearest, error)
                if error < ROUNDING.get(tensor.dtype, ROUNDING[torch.float32]):
                    self.convention = convention
                    others = {key: x for key, x in tensors.items() if key != place}
                    return replace(reading, places={"output": place} | _find_others(others, right))
        if nearest == math.inf:
            return "no convention that is known explains its shapes"
        return f"its result is {100 * nearest:.2g} % off attention, in the convention that fits best"

    def _drops(self, arguments: dict[str, Any]) -> bool:
        rate = self.signature.value(arguments, "dropout")
        training = self.signature.value(arguments, "training")
        return isinstance(rate, float | int) and rate > 0 and training is not False

    def _conventions(self, arguments: dict[str, Any], roles: list[Any]) -> Iterator[Convention]:
        """Return the conventions that a call may follow, those most like the last one first."""
        value, q, k = self.signature.value, roles[0], roles[1]
        mask, padding, window = (value(arguments, m) for m in ("mask", "padding", "window"))
        masks: tuple[str, ...] = ("look",)
        if isinstance(mask := as_tensor(mask), Tensor):
            masks = ("look", "hide") if mask.dtype == torch.bool else ("added", "zero-one", "one-zero")
        layouts = ("packed",) if self.signature.layout == "packed" else LAYOUTS.get(q.ndim, ())
        if "heads" in self.signature.names and q.ndim == 3:
            layouts = ("BTC",)
        choices: dict[str, tuple[Any, ...]] = {
            "layout": layouts,
            "mask": masks,
            "padding": ("hide",) if padding is None else ("hide", "look"),
            "causal": (False, True) if value(arguments, "causal") is None else (False,),
            "aligned": ("bottom right", "top left") if q.shape != k.shape else ("bottom right",),
            "window": (None, *WINDOW_CONVENTIONS) if isinstance(window, int) else (None,),
        }
        found = [
            Convention(**dict(zip(choices, row, strict=True))) for row in itertools.product(*choices.values())
        ]
        last = self.convention
        return iter(
            sorted(found, key=lambda c: sum(getattr(c, f.name) != getattr(last, f.name) for f in fields(c)))
        )

    def ask(
        self, arguments: dict[str, Any], roles: list[Tensor], convention: Convention
    ) -> tuple[Question, Wiring]:
        """Return the question that a call asks in a convention; ValueError if its shapes do not fit."""
        value = self.signature.value
        q, k, v, lengths = self._inputs(arguments, roles, convention)
        B, H, D = q.shape[0], q.shape[1], q.shape[3]
        if k.shape[0] != B or k.shape[3] != D or v.shape[:3] != k.shape[:3] or H % k.shape[1]:
            raise ValueError("the shapes do not fit")
        flag = value(arguments, "causal")
        given: dict[str, Any] = {"flag": None if flag is None else bool(flag)}
        given |= _window(value(arguments, "window"), convention)
        if isinstance(left := value(arguments, "left window"), int) and left >= 0:
            given["window"] = left + 1
        if isinstance(right := value(arguments, "right window"), int) and right >= 0:
            given["ahead"] = right
        if (cap := value(arguments, "softcap")) not in (None, 0, 0.0, False):
            given["softcap"] = float(cap)
        if (sinks := as_tensor(value(arguments, "sinks"))) is not None:
            given["sinks"] = sinks
        question = Question("call", q, k, v, lengths=lengths, layout=self.signature.layout, **given)
        for meaning in ("mask", "padding", "bias"):
            if (mask := as_tensor(value(arguments, meaning))) is not None:
                question = _with_mask(question, mask, meaning, convention)
        scale = value(arguments, "scale")
        wiring = Wiring(scale=float(scale) if isinstance(scale, float | int | Tensor) else None)
        intent = Intent(wiring, convention.causal or question.causal, convention=convention.window)
        return intent.apply(question), wiring

    def _inputs(
        self, arguments: dict[str, Any], roles: list[Tensor], convention: Convention
    ) -> tuple[Tensor, Tensor, Tensor, tuple[tuple[int, ...], tuple[int, ...]] | None]:
        """Return queries, keys and values (B, H, T, D), and the lengths of packed sequences."""
        if convention.layout == "packed":
            starts = [as_tensor(self.signature.value(arguments, f"{role} starts")) for role in ROLES[:2]]
            lengths = [None if x is None else tuple(x.diff().tolist()) for x in starts]
            queries, keys = lengths[0] or lengths[1] or (), lengths[1] or lengths[0] or ()
            q, k, v = (unpack(x, n) for x, n in zip(roles, (queries, keys, keys), strict=True))
            return q, k, v, (queries, keys)
        if convention.layout == "BTC":
            heads = int(self.signature.value(arguments, "heads"))
            q, k, v = (split_heads(x, heads, view=False) for x in roles)
            return q, k, v, None
        q, k, v = (arrange(x, convention.layout, "BHTD") for x in roles)
        return q, k, v, None


def as_tensor(value: Any) -> Any:
    """Return a NumPy array or a block mask of FlexAttention as a tensor, and anything else as it is."""
    if isinstance(value, BlockMask):
        B, H = value.kv_num_blocks.shape[:2]
        return create_mask(value.mask_mod, B, H, *value.seq_lengths, device=value.kv_num_blocks.device)
    # By name, so that NumPy is not imported for code that does not use it.
    is_array = type(value).__module__ == "numpy" and getattr(value, "ndim", 0) > 0
    return torch.from_numpy(value) if is_array else value


def tensors_by_place(result: Any) -> Iterator[tuple[Any, Tensor]]:
    """Yield the floating-point tensors of a result with their places: None, an index, a key or a field."""
    if hasattr(result, "__dataclass_fields__"):
        parts = list(vars(result).items())
    elif isinstance(result, dict):
        parts = list(result.items())
    else:
        parts = list(enumerate(result)) if isinstance(result, list | tuple) else [(None, result)]
    for place, part in parts:
        if isinstance(tensor := as_tensor(part), Tensor) and tensor.is_floating_point():
            yield place, tensor


def in_layout(x: Tensor, reading: Reading) -> Tensor:
    """Return an output (B, H, T, E) in the layout of the target's result."""
    if reading.convention.layout == "packed":
        assert reading.question.lengths is not None
        return pack(x, reading.question.lengths[0])
    if reading.convention.layout == "BTC":
        return x.transpose(1, 2).flatten(2)
    return arrange(x, "BHTD", reading.convention.layout)


def as_output(t: Tensor, reading: Reading) -> Tensor | None:
    """Return a tensor of the result as an output (B, H, T, E); None if its shape does not fit."""
    if in_layout(reading.right.output, reading).shape != t.shape:
        return None
    if reading.convention.layout == "packed":
        assert reading.question.lengths is not None
        return unpack(t, reading.question.lengths[0])
    if reading.convention.layout == "BTC":
        return split_heads(t, reading.question.q.shape[1], view=False)
    return arrange(t, reading.convention.layout, "BHTD")


def _find_others(tensors: dict[Any, Tensor], right: Answer) -> dict[str, Any]:
    if (weights := right.weights) is None:
        return {}
    for place, tensor in tensors.items():
        same = tensor.numel() == weights.numel() and tensor.shape[-1] == weights.shape[-1]
        if same and relative_difference(tensor.detach().double().reshape(weights.shape), weights) < 2e-2:
            return {"weights": place}
    return {}


def _window(window: Any, convention: Convention) -> dict[str, Any]:
    """Return the fields of a question for a window: a number, or FlashAttention's (left, right)."""
    if isinstance(window, list | tuple) and len(window) == 2:
        left, right = (-1 if n is None else int(n) for n in window)
        sides = {"window": left + 1 if left >= 0 else None, "ahead": right if right >= 0 else None}
        return {name: n for name, n in sides.items() if n is not None}
    return {"window": int(window)} if isinstance(window, int) and window > 0 else {}


def _with_mask(question: Question, mask: Any, meaning: str, convention: Convention) -> Question:
    if isinstance(mask, Mask):
        return _with_named_mask(question, mask)
    if not isinstance(mask, Tensor):
        return question
    B, T, S = question.q.shape[0], question.q.shape[2], question.k.shape[2]
    if meaning == "padding":
        if mask.shape == (B,):
            return replace(question, padding=torch.arange(S, device=mask.device) < mask[:, None])
        return replace(question, padding=mask.bool() if convention.padding == "look" else ~mask.bool())
    hidden = torch.zeros_like(mask, dtype=torch.bool)
    bias = None
    if meaning == "bias" or convention.mask == "added":
        # The lowest number of a dtype hides as −inf does.
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        bias = mask.masked_fill(hidden, 0.0)
    else:
        hidden = ~mask.bool() if convention.mask in ("look", "zero-one") else mask.bool()
    if mask.ndim == 2 and mask.shape == (B, S) != (T, S):
        return replace(question, padding=~hidden)
    spread = hidden[:, None] if hidden.ndim == 3 else hidden  # (B, T, S) has no axis of heads
    spread = spread.expand(*spread.shape[:-2], T, S)
    if bias is not None and bool(bias.any()):
        question = replace(question, bias=bias[:, None] if bias.ndim == 3 else bias)
    if bias is not None and not bool(hidden.any()):
        return question
    return replace(question, mask=~spread)


def _with_named_mask(question: Question, mask: Mask) -> Question:
    """Return a question with a mask of Regard: what is causal, a window or padding is asked as such."""
    B, H, T, S = *question.q.shape[:3], question.k.shape[2]
    shape = (B, H, T, S)
    dense: list[Tensor] = []
    for part in mask.conjuncts():
        if part == causal:
            question = replace(question, causal=True, flag=True)
        elif part.window_size() is not None and question.window is None and (band := part.band(T, S)):
            question = replace(question, window=part.window_size(), ahead=band.ahead)
        elif (tokens := part.key_padding(S)) is not None and question.padding is None:
            question = replace(question, padding=tokens.expand(B, S))
        else:
            if (bias := part.bias(range(T), range(S), shape)) is not None:
                earlier = 0.0 if question.bias is None else question.bias
                question = replace(question, bias=bias + earlier)
            if not bool((tile := part.tile(range(T), range(S), shape)).all()):
                dense.append(tile)
    return replace(question, mask=functools.reduce(torch.logical_and, dense)) if dense else question
