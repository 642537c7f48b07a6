"""The thing under test, behind one interface: put a `Question`, get an `Answer`.

A subject knows how somebody's code is called: what its arguments mean, which shapes it takes, how it wants a
mask said, what of its result is the output. It knows nothing of right and wrong.
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

from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer
from regard.checker.subject.construct import CheckError

_DOT_T = torch.Tensor.T  # the property itself
_SDPA = {"query": "query", "key": "key", "value": "value", "mask": "attn_mask", "causal": "is_causal"}
_SDPA |= {"dropout": "dropout_p", "scale": "scale", "grouped": "enable_gqa"}


@dataclass(frozen=True)
class MaskForm:
    """How a subject wants to hear who may look at whom."""

    kind: str = (
        "look"  # boolean, True = may look; or "hide", "added" (0 and −inf), "zero-one" (1.0 = may look)
    )
    rank: int = 2  # (T, S); 3: (B, T, S); 4: (B, 1, T, S)

    def __str__(self) -> str:
        says = {
            "look": "boolean, True = may look",
            "hide": "boolean, True = hidden",
            "added": "float, added to the scores",
            "zero-one": "float, 1 = may look, 0 = hidden",
        }[self.kind]
        return f"{says}, {('', '', '(T, S)', '(B, T, S)', '(B, 1, T, S)')[self.rank]}"

    def say(self, mask: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
        """A mask (T, S) or (B, 1, T, S), True = may look, in this form."""
        if mask.ndim == 4 and self.rank < 4:
            mask = mask[:, 0] if self.rank == 3 else mask[0, 0]
        elif mask.ndim == 2 and self.rank > 2:
            mask = mask.expand(batch, 1, *mask.shape) if self.rank == 4 else mask.expand(batch, *mask.shape)
        if self.kind == "hide":
            return ~mask
        if self.kind == "added":
            return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
        return mask.to(dtype) if self.kind == "zero-one" else mask


class Watch(TorchFunctionMode):
    """Looks on while code runs: switches every dropout of PyTorch off, and notes a `.T` on more than two
    axes."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.dropout, self.turned = dropout, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if getattr(func, "__self__", None) is _DOT_T and args[0].ndim != 2:
            self.turned = True
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
    """What came back from a subject: an answer, or the error it raised."""

    answer: Answer | None
    error: BaseException | None = None
    turned: bool = False  # it used .T on more than two axes

    @property
    def trouble(self) -> str:
        """The error in one line."""
        text = (str(self.error).strip().splitlines() or [""])[0]
        return f"{type(self.error).__name__}: {text}"[:240]


