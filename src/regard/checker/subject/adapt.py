"""From the argument of `check` to a `Subject`: signatures are read, classes constructed, modules copied.

This file knows how code is called. `subject` calls it, `construct` constructs instances.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import MaskForm, RotaryTables, copy_module
from regard.checker.subject.construct import SIZES, build
from regard.checker.subject.kernel_recognition import recognize_layouts
from regard.checker.subject.source import FunctionState
from regard.checker.subject.subject import Subject
from regard.checker.subject.vocabulary import arguments_of, is_required, missing_argument, parameters_of

# Values for required arguments, by their meaning, that ask for plain attention.
_NEUTRAL: dict[str, Any] = dict.fromkeys(("mask", "padding", "context_padding", "bias", "cache", "context"))
_NEUTRAL |= {"use_cache": False, "start": 0, "causal": False, "dropout": 0.0, "training": False}
_NEUTRAL |= {"weights": True, "lse": True, "average": False}
# Meanings of required arguments whose values depend on the question: `Subject` supplies them.
_SUPPLIED = ("heads", "rotary", "cos", "sin", "head_width", "rows", "columns", "sinks", "scale")


def adapt(
    thing: Any,
    init: dict[str, Any],
    true_means: str | None = None,
    call: dict[str, Any] | None = None,
    sizes: dict[str, Any] | None = None,
) -> Subject:
    """Return a subject for a function, a module or a class of modules.

    Arguments:
        thing: the attention to check.
        init: constructor arguments of a class, or keyword arguments of a function.
        true_means: "look" or "hide", the meaning of True in boolean masks; None if not stated.
        call: arguments of the forward pass, or of the function.
        sizes: changes to the sizes that are guessed for a class's constructor.

    Raises `CheckError` if the thing cannot be called.
    """
    call = call or {}
    if isinstance(thing, nn.Module) and init:
        raise CheckError(
            f"{type(thing).__name__} is built already, so its constructor arguments ({', '.join(init)}) "
            f"cannot be used: pass the class, check({type(thing).__name__}, …)"
        )
    if isinstance(thing, type) and issubclass(thing, nn.Module):
        subject = _of_module(build(thing, init, sizes), thing, init, call)
    elif isinstance(thing, nn.Module):
        subject = _of_module(thing, None, {}, call)
    elif isinstance(thing, type):
        instance = thing() if not inspect.signature(thing).parameters else None
        if not callable(instance):
            raise CheckError(
                f"{thing.__name__} is a class, but not an nn.Module: pass a function that calls it"
            )
        subject = _of_function(instance, init | call)
    elif callable(thing):
        subject = _of_function(thing, init | call)
    else:
        raise CheckError(
            f"expected a function, an nn.Module or a class of nn.Module, got {type(thing).__name__}: "
            "pass the attention itself"
        )
    return subject if subject.kernel_layouts else _with_conventions(subject, true_means)


def add_promises(thing: Any, init: dict[str, Any], promises: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class or function, completed by what the caller promised of it.

    `promises` are options of `check` such as `window=3`. A name that both sides know goes to both; a class
    also gets them under a name of the same meaning (`heads=8` as `num_heads`).
    """
    completed = dict(init)
    parameters = parameters_of(thing) if callable(thing) else {}
    for meaning, value in promises.items():
        for name in parameters if value is not None else ():
            same = name == meaning or vocabulary.size(name) == meaning
            if same if isinstance(thing, type) else name == meaning == "heads":
                completed.setdefault(name, value)
    return completed


def _materialise(module: nn.Module, call: dict[str, Any]) -> nn.Module:
    """Give lazy layers their width: run a copy of the module once, on inputs of the guessed width."""
    if not any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        return module
    positional, _, _, extra = _read_signature(module, type(module).__name__, call)
    lazy_module, module = module, copy.deepcopy(module)
    inputs = {name: torch.zeros(2, 3, SIZES["width"]) for name in positional}
    try:
        with torch.no_grad():
            module(**inputs, **extra)
    except Exception as error:
        raise CheckError(
            f"{type(module).__name__} has lazy layers and could not be run on x (2, 3, {SIZES['width']}): "
            f"{type(error).__name__}: {error}; run it once on your own inputs, then pass the instance"
        ) from error
    for part, before in zip(module.modules(), lazy_module.modules(), strict=True):
        for attribute in [name for name, value in vars(part).items() if isinstance(value, Tensor)]:
            setattr(part, attribute, getattr(before, attribute, None))  # not what this call left behind
    return module


