"""The code under test behind one interface: run it on a `Question`, get an `Answer`.

A subject knows how the code is called: what its arguments mean, which shapes it takes, which convention its
masks follow, and which part of its result is the output. It does not know what is right or wrong.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.checker.errors import CheckError
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer

_DOT_T = torch.Tensor.T  # the property itself
_SDPA = {"query": "query", "key": "key", "value": "value", "mask": "attn_mask", "causal": "is_causal"}
_SDPA |= {"dropout": "dropout_p", "scale": "scale", "grouped": "enable_gqa"}


@dataclass(frozen=True)
class MaskForm:
    """The convention that a subject's mask argument follows.

    `kind` is "look" (boolean, True = may look), "hide" (boolean, True = hidden), "added" (0 and −inf) or
    "zero-one" (1.0 = may look). `rank` is 2 for (T, S), 3 for (B, T, S), 4 for (B, 1, T, S).
    """

    kind: str = "look"
    rank: int = 2

    def __str__(self) -> str:
        convention = {
            "look": "boolean, True = may look",
            "hide": "boolean, True = hidden",
            "added": "float, added to the scores",
            "zero-one": "float, 1 = may look, 0 = hidden",
        }[self.kind]
        return f"{convention}, {('', '', '(T, S)', '(B, T, S)', '(B, 1, T, S)')[self.rank]}"

    def encode(self, mask: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
        """Encode a mask (T, S) or (B, 1, T, S), in which True means visible, in this convention.

        `dtype` is that of a float mask, `batch` the batch size.
        """
        if mask.ndim == 4 and self.rank < 4:
            mask = mask[:, 0] if self.rank == 3 else mask[0, 0]
        elif mask.ndim == 2 and self.rank > 2:
            mask = mask.expand(batch, 1, *mask.shape) if self.rank == 4 else mask.expand(batch, *mask.shape)
        if self.kind == "hide":
            return ~mask
        if self.kind == "added":
            return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
        return mask.to(dtype) if self.kind == "zero-one" else mask


class CallMonitor(TorchFunctionMode):
    """Intercepts PyTorch calls while the code runs: it disables dropout and notices `.T` on a batch.

    `dropout` leaves dropout enabled. `used_dot_t` is set if `.T` was used on other than two dimensions.
    """

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.dropout, self.used_dot_t = dropout, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is _DOT_T and args[0].ndim != 2:
            self.used_dot_t = True
        if self.dropout:
            pass
        elif name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout"):
            if len(args) > 1:
                args = (args[0], 0.0, *args[2:])
            else:
                kwargs["p"] = 0.0
        elif name == "scaled_dot_product_attention" and (len(args) > 4 or "dropout_p" in kwargs):
            args, kwargs = (
                (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args,
                {**kwargs, "dropout_p": 0.0},
            )
            if len(args) > 4:
                kwargs.pop("dropout_p")
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Reply:
    """The result of running a subject: an answer, or the error that it raised."""

    answer: Answer | None
    error: BaseException | None = None
    used_dot_t: bool = False  # .T was used on other than two dimensions

    @property
    def error_line(self) -> str:
        """The error in one line."""
        text = (str(self.error).strip().splitlines() or [""])[0]
        return f"{type(self.error).__name__}: {text}"[:240]


@dataclass
class Subject:
    """Attention under test, and how to call it."""

    name: str
    target: Callable[..., Any]
    module: nn.Module | None  # None for a function
    cls: type[nn.Module] | None  # the module's class, if it can be constructed again
    init: dict[str, Any]  # the constructor arguments that the caller gave
    arguments: dict[str, str]  # from a meaning ("mask") to the name of the argument ("attn_mask")
    positional: list[str]  # the names of the tensors that come first
    inputs: str  # "x", "context" (x and context) or "qkv"
    layout: str  # "BTC", "TBC" or "TC"; for functions on heads "BHTD", "BTHD", "BTD" or "TD"
    mask_form: MaskForm = field(default_factory=MaskForm)
    extra: dict[str, Any] = field(default_factory=dict)  # arguments that are always passed
    rotary: Callable[[int, torch.dtype], tuple[Tensor, Tensor]] | None = None
    plain_lists: tuple[str, ...] = ()  # lists of modules that are not registered
    _copies: dict[torch.dtype, nn.Module] = field(default_factory=dict)

    @property
    def is_transformers(self) -> bool:
        """Whether this is an attention module of Transformers, or follows its interface."""
        module = self.module
        theirs = hasattr(module, "config") or type(module).__module__.startswith("transformers.")
        return module is not None and theirs and self.positional[:1] == ["hidden_states"]

    def module_as(self, dtype: torch.dtype) -> nn.Module | None:
        """Return a copy of the module in this precision and in eval mode; None for a function."""
        if self.module is None:
            return None
        if dtype not in self._copies:
            self._copies[dtype] = cast_module(copy_module(self.module), dtype).eval()
        return self._copies[dtype]

    def replaced(self, **changes: Any) -> Subject:
        """Return the subject with some fields changed."""
        return replace(self, _copies=self._copies, **changes)

    def run(
        self,
        question: Question,
        *,
        module: nn.Module | None = None,
        dropout: bool = False,
    ) -> Reply:
        """Run the code on a question; an error it raises is part of the reply.

        `module` is run instead of the subject's own copy. `dropout` leaves dropout enabled.
        """
        target = self.target if self.module is None else (module or self.module_as(question.dtype))
        assert target is not None
        monitor = CallMonitor(dropout)
        try:
            with monitor:
                result = target(*self._inputs(question), **self._keywords(question))
            return Reply(self.parse_result(result, question), None, monitor.used_dot_t)
        except CheckError:
            raise
        except (Exception, SystemExit) as error:
            return Reply(None, error, monitor.used_dot_t)

    def _inputs(self, question: Question) -> list[Tensor]:
        tensors = [question.q] if self.inputs == "x" else [question.q, question.k]
        tensors = [question.q, question.k, question.v] if self.inputs == "qkv" else tensors
        return [self._shaped(x) for x in tensors]

    def _shaped(self, x: Tensor) -> Tensor:
        if self.layout == "TBC" or self.layout == "BTHD":
            return x.transpose(0, 1) if self.layout == "TBC" else x.transpose(1, 2)
        if self.layout == "TC":
            return x[0]
        return x[:, 0] if self.layout == "BTD" else x[0, 0] if self.layout == "TD" else x

    def _keywords(self, question: Question) -> dict[str, Any]:
        """Return the keyword arguments that express a question's options."""
        names, keywords = self.arguments, dict(self.extra)
        B, T = question.q.shape[0], question.q.shape[-2]
        for meaning in ("weights", "lse"):
            if meaning in names:
                keywords[names[meaning]] = True
        if "average" in names:
            keywords[names["average"]] = False
        if "dropout" in names and self.module is None:
            keywords[names["dropout"]] = 0.0
        if "training" in names:
            keywords[names["training"]] = False
        if "causal" in names and question.flag is not None:
            keywords[names["causal"]] = question.flag
        if "window" in names and question.window is not None:
            keywords[names["window"]] = question.window
        if "softcap" in names and question.softcap is not None and self.module is None:
            keywords[names["softcap"]] = question.softcap
        if "grouped" in names and question.k.shape[1] != question.q.shape[1]:
            keywords[names["grouped"]] = True
        if self.rotary is not None and "rotary" in names:
            keywords[names["rotary"]] = self.rotary(T, question.dtype)
        if question.mask is not None and "mask" in names:
            keywords[names["mask"]] = self.mask_form.encode(question.mask, question.dtype, B)
        if question.padding is not None and "padding" in names:
            keywords[names["padding"]] = self._encode_padding(question.padding)
        elif question.padding is not None and "mask" in names:
            spread = question.padding[:, None, None, :].expand(B, 1, T, -1)
            keywords[names["mask"]] = replace(self.mask_form, rank=3 if self.layout == "BTD" else 4).encode(
                spread, question.dtype, B
            )
        if question.bias is not None:
            keywords[names.get("bias", names.get("mask", ""))] = question.bias
        return keywords

    def _encode_padding(self, is_token: Tensor) -> Tensor:
        if self.arguments["padding"] == "lengths":
            return is_token.sum(-1)
        return ~is_token  # in `key_padding_mask` and similar arguments True means padding

    def parse_result(self, result: Any, question: Question) -> Answer:
        """Find the output, the weights and the lse in what the code returned."""
        tensors = list(_tensors_in(result))
        if not tensors:
            raise CheckError(
                f"{self.name} returned {_describe(result)}; expected a tensor, (output, weights) or "
                "(output, lse)"
            )
        B, T, S = question.q.shape[0], question.q.shape[-2], question.k.shape[-2]
        H = question.q.shape[1] if question.q.ndim == 4 else None
        outputs = [(i, x) for i, t in enumerate(tensors) if (x := self._as_output(t, question)) is not None]
        if not outputs:
            wanted = "(B, H, T, E)" if self.layout == "BHTD" else f"({self.layout})"
            raise RuntimeError(
                f"returned {', '.join(str(tuple(t.shape)) for t in tensors)}; expected an output {wanted} "
                f"for {question.shapes()}"
            )
        # Of several candidates for the output, one with S columns is less likely: it may be the weights.
        index, output = next(((i, x) for i, x in outputs if x.shape[-1] != S), outputs[0])
        weights = lse = None
        for i, t in enumerate(tensors):
            if i == index or not t.dtype.is_floating_point:
                continue
            if t.shape[-2:] == (T, S) and weights is None:
                weights = t.reshape(B, -1, T, S) if t.numel() % (B * T * S) == 0 else None
            elif t.shape[-1:] == (T,) and t.numel() == B * (H or 1) * T and lse is None:
                lse = t.reshape(B, H or 1, T)
        return Answer(output, weights, lse)

    def _as_output(self, t: Tensor, question: Question) -> Tensor | None:
        """Return a tensor as an output in the question's layout, or None if its shape does not fit."""
        if not t.dtype.is_floating_point:
            return None
        B, T, E = question.q.shape[0], question.q.shape[-2], question.v.shape[-1]
        if self.layout in ("BTC", "TBC", "TC"):
            x = t.transpose(0, 1) if self.layout == "TBC" and t.ndim == 3 else t
            x = x[None] if self.layout == "TC" else x
            return x if x.ndim == 3 and x.shape[:2] == (B, T) else None
        H = question.q.shape[1]
        shapes = {"BHTD": (B, H, T, E), "BTHD": (B, T, H, E), "BTD": (B, T, E), "TD": (T, E)}
        if tuple(t.shape) != shapes[self.layout]:
            return None
        if self.layout == "BTHD":
            return t.transpose(1, 2)
        return t[:, None] if self.layout == "BTD" else t[None, None] if self.layout == "TD" else t


