"""The code under test behind one interface: run it on a `Question`, get an `Answer`.

A subject knows how the code is called: what its arguments mean, which shapes it takes, which convention its
masks follow, and which part of its result is the output. It does not know what is right or wrong.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.checker.errors import CheckError, error_line
from regard.checker.oracle.question import Answer, Question
from regard.checker.subject.call_tensors import (
    SEQUENCES,
    MaskForm,
    RotaryTables,
    arrange,
    as_grid,
    as_sequence,
    copy_module,
    from_arrays,
    in_dtype,
    make_values,
    spell,
    tensors_in_result,
    to_device,
)
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS, KernelLayout
from regard.checker.subject.source import FunctionState, cache_parts
from regard.checker.subject.vocabulary import is_required, parameters_of
from regard.support.torch_internals import TorchDispatchMode, tree_leaves

_LIBRARIES = ("torch", "numpy", "einops", "triton")  # whose errors are about their own arguments
_DOT_T = torch.Tensor.T  # the property itself


class OutputShapeError(RuntimeError):
    """The code ran, and returned no tensor of the shape of an output."""


class CallHook(TorchFunctionMode):
    """Hands every call of a function of PyTorch to `call(name, function, args, kwargs)`, which makes it."""

    def __init__(self, call: Callable[[str, Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
        super().__init__()
        self.call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(getattr(func, "__name__", ""), func, args, dict(kwargs or {}))


class CallMonitor(CallHook):
    """Intercepts PyTorch calls while the code runs: it disables dropout and notices `.T` on a batch.

    `dropout` leaves dropout enabled. `used_dot_t` is set if `.T` was used on other than two dimensions.
    """

    def __init__(self, dropout: bool) -> None:
        super().__init__(self._call)
        self.dropout, self.used_dot_t = dropout, False

    def _call(self, name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        # PyTorch passes the __get__ of a property, which is bound to the property.
        if getattr(func, "__self__", None) is _DOT_T and args[0].ndim != 2:
            self.used_dot_t = True
        if not self.dropout and name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout"):
            args, kwargs = (args[0], 0.0, *args[2:]), {n: x for n, x in kwargs.items() if n != "p"}
        elif not self.dropout and name == "scaled_dot_product_attention":
            kwargs = dict(zip(("dropout_p", "is_causal"), args[4:], strict=False)) | kwargs
            args, kwargs = args[:4], kwargs | {"dropout_p": 0.0}
        return func(*args, **kwargs)


_ALLOCATES = re.compile(r"new_|(empty|zeros|ones|full|rand|randn)(_like)?$")  # no number is carried over


class FollowInputs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows numbers from some tensors to others through PyTorch's own operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reached: dict[int, Tensor] = {}  # by the address of its storage; the tensor keeps it alive

    def add(self, *tensors: Tensor) -> None:
        """Follow the numbers of these tensors."""
        # A storage has no public identity: data_ptr() is 0 for all that are empty.
        self._reached.update({t.untyped_storage()._cdata: t for t in tensors})

    def reaches(self, tensor: Tensor) -> bool:
        """Return whether a tensor holds numbers that came from those that are followed."""
        return tensor.untyped_storage()._cdata in self._reached

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        # Only these private attributes give an operator's own name and schema.
        own = func.namespace in ("aten", "prims") and not _ALLOCATES.match(func._opname)
        if own and any(self.reaches(x) for x in inputs):
            changed = [args[0]] if func._schema.is_mutable and isinstance(args[0], Tensor) else []
            self.add(*(x for x in tree_leaves(result) if isinstance(x, Tensor)), *changed)
        return result


@dataclass(frozen=True)
class Reply:
    """The result of running a subject: an answer, or the error that it raised."""

    answer: Answer | None
    error: BaseException | None = None
    used_dot_t: bool = False  # .T was used on other than two dimensions
    overwritten: tuple[str, ...] = ()  # the inputs that hold other numbers after the call, if it was watched

    @property
    def is_refusal(self) -> bool:
        """Whether the code under test raised the error itself, with words: by a raise or an assert."""
        if self.error is None or not str(self.error).strip():
            return False
        last = traceback.extract_tb(self.error.__traceback__)[-1]
        frame = [frame for frame, _ in traceback.walk_tb(self.error.__traceback__)][-1]
        module = str(frame.f_globals.get("__name__", ""))
        library = module.partition(".")[0] in _LIBRARIES or module.startswith("regard.checker.")
        return not library and re.search(r"\b(raise|assert)\b", last.line or "") is not None

    @property
    def error_line(self) -> str:
        """The error in one line."""
        return "" if self.error is None else error_line(self.error)


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
    layout: str  # one of `SEQUENCES`; for functions on heads one of `HEAD_LAYOUTS`
    mask_form: MaskForm = field(default_factory=MaskForm)
    extra: dict[str, Any] = field(default_factory=dict)  # arguments that are always passed
    call: dict[str, Any] = field(default_factory=dict)  # those of them that the caller stated
    mask_stated: bool = False  # whether the caller stated the convention of its masks
    padding_means: str = "hide"  # what True means in a padding mask: "hide" (PyTorch) or "look" (flash-attn)
    open_mask: bool = False  # whether a mask that hides nothing is passed if a question has none
    tables: RotaryTables | None = None  # rotary tables that are passed as arguments
    by_name: bool = False  # whether the tensors are passed by name, since their order is another
    arrays: bool = False  # whether it takes and returns NumPy arrays
    head_width: int | None = None  # the only width of a head that is right for it, if it declares one
    plain_lists: tuple[str, ...] = ()  # lists of modules that are not registered
    asked: list[Question] = field(default_factory=list)  # every question so far
    kernel_layouts: tuple[KernelLayout, ...] = ()  # those that a kernel may take, likeliest first
    kernel_layout: KernelLayout | None = None  # the one that it takes; None for plain tensors
    device: str = "cpu"
    step: Callable[..., Any] | None = None  # the caller's way to run it, if it runs only with a cache
    state: FunctionState | None = None  # that of a function before its first call
    _copies: dict[tuple[torch.dtype, str], nn.Module] = field(default_factory=dict)

    @property
    def is_transformers(self) -> bool:
        """Whether this is an attention module of Transformers, or follows its interface."""
        module = self.module
        theirs = hasattr(module, "config") or type(module).__module__.startswith("transformers.")
        return module is not None and theirs and self.positional[:1] == ["hidden_states"]

    def module_as(self, dtype: torch.dtype, device: str | None = None) -> nn.Module | None:
        """Return a copy of the module in this precision and in eval mode; None for a function.

        It is on the subject's device unless another one is named.
        """
        if self.module is None:
            return None
        place = dtype, device or self.device
        if place not in self._copies:
            self._copies[place] = in_dtype(copy_module(self.module), dtype).to(place[1]).eval()
        return self._copies[place]

    def runnable(self, dtype: torch.dtype) -> nn.Module | None:
        """Return the module to run: a new copy each time, if it may keep a cache from call to call."""
        module = self.module_as(dtype)
        if module is None:
            return None
        stateful = {"cache", "use_cache"} & self.arguments.keys() or cache_parts(module)
        return copy_module(module) if stateful else module

    def replaced(self, **changes: Any) -> Subject:
        """Return the subject, and the same copies of its module, with some fields changed."""
        return replace(self, **changes)

    def run(
        self,
        question: Question,
        *,
        module: nn.Module | None = None,
        dropout: bool = False,
        watched: bool = False,
    ) -> Reply:
        """Run the code on a copy of a question; an error it raises is part of the reply.

        `module` is run instead of the subject's own copy. `dropout` leaves dropout enabled. `watched` notes
        which inputs the code overwrites.
        """
        self.asked.append(question)
        target = self.target if self.module is None else (module or self.runnable(question.dtype))
        # A tensor of the meta device has no numbers that could be moved.
        if module is not None and not any(x.is_meta for x in module.parameters()):
            target = module.to(self.device)
        assert target is not None
        overwritten: list[str] = []
        if watched and self.step is None:
            target = _watching(target, self._inputs_to_keep(), overwritten)
        monitor = CallMonitor(dropout)
        try:
            with monitor:
                answer = self._call(target, question.map_inputs(torch.clone))
            return Reply(answer, None, monitor.used_dot_t, tuple(overwritten))
        except CheckError:
            raise
        # The author's code may call exit().
        except (Exception, SystemExit) as error:
            return Reply(None, error, monitor.used_dot_t)

    def _inputs_to_keep(self) -> list[str]:
        """Return the arguments that a call must not write into: all inputs but a cache."""
        options = [self.arguments[m] for m in ("mask", "padding", "bias") if m in self.arguments]
        if self.kernel_layout is None:
            return [*self.positional, *options]
        names, cached = self.kernel_layout.names, self.kernel_layout.kind in CACHED_LAYOUTS
        roles = ("query",) if cached else ("query", "key", "value", "kv", "qkv")
        return [names[role] for role in roles if role in names] + options

    def _call(self, target: Callable[..., Any], question: Question) -> Answer:
        """Call the code on the subject's device; the answer is on the CPU."""
        keywords = {
            # Code that writes into its mask must not change the next question.
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in self._keywords(question).items()
        }
        if self.kernel_layout is not None:
            return self.kernel_layout.run(target, question, keywords, self.device)
        tensors = [to_device(x, self.device) for x in self._inputs(question)]
        keywords = {name: to_device(value, self.device) for name, value in keywords.items()}
        if self.by_name:
            tensors, keywords = [], keywords | dict(zip(self.positional, tensors, strict=True))
        if self.step is not None:
            result = self.step(target, tensors[0], None)[0]
        elif self.arrays:
            arrays = {n: x.detach().numpy() if isinstance(x, Tensor) else x for n, x in keywords.items()}
            result = target(*(x.detach().numpy() for x in tensors), **arrays)
        else:
            result = target(*tensors, **keywords)
        answer = self.parse_result(result, question)
        return Answer(*(to_device(x, "cpu") for x in answer))

    def _inputs(self, question: Question) -> list[Tensor]:
        tensors = [question.q] if self.inputs == "x" else [question.q, question.k]
        tensors = [question.q, question.k, question.v] if self.inputs == "qkv" else tensors
        return [self._shaped(x) for x in tensors]

    def describe_inputs(self, question: Question) -> str:
        """Return the shapes of the tensors that a question passes, with the names of their arguments."""
        if self.kernel_layout is not None:
            encoded = self.kernel_layout.encode(question)
            named = {self.kernel_layout.names.get(meaning, ""): x for meaning, x in encoded.items()}
        else:
            named = dict(zip(self.positional, self._inputs(question), strict=True))
        named = {name: x for name, x in named.items() if name and isinstance(x, Tensor)}
        return ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())

    def _shaped(self, x: Tensor) -> Tensor:
        """Return a tensor of a question in the subject's layout."""
        if self.layout in ("BCHW", "BHWC"):
            return arrange(x.reshape(x.shape[0], *as_grid(x.shape[1]), -1), "BHWC", self.layout)
        return arrange(x, "BTC" if self.layout in SEQUENCES else "BHTD", self.layout)

    def _keywords(self, question: Question) -> dict[str, Any]:
        """Return the keyword arguments that express a question's options."""
        names, extra = self.arguments, make_values(self.extra, question)
        B, T, D = question.q.shape[0], question.q.shape[-2], question.q.shape[-1]
        sinks = None if question.sinks is None else question.sinks.to(question.dtype)
        if sinks is None and self._requires("sinks"):
            sinks = question.q.new_full((question.q.shape[1],), -torch.inf)  # takes no share of the softmax
        scale = question.scale
        # The width of a sequence is not that of its heads, from which the usual scale comes.
        if scale is None and self._requires("scale") and self.layout not in SEQUENCES:
            scale = D**-0.5
        rows, columns = as_grid(T) if {"rows", "columns"} <= names.keys() else (None, None)
        # What the caller has not stated; F.scaled_dot_product_attention drops unless dropout_p is 0.
        usual = {"dropout": 0.0 if self.module is None else None, "training": False, "head_width": D}
        values: dict[str, Any] = {
            **{m: x for m, x in usual.items() if names.get(m) not in extra},
            "weights": True,
            "lse": True,
            # The weights of PyTorch's MultiheadAttention are a mean over the heads by default.
            "average": False,
            "causal": question.flag,
            "scale": scale,
            "splits": question.splits,
            "sinks": sinks,
            "softcap": question.softcap if self.module is None else None,
            # F.scaled_dot_product_attention refuses grouped heads without enable_gqa.
            "grouped": True if question.k.shape[1] != question.q.shape[1] else None,
            "rows": rows,
            "columns": columns,
            **self._window(question),
            **self._masks(question, B),
        }
        keywords = {names[m]: value for m, value in values.items() if m in names and value is not None}
        tables = {} if self.tables is None else self.tables.make(T, question.dtype)
        return extra | keywords | tables | question.extra

    def _masks(self, question: Question, B: int) -> dict[str, Any]:
        """Return the mask, the padding and the bias of a question, by their meaning."""
        names, form, dtype, values = self.arguments, self.mask_form, question.dtype, dict[str, Any]()
        if question.mask is not None or self.open_mask:
            open_mask = torch.ones(question.q.shape[-2], question.k.shape[-2], dtype=torch.bool)
            values["mask"] = form.encode(open_mask if question.mask is None else question.mask, dtype, B)
        if (padding := question.padding) is not None and "padding" in names:
            # An argument called `key_lengths` holds the number of tokens and no mask.
            counts = "len" in names["padding"]
            values["padding"] = padding.sum(-1) if counts else padding ^ (self.padding_means == "hide")
        elif padding is not None:
            spread = (
                padding if form.rank == 1 else padding[:, None, None].expand(B, 1, question.q.shape[-2], -1)
            )
            # Padding differs between the items of a batch, for which a mask (T, S) has no axis.
            rank = form.rank if form.rank != 2 else 3 if self.layout == "BTD" else 4
            values["mask"] = replace(form, rank=rank).encode(spread, dtype, B)
        if question.bias is not None:
            own = "bias" in names
            values["bias" if own else "mask"] = question.bias if own else form.spread(question.bias, B)
        return values

    def _window(self, question: Question) -> dict[str, Any]:
        """Return what says a window, by meaning: one number, (left, right), or two; −1 is without a bound."""
        # The left side of FlashAttention's window does not count the query's own key; −1 means no bound.
        left = -1 if question.window is None else question.window - 1
        right = question.ahead if question.ahead is not None else 0 if question.flag and left >= 0 else -1
        pair = (left, right) if max(left, right) >= 0 else None
        sides = {"left window": left, "right window": right}
        values = {m: n for m, n in sides.items() if n >= 0 or self._requires(m)}
        return values | {"window": pair if self.takes_window_pair else question.window}

    @property
    def takes_window_pair(self) -> bool:
        """Whether its window is (left, right): by its default, its annotation or FlashAttention's name."""
        parameter = self._parameter("window")
        if parameter is None:
            return False
        if self.kernel_layouts and parameter.name == "window_size" and is_required(parameter):
            return True
        return isinstance(parameter.default, tuple | list) or "tuple" in str(parameter.annotation).lower()

    @property
    def window_is_bounded(self) -> bool:
        """Whether its (left, right) has a default without −1, so that −1 need not mean "no bound"."""
        parameter = self._parameter("window")
        default = None if parameter is None else parameter.default
        return isinstance(default, tuple | list) and all(isinstance(n, int) and n >= 0 for n in default)

    def _parameter(self, meaning: str) -> inspect.Parameter | None:
        return parameters_of(self.target).get(self.arguments.get(meaning, ""))

    def _requires(self, meaning: str) -> bool:
        """Return whether there is an argument of this meaning that has no default."""
        parameter = self._parameter(meaning)
        return parameter is not None and is_required(parameter)

    def parse_result(self, result: Any, question: Question) -> Answer:
        """Find the output, the weights and the lse in what the code returned."""
        tensors = tensors_in_result(from_arrays(result) if self.arrays else result)
        if not tensors:
            returned = "nothing (None)" if result is None else f"a {type(result).__name__}"
            if isinstance(result, list | tuple):
                returned += f" of {', '.join(type(x).__name__ for x in result) or 'nothing'}"
            raise CheckError(
                f"{self.name} returned {returned}; expected a tensor, (output, weights) or (output, lse)"
            )
        outputs = [(i, x) for i, t in enumerate(tensors) if (x := self._as_output(t, question)) is not None]
        if not outputs:
            wanted = spell(self.layout if self.layout in SEQUENCES else self.layout.replace("D", "E"))
            raise OutputShapeError(
                f"returned {', '.join(str(tuple(t.shape)) for t in tensors)}; expected an output {wanted} "
                f"for {question.shapes()}"
            )
        B, T, S = question.q.shape[0], question.q.shape[-2], question.k.shape[-2]
        H = question.q.shape[1] if question.q.ndim == 4 else 1
        # Of several candidates for the output, one with S columns is less likely: it may be the weights.
        index, output = next(((i, x) for i, x in outputs if x.shape[-1] != S), outputs[0])
        others = [t for i, t in enumerate(tensors) if i != index and t.dtype.is_floating_point]
        # Scores may be negative. Tensors on the meta device have a shape and no numbers.
        matrices = [t for t in others if t.shape[-2:] == (T, S) and (t.is_meta or not bool((t < 0).any()))]
        rows = [t for t in others if not any(t is matrix for matrix in matrices)]
        lses = [t for t in rows if t.shape[-1:] == (T,) and t.numel() == B * H * T]
        matrices = [t for t in matrices if t.numel() % (B * T * S) == 0]
        # Of several, weights are those whose rows sum to 1: T5Attention returns its biases before.
        # Weights in bfloat16 have steps of 8e-3.
        real = [t for t in matrices if not t.is_meta]
        summed = [t for t in real if bool(((t.detach().double().sum(-1) - 1).abs() < 1e-2).all())]
        weights = [*summed[-1:], *matrices]
        return Answer(
            output,
            weights[0].reshape(B, -1, T, S) if weights else None,
            lses[0].reshape(B, H, T) if lses else None,
        )

    def _as_output(self, t: Tensor, question: Question) -> Tensor | None:
        """Return a tensor as an output in the question's layout, or None if its shape does not fit."""
        if not t.dtype.is_floating_point:
            return None
        B, T, E = question.q.shape[0], question.q.shape[-2], question.v.shape[-1]
        if self.layout in SEQUENCES:
            x = as_sequence(t, self.layout)
            return x if x is not None and x.shape[:2] == (B, T) else None
        sizes = {"B": B, "H": question.q.shape[1], "T": T, "D": E}
        fits = tuple(t.shape) == tuple(sizes[axis] for axis in self.layout)
        return arrange(t, self.layout, "BHTD") if fits else None


def _watching(target: Callable[..., Any], names: list[str], overwritten: list[str]) -> Callable[..., Any]:
    """Return the code so that a call notes which of its inputs of these names it overwrites."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Behind the tensors the names are of masks, which are passed by name.
        named = dict(zip(names, args, strict=False)) | kwargs
        # NumPy arrays are watched, too.
        watched = {name: x for name, x in named.items() if name in names and hasattr(x, "shape")}
        before = {name: torch.as_tensor(x).detach().clone() for name, x in watched.items()}
        try:
            return target(*args, **kwargs)
        finally:
            for name, x in watched.items():
                if not torch.equal(before[name], torch.as_tensor(x).detach()):
                    overwritten.append(name)

    return call