def _of_module(
    module: nn.Module, cls: type[nn.Module] | None, init: dict[str, Any], call: dict[str, Any]
) -> Subject:
    name = type(module).__name__
    if isinstance(module, nn.Sequential | nn.ModuleList | nn.Linear | nn.Embedding):
        raise CheckError(f"{name} is not an attention: pass the part of the model that is")
    own = copy_module(_materialise(module, call))
    lists = _register_lists(own)
    # Zero biases and tiny weights could hide a mistake.
    draw_weights(own)
    positional, inputs, arguments, extra = _read_signature(module, name, call)
    layout = "TBC" if _is_time_first(module) else "BTC"
    if inputs == "qkv" and not any(True for _ in own.parameters()):
        layout = "BHTD"  # a function in the form of a module: `understand` finds the shapes that it takes
    subject = Subject(name, own.eval(), own, cls, init, arguments, positional, inputs, layout, extra=extra)
    subject.by_name, subject.call, subject.plain_lists = _needs_names(module, positional), call, lists
    subject.head_width = _declared_head_width(own) if layout == "BHTD" else None
    return subject


def _of_function(function: Callable[..., Any], init: dict[str, Any]) -> Subject:
    named = function.func if isinstance(function, functools.partial) else function
    name = getattr(named, "__name__", None) or type(function).__name__
    name = "the function" if name == "<lambda>" else name
    if (recognized := recognize_layouts(function, init)) is not None:
        layouts, options = recognized
        neutral = _NEUTRAL | {"softcap": 0.0, "window": (-1, -1)}  # as in FlashAttention
        parameters = arguments_of(function)
        required = {m: n for m, n in options.items() if n in parameters and is_required(parameters[n])}
        extra = init | {n: neutral[m] for m, n in required.items() if m in neutral}
        subject = Subject(
            name, function, None, None, init, options, ["q", "k", "v"], "qkv", "BHTD", extra=extra
        )
        # Transformers' interface hands the lowest number over under this name.
        if options.get("mask") == "attention_mask":
            subject.mask_form = MaskForm("lowest", 4)
        subject.kernel_layouts, subject.state = tuple(layouts), FunctionState(function)
        return subject
    positional, inputs, arguments, extra = _read_signature(function, name, init)
    layout = "BTC" if inputs != "qkv" or "heads" in arguments else "BHTD"
    if "heads" in arguments:
        extra.setdefault(arguments["heads"], SIZES["heads"])
    subject = Subject(name, function, None, None, init, arguments, positional, inputs, layout, extra=extra)
    # Whether it computes with NumPy and not with PyTorch, judging by the modules it names.
    modules = {getattr(x, "__name__", "").partition(".")[0] for x in _globals_read(function).values()}
    subject.by_name, subject.arrays = (
        _needs_names(function, positional),
        modules & {"numpy", "torch"} == {"numpy"},
    )
    subject.call, subject.state = init, FunctionState(function)
    stated = {vocabulary.argument(key): value for key, value in init.items() if type(value) is int}
    subject.head_width = stated.get("head_width")
    return subject


_TIME_FIRST = re.compile(
    r"""
    \b(T|L|\w*seq\w*|\w*len\w*|time\w*)\s*,\s*  # a length, then a batch, then anything
    (B|N|b|bs|bsz|batch|batch_size|bz)\s*(,\s*\*?\w+\s*){0,2}
    =\s*\w+\.(shape|size\(\))""",
    re.VERBOSE,
)


def _is_time_first(module: nn.Module) -> bool:
    """Return whether a module says that it takes (T, B, C): by `batch_first`, or by its names of sizes."""
    # nn.MultiheadAttention has this attribute, and (T, B, C) by default.
    stated = getattr(module, "batch_first", None)
    if isinstance(stated, bool):
        return not stated
    try:
        return _TIME_FIRST.search(inspect.getsource(type(module).forward)) is not None
    except (OSError, TypeError):
        return False


def _needs_names(target: Callable[..., Any], positional: list[str]) -> bool:
    """Return whether the tensors must be passed by name: they are not the first arguments, in this order."""
    parameters = arguments_of(target)
    keyword_only = any(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in positional)
    return keyword_only or list(parameters)[: len(positional)] != positional


def _globals_read(function: Any) -> dict[str, Any]:
    """Return the globals that a function's code names."""
    code, values = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    return {name: values.get(name) for name in code.co_names} if code else {}


def _declared_head_width(module: nn.Module) -> int | None:
    """Return the width of a head that a module without weights is for, if it says it."""
    for name, value in {**_globals_read(type(module).forward), **vars(module)}.items():
        meaning = vocabulary.size(name)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = float(value)
        if type(value) not in (int, float) or value <= 0:
            continue
        width = float(value) if meaning == "head_width" else 0.0
        if meaning == "temperature" or vocabulary.argument(name) == "scale":
            # A temperature is √D, a scale 1/√D.
            width = float(value**2 if value > 1 else value**-2)
        if 1 < round(width) <= 1024 and abs(width - round(width)) < 1e-6 * width:
            return round(width)
    return None