def copy_module(module: nn.Module) -> nn.Module:
    """Copy a module, even one that keeps tensors of an earlier forward pass as attributes."""
    saved = [(part, dict(vars(part))) for part in module.modules()]
    try:
        for part, attributes in saved:
            part.__dict__.update({name: _detach(value) for name, value in attributes.items()})
        return copy.deepcopy(module)
    finally:
        for part, attributes in saved:
            part.__dict__.update(attributes)


def cast_module(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a module in place. Complex buffers, such as rotations, stay complex: `.to()` would cut them."""
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64

    def cast(x: Tensor) -> Tensor:
        return x.to(complex_dtype) if x.is_complex() else x.to(dtype) if x.is_floating_point() else x

    module._apply(cast)  # type: ignore[no-untyped-call]
    return module


def _detach(value: Any) -> Any:
    """Detach tensors from their graph: `deepcopy` refuses those that are not leaves."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return value.detach()
    if type(value) in (list, tuple):
        return type(value)(_detach(part) for part in value)
    return value


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (B, H, T, D) as Transformers does: channel i is paired with channel i + D/2."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def _tensors_in(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result: the result itself, or those in a tuple, list, dict or dataclass."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, dict):
        yield from (x for x in result.values() if isinstance(x, Tensor))
    elif isinstance(result, list | tuple):
        yield from (x for x in result if isinstance(x, Tensor))
    elif hasattr(result, "__dataclass_fields__"):
        yield from (x for x in vars(result).values() if isinstance(x, Tensor))


def _describe(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {', '.join(type(x).__name__ for x in result) or 'nothing'}"
    return "nothing (None)" if result is None else f"a {type(result).__name__}"


def arguments_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of a module's forward pass."""
    if target is F.scaled_dot_product_attention:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        optional = {name: inspect.Parameter(name, kind, default=None) for name in list(_SDPA.values())[3:]}
        return {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")} | optional
    function = target.forward if isinstance(target, nn.Module) else target
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")}
