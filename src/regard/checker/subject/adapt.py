"""From the argument of `check` to a `Subject`: signatures are read, classes constructed, modules copied.

This file knows how code is called. `subject` calls it, `construct` constructs instances.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.subject import vocabulary
from regard.checker.subject.construct import SIZES, build
from regard.checker.subject.subject import MaskForm, Subject, arguments_of, copy_module

# Values for required arguments, by their meaning, that ask for plain attention.
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


def adapt(thing: Any, init: dict[str, Any], true_means: str | None = None) -> Subject:
    """Return a subject for a function, a module or a class of modules.

    Arguments:
        thing: the attention to check.
        init: constructor arguments of a class, or keyword arguments of a function.
        true_means: "look" or "hide", the meaning of True in boolean masks; None if not stated.

    Raises `CheckError` if the thing cannot be called.
    """
    if isinstance(thing, type):
        return _of_class(thing, init, true_means)
    if isinstance(thing, nn.Module):
        if init:
            raise CheckError(
                f"{type(thing).__name__} is built already, so its constructor arguments ({', '.join(init)}) "
                f"cannot be used: pass the class, check({type(thing).__name__}, …)"
            )
        return _of_module(thing, None, {}, true_means)
    if callable(thing):
        return _of_function(thing, init, true_means)
    raise CheckError(
        f"expected a function, an nn.Module or a class of nn.Module, got {type(thing).__name__}: "
        "pass the attention itself"
    )


def _of_class(cls: type, init: dict[str, Any], true_means: str | None) -> Subject:
    if not issubclass(cls, nn.Module):
        instance = cls() if not inspect.signature(cls).parameters else None
        if instance is None or not callable(instance):
            raise CheckError(
                f"{cls.__name__} is a class, but not an nn.Module: pass a function that calls it"
            )
        return _of_function(instance, init, true_means, name=cls.__name__)
    module = build(cls, init)
    return _of_module(module, cls, init, true_means)


def _of_module(
    module: nn.Module, cls: type[nn.Module] | None, init: dict[str, Any], true_means: str | None
) -> Subject:
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.Linear | nn.Embedding):
        raise CheckError(f"{type(module).__name__} is not an attention: pass the part of the model that is")
    name = type(module).__name__
    own, lists = _own_copy(module)
    positional, inputs, arguments, extra = _read_signature(module, name, {})
    bare = not any(True for _ in own.parameters())
    if inputs == "qkv" and bare:
        layout = "BHTD"  # a function in the form of a module: `understand` finds the shapes that it takes
    else:
        layout = "TBC" if getattr(module, "batch_first", True) is False else "BTC"
    subject = Subject(
        name, own, own, cls, init, arguments, positional, inputs, layout, extra=extra, plain_lists=lists
    )
    return _with_conventions(subject, true_means)


def _of_function(
    function: Callable[..., Any], init: dict[str, Any], true_means: str | None, name: str | None = None
) -> Subject:
    name = name or getattr(function, "__name__", None) or type(function).__name__
    name = "the function" if name == "<lambda>" else name
    if isinstance(function, functools.partial):
        name = getattr(function.func, "__name__", name)
    positional, inputs, arguments, extra = _read_signature(function, name, init)
    layout = "BTC" if inputs != "qkv" or "heads" in arguments else "BHTD"
    if "heads" in arguments and arguments["heads"] not in extra:
        extra[arguments["heads"]] = SIZES["heads"]
    subject = Subject(name, function, None, None, init, arguments, positional, inputs, layout, extra=extra)
    return _with_conventions(subject, true_means)


def _own_copy(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """Copy a module with new random weights, since zero biases and tiny weights could hide a mistake.

    Returns the copy in eval mode, and the names of its plain lists of modules.
    """
    own = copy_module(module)
    lists = _register_lists(own)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for path, parameter in own.named_parameters():
            if parameter.dtype.is_floating_point:
                fresh = torch.randn(parameter.shape, dtype=torch.float64)
                norm = parameter.ndim == 1 and "norm" in path.lower() and not path.endswith("bias")
                spread = 0.5 if parameter.ndim < 2 else max(parameter.shape[-2:]) ** -0.5
                parameter.copy_(1.0 + 0.2 * fresh if norm else spread * fresh)
    return own.eval(), lists


def _register_lists(module: nn.Module) -> tuple[str, ...]:
    """Turn plain lists of modules into `nn.ModuleList`, so that the check can go on; returns their names."""
    names = []
    for path, part in list(module.named_modules()):
        for name, value in list(vars(part).items()):
            if isinstance(value, list | tuple) and value and all(isinstance(x, nn.Module) for x in value):
                delattr(part, name)
                setattr(part, name, nn.ModuleList(value))
                names.append(f"{path}.{name}".lstrip("."))
    return tuple(names)


def _read_signature(
    target: Callable[..., Any], name: str, init: dict[str, Any]
) -> tuple[list[str], str, dict[str, str], dict[str, Any]]:
    """Read a signature.

    Returns the names of the tensors that come first, the kind of inputs ("x", "context" or "qkv"), the names
    of the arguments by their meaning, and the arguments that are always passed.
    """
    parameters = {
        key: p for key, p in arguments_of(target).items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    order = list(parameters)
    if not order:
        raise CheckError(f"{name} takes no arguments; expected (q, k, v) or a sequence x")
    required = [
        key for key in order if parameters[key].default is inspect.Parameter.empty and key not in init
    ]
    meanings = {key: vocabulary.argument(key) for key in order}
    inputs, positional = _first_tensors(order, required, meanings)
    arguments: dict[str, str] = {}
    extra = {key: init[key] for key in init if key in parameters}
    unknown = [key for key in init if key not in parameters]
    if unknown:
        raise CheckError(f"{name} takes no `{unknown[0]}`; it takes {', '.join(order)}")
    for key in order:
        meaning = meanings[key]
        if key in positional or key in init:
            continue
        if meaning is not None and meaning not in ("query", "key", "value", "x"):
            arguments.setdefault(meaning, key)
        if key in required and meaning in _NEUTRAL:
            extra[key] = _NEUTRAL[meaning]
        elif key in required and meaning not in ("heads", "rotary"):
            call = ", ".join([*positional, f"{key}=…"])
            raise CheckError(
                f"{name} needs `{key}`, whose meaning cannot be guessed: pass a function that supplies it, "
                f"such as lambda {', '.join(positional)}: {name[:1].lower() + name[1:]}({call})"
            )
    return positional, inputs, arguments, extra


def _first_tensors(
    order: list[str], required: list[str], meanings: dict[str, str | None]
) -> tuple[str, list[str]]:
    """Return the kind of inputs ("qkv", "context" or "x") and the names of their parameters."""
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
    """Set the conventions of PyTorch's and Transformers' own modules, or those that the caller stated."""
    if isinstance(subject.module, nn.MultiheadAttention):
        subject.arguments.pop("causal", None)  # there only a hint that goes with a mask
        subject.mask_form = MaskForm("hide", 2)
    elif subject.is_transformers:
        subject.mask_form = MaskForm("added", 4)
        if "rotary" in subject.arguments:
            subject.rotary = _rotary_table(int(getattr(subject.module, "head_dim", 0)) or SIZES["head_width"])
        subject.arguments.pop("causal", None)
    elif true_means is not None:
        if true_means not in ("look", "hide"):
            raise ValueError(f'true_means: expected "look" or "hide", got {true_means!r}')
        subject.mask_form = MaskForm(true_means, 2)
    return subject


def _rotary_table(D: int) -> Callable[[int, torch.dtype], tuple[Tensor, Tensor]]:
    """Return a function that makes the cosines and sines, (1, T, D) each, that Transformers passes."""

    def table(T: int, dtype: torch.dtype, start: int = 0) -> tuple[Tensor, Tensor]:
        frequencies = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = torch.arange(start, start + T, dtype=torch.float64)[:, None] * frequencies
        angles = torch.cat([angles, angles], -1)[None]  # (1, T, D)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    return table