def draw_weights(module: nn.Module) -> None:
    """Give a module new random weights."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for path, parameter in module.named_parameters():
            if parameter.dtype.is_floating_point:
                fresh = torch.randn(parameter.shape, dtype=torch.float64)
                norm = parameter.ndim == 1 and "norm" in path.lower() and not path.endswith("bias")
                # Such weights keep the size of their inputs: scores are neither flat nor extreme.
                spread = 0.5 if parameter.ndim < 2 else max(parameter.shape) ** -0.5
                parameter.copy_(1.0 + 0.2 * fresh if norm else spread * fresh)


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
    every = arguments_of(target)
    parameters = {key: p for key, p in every.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    if not parameters:
        raise CheckError(f"{name} takes no arguments; expected (q, k, v) or a sequence x")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in every.values())
    if unknown := [key for key in init if key not in parameters and not takes_any]:
        raise CheckError(f"{name} takes no `{unknown[0]}`; it takes {', '.join(parameters)}")
    free = [key for key in parameters if key not in init]
    required = [key for key in free if is_required(parameters[key])]
    meanings = {key: vocabulary.argument(key) for key in parameters}
    inputs, positional = _first_tensors(free, required, meanings)
    options = [key for key in free if key not in positional]
    arguments = vocabulary.by_meaning(options, meanings.get)
    arguments = {m: key for m, key in arguments.items() if m not in ("query", "key", "value", "x")}
    context_padding = arguments.pop("context_padding", None)
    if context_padding is not None and inputs != "x":  # without the context, its mask hides nothing
        arguments["padding"] = context_padding
    extra = dict(init)
    for key in options:
        meaning = meanings[key]
        if meaning == "dropout" and parameters[key].default is None:
            extra[key] = None  # a module, or nothing
        elif key in required and meaning in _NEUTRAL:
            extra[key] = _NEUTRAL[meaning]
        elif key in required and meaning not in _SUPPLIED:
            raise CheckError(missing_argument(name, key))
    return positional, inputs, arguments, extra


def _first_tensors(
    order: list[str], required: list[str], meanings: dict[str, str | None]
) -> tuple[str, list[str]]:
    """Return the kind of inputs ("qkv", "context" or "x") and their parameters, queries first."""
    # Of two arguments with one meaning the first counts, as the last one written.
    named = {meanings[key]: key for key in reversed(order)}
    if {"query", "key", "value"} <= named.keys():
        return "qkv", [named[role] for role in ("query", "key", "value")]
    three = order[:3]
    if len(required) >= 3 and all(
        meanings[key] in (None, "query", "key", "value", "x", "context") for key in three
    ):
        return "qkv", three
    first = next((key for key in order if meanings[key] in ("x", "query")), order[0])
    others = [key for key in required if key != first and meanings[key] in ("context", "x", "key", "value")]
    if others:
        return "context", [first, others[0]]
    return "x", [first]


def _with_conventions(subject: Subject, true_means: str | None) -> Subject:
    """Set the conventions of PyTorch's and Transformers' own modules, or those that the caller stated."""
    if true_means not in (None, "look", "hide"):
        raise ValueError(f'true_means: expected "look" or "hide", got {true_means!r}')
    if isinstance(subject.module, nn.MultiheadAttention | nn.TransformerEncoderLayer):
        subject.arguments.pop("causal", None)  # there only a hint that goes with a mask
        subject.mask_form = MaskForm("hide", 2)
        return subject
    if subject.is_transformers:
        subject.mask_form = MaskForm("added", 4)
        if "rotary" in subject.arguments:
            width = int(getattr(subject.module, "head_dim", 0)) or SIZES["head_width"]
            names = (subject.arguments["rotary"],)
            subject.tables = RotaryTables(names, width, layout="BTD", usual=True)
        # The mask that the model passes decides.
        subject.arguments.pop("causal", None)
        return subject
    target = subject.target
    things = (type(target), type(target).forward) if isinstance(target, nn.Module) else (target,)
    prose = "\n".join(str(thing.__doc__ or "") for thing in things)
    if true_means is None and _TRUE_HIDES.search(prose):
        true_means = "hide"
    elif true_means is None and "padding" in subject.arguments and _TRUE_KEEPS.search(prose):
        true_means = "look"
    if true_means is not None:
        subject.mask_form, subject.mask_stated = MaskForm(true_means, 2), True
        subject.padding_means = true_means
    return subject


# A docstring that states a convention of masks: "True indicates masking".
_TRUE_HIDES = re.compile(
    r"\bTrue`*\s*(indicates|means|marks|=|is|are|for|:)?\s*(masked|masking|hidden|padding|padded|ignored)\b"
)
_TRUE_KEEPS = re.compile(
    r"\bTrue`*\s*(indicates|means|marks|=|is|are|for|:)\s*(to )?"
    r"(keep|kept|attend|visible|valid|(real )?tokens?)\b"
)