@dataclass
class Subject:
    """Somebody's attention and how to talk to it."""

    name: str
    target: Callable[..., Any]
    module: nn.Module | None
    cls: type[nn.Module] | None  # if a class was given, or can be built again
    given: dict[str, Any]  # its constructor arguments
    arguments: dict[str, str]  # what → the name of the argument
    positional: list[str]  # the names of the tensors that come first
    takes: str  # "x", "context" (x and context) or "qkv"
    form: str  # "BTC"; functions on heads: "BHTD", "BTHD", "BTD", "TD"
    mask_form: MaskForm = field(default_factory=MaskForm)
    extra: dict[str, Any] = field(default_factory=dict)  # arguments that are always passed
    rotary: Callable[[int, torch.dtype], tuple[Tensor, Tensor]] | None = None
    plain_lists: tuple[str, ...] = ()  # lists of modules that the module does not know of
    _copies: dict[torch.dtype, nn.Module] = field(default_factory=dict)

    def at(self, dtype: torch.dtype) -> nn.Module | None:
        """The module in this precision, in eval mode: a copy, so that the caller's own stays as it is."""
        if self.module is None:
            return None
        if dtype not in self._copies:
            self._copies[dtype] = copied(self.module).to(dtype).eval()
        return self._copies[dtype]

    def adjusted(self, **changes: Any) -> Subject:
        return replace(self, _copies=self._copies, **changes)

    def ask(
        self,
        question: Question,
        *,
        module: nn.Module | None = None,
        dropout: bool = False,
    ) -> Reply:
        """Put a question. `module` takes the place of the subject's own copy; `dropout` leaves dropout alone.
        Put a question. `module` takes the place of the subject's own copy; `dropout` leaves dropout alone."""
        target = self.target if self.module is None else (module or self.at(question.dtype))
        assert target is not None
        watch = Watch(dropout)
        try:
            with watch:
                raw = target(*self._inputs(question), **self._keywords(question))
            return Reply(self.read(raw, question), None, watch.turned)
        except CheckError:
            raise
        except (Exception, SystemExit) as error:
            return Reply(None, error, watch.turned)

    def _inputs(self, question: Question) -> list[Tensor]:
        tensors = [question.q] if self.takes == "x" else [question.q, question.k]
        tensors = [question.q, question.k, question.v] if self.takes == "qkv" else tensors
        return [self._shaped(x) for x in tensors]

    def _shaped(self, x: Tensor) -> Tensor:
        if self.form == "TBC" or self.form == "BTHD":
            return x.transpose(0, 1) if self.form == "TBC" else x.transpose(1, 2)
        if self.form == "TC":
            return x[0]
        return x[:, 0] if self.form == "BTD" else x[0, 0] if self.form == "TD" else x

    def _keywords(self, question: Question) -> dict[str, Any]:
        known, keywords = self.arguments, dict(self.extra)
        B, T = question.q.shape[0], question.q.shape[-2]
        for meaning in ("weights", "lse"):
            if meaning in known:
                keywords[known[meaning]] = True
        if "average" in known:
            keywords[known["average"]] = False
        if "dropout" in known and self.module is None:
            keywords[known["dropout"]] = 0.0
        if "training" in known:
            keywords[known["training"]] = False
        if "causal" in known and question.flag is not None:
            keywords[known["causal"]] = question.flag
        if "window" in known and question.window is not None:
            keywords[known["window"]] = question.window
        if "softcap" in known and question.softcap is not None and self.module is None:
            keywords[known["softcap"]] = question.softcap
        if "grouped" in known and question.k.shape[1] != question.q.shape[1]:
            keywords[known["grouped"]] = True
        if self.rotary is not None and "rotary" in known:
            keywords[known["rotary"]] = self.rotary(T, question.dtype)
        if question.mask is not None and "mask" in known:
            keywords[known["mask"]] = self.mask_form.say(question.mask, question.dtype, B)
        if question.padding is not None and "padding" in known:
            keywords[known["padding"]] = self._padding(question.padding)
        elif question.padding is not None and "mask" in known:
            spread = question.padding[:, None, None, :].expand(B, 1, T, -1)
            keywords[known["mask"]] = replace(self.mask_form, rank=3 if self.form == "BTD" else 4).say(
                spread, question.dtype, B
            )
        if question.bias is not None:
            keywords[known.get("bias", known.get("mask", ""))] = question.bias
        return keywords

    def _padding(self, real: Tensor) -> Tensor:
        if self.arguments["padding"] == "lengths":
            return real.sum(-1)
        return ~real  # `key_padding_mask` and its kin mark what is padding

    def read(self, raw: Any, question: Question) -> Answer:
        """The output, weights and lse out of whatever came back."""
        tensors = list(_tensors(raw))
        if not tensors:
            raise CheckError(
                f"{self.name} returned {_described(raw)}; expected a tensor, (output, weights) or (output, "
                "lse)"
            )
        B, T, S = question.q.shape[0], question.q.shape[-2], question.k.shape[-2]
        H = question.q.shape[1] if question.q.ndim == 4 else None
        outputs = [(i, x) for i, t in enumerate(tensors) if (x := self._canonical(t, question)) is not None]
        if not outputs:
            wanted = "(B, H, T, E)" if self.form == "BHTD" else f"({self.form})"
            raise RuntimeError(
                f"returned {', '.join(str(tuple(t.shape)) for t in tensors)}; expected an output {wanted} "
                f"for {question.shapes()}"
            )
        # Of several tensors that could be the output, one that could be the weights too is the worse guess.
        index, output = next((one for one in outputs if one[1].shape[-1] != S), outputs[0])
        weights = lse = None
        for i, t in enumerate(tensors):
            if i == index or not t.dtype.is_floating_point:
                continue
            if t.shape[-2:] == (T, S) and weights is None:
                weights = t.reshape(B, -1, T, S) if t.numel() % (B * T * S) == 0 else None
            elif t.shape[-1:] == (T,) and t.numel() == B * (H or 1) * T and lse is None:
                lse = t.reshape(B, H or 1, T)
        return Answer(output, weights, lse)

    def _canonical(self, t: Tensor, question: Question) -> Tensor | None:
        """The tensor as an output in the question's own layout, if it can be one."""
        if not t.dtype.is_floating_point:
            return None
        B, T, E = question.q.shape[0], question.q.shape[-2], question.v.shape[-1]
        if self.form in ("BTC", "TBC", "TC"):
            x = t.transpose(0, 1) if self.form == "TBC" and t.ndim == 3 else t
            x = x[None] if self.form == "TC" else x
            return x if x.ndim == 3 and x.shape[:2] == (B, T) else None
        H = question.q.shape[1]
        shapes = {"BHTD": (B, H, T, E), "BTHD": (B, T, H, E), "BTD": (B, T, E), "TD": (T, E)}
        if tuple(t.shape) != shapes[self.form]:
            return None
        if self.form == "BTHD":
            return t.transpose(1, 2)
        return t[:, None] if self.form == "BTD" else t[None, None] if self.form == "TD" else t


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module, also of one that keeps tensors of an earlier forward pass as attributes."""
    kept = [(part, dict(vars(part))) for part in module.modules()]
    try:
        for part, attributes in kept:
            part.__dict__.update({name: _without_history(value) for name, value in attributes.items()})
        return copy.deepcopy(module)
    finally:
        for part, attributes in kept:
            part.__dict__.update(attributes)


def _without_history(value: Any) -> Any:
    """Tensors that were computed cannot be copied until they forget how."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return value.detach()
    if type(value) in (list, tuple):
        return type(value)(_without_history(part) for part in value)
    return value


def _tensors(raw: Any) -> Iterator[Tensor]:
    """The tensors at the top of a result: a tensor, or those in a tuple, a list, a dict or a dataclass."""
    if isinstance(raw, Tensor):
        yield raw
    elif isinstance(raw, dict):
        yield from (x for x in raw.values() if isinstance(x, Tensor))
    elif isinstance(raw, list | tuple):
        yield from (x for x in raw if isinstance(x, Tensor))
    elif hasattr(raw, "__dataclass_fields__"):
        yield from (x for x in vars(raw).values() if isinstance(x, Tensor))


def _described(raw: Any) -> str:
    if isinstance(raw, list | tuple):
        return f"a {type(raw).__name__} of {', '.join(type(x).__name__ for x in raw) or 'nothing'}"
    return "nothing (None)" if raw is None else f"a {type(raw).__name__}"


def arguments_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function, or of a module's forward pass."""
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
