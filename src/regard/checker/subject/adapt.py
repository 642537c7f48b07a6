"""From whatever was handed to `check` to a `Subject`: reading signatures, building classes, copying modules.
From whatever was handed to `check` to a `Subject`: reading signatures, building classes, copying modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.subject import vocabulary
from regard.checker.subject.construct import SIZES, CheckError, build
from regard.checker.subject.subject import MaskForm, Subject, arguments_of, copied

_NEUTRAL: dict[str, Any] = {
    "mask": None,
    "padding": None,
    "bias": None,
    "cache": None,
    "use_cache": False,
    "start": 0,
    "context": None,
}
_NEUTRAL |= {
    "causal": False,
    "dropout": 0.0,
    "training": False,
    "weights": True,
    "lse": True,
    "average": False,
}


def adapt(thing: Any, given: dict[str, Any], true_means: str | None = None) -> Subject:
    """A subject for a function, a module or a class of modules; CheckError says why not."""
    if isinstance(thing, type):
        return _of_class(thing, given, true_means)
    if isinstance(thing, nn.Module):
        if given:
            raise CheckError(
                f"{type(thing).__name__} is built already: its constructor arguments ({', '.join(given)}) "
                "come too "
                f"late; hand over the class, check({type(thing).__name__}, …)"
            )
        return _of_module(thing, None, {}, true_means)
    if callable(thing):
        return _of_function(thing, given, true_means)
    raise CheckError(
        f"expected a function, an nn.Module or a class of nn.Module, got {type(thing).__name__}: "
        "hand over the attention itself"
    )


def _of_class(cls: type, given: dict[str, Any], true_means: str | None) -> Subject:
    if not issubclass(cls, nn.Module):
        instance = cls() if not inspect.signature(cls).parameters else None
        if instance is None or not callable(instance):
            raise CheckError(
                f"{cls.__name__} is a class, but not an nn.Module: hand over a function that calls it"
            )
        return _of_function(instance, given, true_means, name=cls.__name__)
    module = build(cls, given)
    return _of_module(module, cls, given, true_means)


def _of_module(
    module: nn.Module, cls: type[nn.Module] | None, given: dict[str, Any], true_means: str | None
) -> Subject:
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.Linear | nn.Embedding):
        raise CheckError(
            f"{type(module).__name__} is not an attention: hand over the part of the model that is"
        )
    name = type(module).__name__
    own, lists = _own_copy(module)
    positional, takes, known, extra = _read(module, name, {})
    bare = not any(True for _ in own.parameters())
    if takes == "qkv" and bare:
        form = "BHTD"  # a function in a module's coat: which shapes it takes is found out by trying
    else:
        form = "TBC" if getattr(module, "batch_first", True) is False else "BTC"
    subject = Subject(
        name, own, own, cls, given, known, positional, takes, form, extra=extra, plain_lists=lists
    )
    return _with_conventions(subject, true_means)


def _of_function(
    function: Callable[..., Any], given: dict[str, Any], true_means: str | None, name: str | None = None
) -> Subject:
    name = name or getattr(function, "__name__", None) or type(function).__name__
    name = "the function" if name == "<lambda>" else name
    if isinstance(function, functools.partial):
        name = getattr(function.func, "__name__", name)
    positional, takes, known, extra = _read(function, name, given)
    form = "BTC" if takes != "qkv" or "heads" in known else "BHTD"
    if "heads" in known and known["heads"] not in extra:
        extra[known["heads"]] = SIZES["heads"]
    subject = Subject(name, function, None, None, given, known, positional, takes, form, extra=extra)
    return _with_conventions(subject, true_means)


def _own_copy(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy with weights drawn anew, so that zero biases and tiny weights cannot hide a mistake."""
    own = copied(module)
    lists = _registered(own)
    width = next((p.shape[-1] for p in own.parameters() if p.ndim == 2), 1)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for path, parameter in own.named_parameters():
            if parameter.dtype.is_floating_point:
                fresh = torch.randn(parameter.shape, dtype=torch.float64)
                norm = parameter.ndim == 1 and "norm" in path.lower() and not path.endswith("bias")
                spread = 0.5 if parameter.ndim == 1 else width**-0.5
                parameter.copy_(1.0 + 0.2 * fresh if norm else spread * fresh)
    return own.eval(), lists


def _registered(module: nn.Module) -> tuple[str, ...]:
    """Turn plain lists of modules into real ones, so that the check can go on; their names."""
    found = []
    for path, part in list(module.named_modules()):
        for name, value in list(vars(part).items()):
            if isinstance(value, list | tuple) and value and all(isinstance(x, nn.Module) for x in value):
                delattr(part, name)
                setattr(part, name, nn.ModuleList(value))
                found.append(f"{path}.{name}".lstrip("."))
    return tuple(found)


def _read(
    target: Callable[..., Any], name: str, given: dict[str, Any]
) -> tuple[list[str], str, dict[str, str], dict[str, Any]]:
    """The tensors that come first, what kind of call it is, the known arguments, and what is always passed.
    The tensors that come first, what kind of call it is, the known arguments, and what is always passed."""
    parameters = {
        key: p for key, p in arguments_of(target).items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    order = list(parameters)
    if not order:
        raise CheckError(f"{name} takes no arguments; expected (q, k, v) or a sequence x")
    required = [
        key for key in order if parameters[key].default is inspect.Parameter.empty and key not in given
    ]
    meanings = {key: vocabulary.argument(key) for key in order}
    takes, positional = _first_tensors(order, required, meanings)
    known: dict[str, str] = {}
    extra = {key: given[key] for key in given if key in parameters}
    unknown_given = [key for key in given if key not in parameters]
    if unknown_given:
        raise CheckError(f"{name} takes no `{unknown_given[0]}`; it takes {', '.join(order)}")
    for key in order:
        meaning = meanings[key]
        if key in positional or key in given:
            continue
        if meaning is not None and meaning not in ("query", "key", "value", "x"):
            known.setdefault(meaning, key)
        if key in required and meaning in _NEUTRAL:
            extra[key] = _NEUTRAL[meaning]
        elif key in required and meaning not in ("heads", "rotary"):
            call = ", ".join([*positional, f"{key}=…"])
            raise CheckError(
                f"{name} needs `{key}`, whose meaning is not known here: hand over a function that fills it "
                "in, "
                f"such as lambda {', '.join(positional)}: {name[:1].lower() + name[1:]}({call})"
            )
    return positional, takes, known, extra


def _first_tensors(
    order: list[str], required: list[str], meanings: dict[str, str | None]
) -> tuple[str, list[str]]:
    three = order[:3]
    if [meanings[key] for key in three] == ["query", "key", "value"]:
        return "qkv", three
    if len(required) >= 3 and all(
        meanings[key] in (None, "query", "key", "value", "x", "context") for key in three
    ):
        return "qkv", three
    if len(order) > 1 and order[1] in required and meanings[order[1]] in ("context", "x", "key"):
        return "context", order[:2]
    return "x", order[:1]


def _with_conventions(subject: Subject, true_means: str | None) -> Subject:
    """What is known beforehand of masks and positions: PyTorch's own modules, Transformers' attention."""
    if isinstance(subject.module, nn.MultiheadAttention):
        subject.arguments.pop("causal", None)  # only a hint there, beside a mask
        subject.mask_form = MaskForm("hide", 2)
    elif of_transformers(subject):
        subject.mask_form = MaskForm("added", 4)
        if "rotary" in subject.arguments:
            subject.rotary = _turns(int(getattr(subject.module, "head_dim", 0)) or SIZES["head_width"])
        subject.arguments.pop("causal", None)
    elif true_means is not None:
        if true_means not in ("look", "hide"):
            raise ValueError(f'true_means: expected "look" or "hide", got {true_means!r}')
        subject.mask_form = MaskForm(true_means, 2)
    return subject


def of_transformers(subject: Subject) -> bool:
    """Whether this is an attention module of Transformers, or made after one."""
    module = subject.module
    theirs = hasattr(module, "config") or type(module).__module__.startswith("transformers.")
    return module is not None and theirs and subject.positional[:1] == ["hidden_states"]


def _turns(D: int) -> Callable[[int, torch.dtype], tuple[Tensor, Tensor]]:
    """The cosines and sines (1, T, D) that Transformers hands to its attention."""

    def table(T: int, dtype: torch.dtype, start: int = 0) -> tuple[Tensor, Tensor]:
        frequencies = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = torch.arange(start, start + T, dtype=torch.float64)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)[None]  # (1, T, D)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    return table


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, T, D) turned as Transformers does: number i pairs with i + D/2."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]
