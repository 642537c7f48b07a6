"""How a module continues a sequence: the usual interfaces of a cache of keys and values.

A cache is an argument that goes in and comes out, an object that the module fills, or state of the module
itself, which a method creates and resets. Names are only a first guess: a `Continuation` counts once it has
run, and once the state of the module or of the cache was seen to change.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.oracle.question import Question
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import make_values
from regard.checker.subject.construct import SIZES, annotated_class, constructor_arguments
from regard.checker.subject.subject import Subject

# Continues a sequence: step(module, x, state) -> (output, state). The first call gets state=None.
Step = Callable[[nn.Module, Tensor, Any], tuple[Any, Any]]

# LLMs-from-scratch has reset_cache.
_RESET = re.compile(
    r"^(reset|clear|flush|empty|free)(_(kv|the|inference))?(_?(cache|caches|state|states|past|memory))?$"
)
# gpt-fast has setup_caches, LitGPT build_kv_cache, and flash-attn allocate_inference_cache.
_SETUP = re.compile(r"^(setup|init|allocate|create|enable|make|build|alloc)_?(\w*_)?(cache|caches|kvcache)$")
_METHOD = re.compile(
    r"^((forward|attend|decode|generate|infer|inference|run)_)?"
    r"(step|decode|cached|with_cache|incremental|one|next|token|streaming|inference)(_(step|token|forward))?$"
)
_ONE_TOKEN = re.compile(r"step|decode|one|next|token")
_SWITCH = re.compile(r"^(use|enable|with)_?(kv_?)?cach(e|ing)$|^(kv_)?caching$|^decode_?(mode)?$")


@dataclass(frozen=True)
class Continuation:
    """One way in which a module may continue a sequence."""

    call: str  # how the module is called, for the report
    step: Step
    certain: bool = True  # whether nothing but the cache was guessed: no mask, no form of a position
    single: bool = False  # whether it takes one token at a time
    explicit: bool = True  # whether an argument or a method asks for the cache


def has_cache(subject: Subject) -> str:
    """Name the argument, attribute or method of a module that looks like a cache; "" if there is none."""
    module = subject.module
    if module is None:
        return ""
    if "cache" in subject.arguments or "use_cache" in subject.arguments:
        return f"argument `{subject.arguments.get('cache') or subject.arguments['use_cache']}`"
    for path, part in module.named_modules():
        names = [*vars(part), *part._buffers, *(name for name, _ in part.named_children())]
        if name := next((name for name in names if vocabulary.is_cache(name)), ""):
            return f"attribute `{f'{path}.{name}'.lstrip('.')}`"
    methods = [name for name in _methods(module) if _RESET.search(name) or _SETUP.search(name)]
    # `reset` and `clear` alone may be about anything.
    methods = [name for name in methods if name not in ("reset", "clear")] or _steps(module)
    return f"method `{methods[0]}`" if methods else ""


def continuations(subject: Subject) -> Iterator[Continuation]:
    """Yield the ways in which a module may continue a sequence, most plausible first."""
    module, names = subject.module, subject.arguments
    assert module is not None
    for name in _steps(module):
        yield from _of_method(subject, name)
    if "cache" in names:
        extra = {names["use_cache"]: True} if "use_cache" in names else {}
        for keywords, certain in _positions(subject):
            for first in _first_caches(subject, names["cache"]):
                yield _passing_cache(subject, "forward", names["cache"], first, keywords, extra, certain)
    if (pair := _pair_of_caches(module)) is not None:
        yield _passing_pair(subject, *pair)
    switch = next((n for n, v in vars(module).items() if v is False and _SWITCH.search(n)), None)
    flags = inspect.signature(module.forward).parameters.values()
    on = {p.name: True for p in flags if p.default is False and "cache" in p.name}
    installations = list(_installations(module))
    for install in installations:
        # gpt-fast passes a mask over all slots of its cache.
        for keywords, certain in _positions(subject, int(SIZES["length"])):
            yield _cache_inside(subject, "forward", keywords, on, switch, certain, install)
    if installations:
        return  # without its cache it would only seem to ignore it
    for keywords, certain in _positions(subject) if on or switch or _keeps_cache(module) else ():
        yield _cache_inside(subject, "forward", keywords, on, switch, certain)


def _installations(module: nn.Module) -> Iterator[Callable[[nn.Module, Tensor], None]]:
    """Yield functions that put a cache where a module keeps None for one, as gpt-fast's `setup_caches` does.

    How many heads the cache has is not known: it may be of the queries or of the groups.
    """
    names = [name for name, value in vars(module).items() if value is None and vocabulary.is_cache(name)]
    kinds = [kind for kind in _cache_kinds(module) if hasattr(kind, "update")]
    numbers = [v for v in vars(module).values() if type(v) is int and v > 0]
    stated = [v for n, v in vars(module).items() if vocabulary.size(n) == "heads" and type(v) is int]
    heads = stated[0] if stated else int(SIZES["heads"])
    counts = sorted({heads, *(n for n in numbers if heads % n == 0)}, reverse=True)
    for name, kind, count in itertools.product(names, kinds, counts):
        # Bound as defaults: a closure would see the last values of the loop.
        def install(
            module: nn.Module, x: Tensor, name: str = name, kind: type = kind, count: int = count
        ) -> None:
            setattr(module, name, _construct(kind, module, x, heads=count))

        yield install


def _keeps_cache(module: nn.Module) -> bool:
    """Return whether a module has an attribute or a buffer for a cache, or a method that creates one."""
    names = [name for part in module.modules() for name in (*vars(part), *part._buffers)]
    return any(map(vocabulary.is_cache, names)) or any(map(_SETUP.search, _methods(module)))


Keywords = Callable[[int, Tensor], dict[str, Any]]  # of a step, by its first position and its input


def _positions(subject: Subject, length: int | None = None) -> Iterator[tuple[Keywords, bool]]:
    """Yield the keywords of a step: the position in each usual form, and a causal mask if one is needed.

    The second item says whether they are certain. A mask has a column for each key so far, or `length`
    columns, for a cache that is read whole.
    """
    names = subject.arguments
    # Llama's own code takes a number, gpt-fast positions (T,), and Transformers positions (B, T).
    forms: list[Callable[[int, Tensor], Any]] = [
        lambda start, x: start,
        lambda start, x: torch.arange(start, start + x.shape[1]),
        lambda start, x: torch.arange(start, start + x.shape[1]).expand(x.shape[0], -1),
    ]

    def keywords(form: Callable[[int, Tensor], Any] | None, masked: bool) -> Keywords:
        def make(start: int, x: Tensor) -> dict[str, Any]:
            T, S = x.shape[1], start + x.shape[1]
            passed = {} if form is None else {names["start"]: form(start, x)}
            if masked:
                allowed = torch.ones(T, length or S, dtype=torch.bool).tril(S - T)
                passed[names["mask"]] = subject.mask_form.encode(allowed, x.dtype, x.shape[0])
            if subject.tables is not None:
                passed |= subject.tables.make(T, x.dtype, start)
            return passed

        return make

    takes_causal = "mask" in names and subject.mask_form.rank > 1  # a mask (B, S) shows padding only
    for masked in (False, True) if takes_causal else (False,):
        if "start" not in names:
            yield keywords(None, masked), not masked
        else:
            for i, form in enumerate(forms):
                yield keywords(form, masked), not masked and i == 0


def _first_caches(subject: Subject, name: str) -> Iterator[Callable[[nn.Module, Tensor], Any]]:
    """Yield functions that make the cache of a new sequence."""
    module = subject.module
    assert module is not None
    kind = annotated_class(type(module).forward, name)
    kinds = [kind] if kind is not None and kind not in (tuple, list, dict, Tensor) else []
    for kind in dict.fromkeys([*kinds, *_cache_kinds(module)]):
        yield partial(_construct, kind)
    for method in (m for m in _methods(module) if _SETUP.search(m)):
        yield partial(_call_method, method)
    yield lambda module, x: None
    yield lambda module, x: {}
    yield lambda module, x: []


def _cache_kinds(module: nn.Module) -> list[type]:
    """Return the classes of caches that stand in the module's file."""
    home = sys.modules.get(type(module).__module__)
    return [
        value
        for name, value in (vars(home) if home is not None else {}).items()
        if isinstance(value, type) and "cache" in name.lower() and value.__module__ == type(module).__module__
    ]


def _passing_cache(
    subject: Subject,
    method: str,
    name: str,
    first: Callable[[nn.Module, Tensor], Any],
    keywords: Keywords,
    extra: dict[str, Any],
    certain: bool,
) -> Continuation:
    """Return a continuation for `y, cache = module(x, cache=cache)`, or one in which the cache is filled."""

    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        cache, start = (first(module, x), 0) if state is None else state
        fixed = _fixed(subject, x) if method == "forward" else {}
        result = _function(module, method)(x, **{**fixed, **keywords(start, x), name: cache, **extra})
        y, returned = _split_result(result, x)
        if returned is None and (cache is None or (isinstance(cache, dict | list) and not cache)):
            raise ValueError("no cache was returned, and none was filled")
        return y, (cache if returned is None else returned, start + x.shape[1])

    return Continuation(f"{method}(x, {name}=…)", step, certain, _ONE_TOKEN.search(method) is not None)


def _fixed(subject: Subject, x: Tensor) -> dict[str, Any]:
    """Return the arguments that are always passed, for a step on x."""
    return make_values(subject.extra, Question("step", x, x, x))


def _passing_pair(subject: Subject, key: str, value: str) -> Continuation:
    """Return a continuation for `y, k, v = module(x, past_k=k, past_v=v)`."""

    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        k, v = (None, None) if state is None else state
        result = module(x, **{**_fixed(subject, x), key: k, value: v})
        if not isinstance(result, tuple) or len(result) < 3:
            raise ValueError("no cache was returned")
        return result[0], tuple(result[-2:])

    return Continuation(f"forward(x, {key}=…, {value}=…)", step)


def _cache_inside(
    subject: Subject,
    method: str,
    keywords: Keywords,
    extra: dict[str, Any],
    switch: str | None = None,
    certain: bool = True,
    install: Callable[[nn.Module, Tensor], None] | None = None,
) -> Continuation:
    """Return a continuation for a cache that the module keeps. A method, or `install`, creates it."""

    def step(module: nn.Module, x: Tensor, start: Any) -> tuple[Tensor, Any]:
        if start is None:
            start = 0
            begin_sequence(module, x)
            if install is not None:
                install(module, x)
            if switch is not None:
                setattr(module, switch, True)
        fixed = _fixed(subject, x) if method == "forward" else {}
        result = _function(module, method)(x, **{**fixed, **keywords(start, x), **extra})
        return _split_result(result, x)[0], start + x.shape[1]

    shown = [f"{name}={value}" for name, value in extra.items()]
    if "start" in subject.arguments and method == "forward":
        shown.append(f"{subject.arguments['start']}=…")
    single = _ONE_TOKEN.search(method) is not None
    explicit = bool(shown or switch or method != "forward")
    return Continuation(f"{method}({', '.join(['x', *shown])})", step, certain, single, explicit)


def _of_method(subject: Subject, method: str) -> Iterator[Continuation]:
    """Yield the continuations by a separate method, `module.step(x)` or `module.step(x, cache)`."""
    parameters = list(inspect.signature(getattr(subject.module, method)).parameters)[1:]
    meanings = {vocabulary.argument(name): name for name in parameters}
    forms: list[Keywords] = [lambda start, x: {}]
    if (name := meanings.get("start")) is not None:
        forms = [
            lambda start, x: {name: start},
            lambda start, x: {name: torch.arange(start, start + x.shape[1])},
        ]
    for i, form in enumerate(forms):
        if (cache := meanings.get("cache")) is not None:
            for first in _first_caches(subject, cache):
                yield _passing_cache(subject, method, cache, first, form, {}, i == 0)
        else:
            yield _cache_inside(subject, method, form, {}, certain=i == 0)


def begin_sequence(module: nn.Module, x: Tensor) -> bool:
    """Reset or create the caches inside a module; returns whether it has a method for that."""
    methods = _methods(module)
    setups = [name for name in methods if _SETUP.search(name)]
    resets = [name for name in methods if _RESET.search(name)]
    done = False
    # A cache must exist before it can be emptied.
    for name in setups + resets:
        try:
            _call_with_sizes(getattr(module, name), module, x)
            done = True
        except (TypeError, ValueError, RuntimeError, AttributeError):
            continue
    return done


def _methods(module: nn.Module) -> list[str]:
    """Return the public methods that the author of a module wrote."""
    own = [kind for kind in type(module).__mro__ if kind not in nn.Module.__mro__]
    return [name for kind in own for name, value in vars(kind).items() if inspect.isfunction(value)]


def _steps(module: nn.Module) -> list[str]:
    """Return the methods that continue a sequence by their name."""
    names = [name for name in _methods(module) if _METHOD.search(name.strip("_"))]
    return [name for name in names if len(inspect.signature(getattr(module, name)).parameters) > 0]


def _function(module: nn.Module, method: str) -> Callable[..., Any]:
    function: Callable[..., Any] = module if method == "forward" else getattr(module, method)
    return function


def _pair_of_caches(module: nn.Module) -> tuple[str, str] | None:
    """Return the names of two arguments for the keys and the values of a cache."""
    names = list(inspect.signature(module.forward).parameters)
    found = []
    for letter, word in (("k", "key"), ("v", "value")):
        pattern = re.compile(
            rf"^(past|prev|cached?|old)_({letter}|{word}s?)$|^({letter}|{word}s?)_(cache|past)$"
        )
        found += [name for name in names if pattern.search(name)][:1]
    return (found[0], found[1]) if len(found) == 2 else None


def _split_result(result: Any, x: Tensor) -> tuple[Tensor, Any]:
    """Return the output of a step and the cache that it returned, or None if there is none."""
    if isinstance(result, Tensor):
        return _as_sequence(result, x), None
    if not isinstance(result, tuple | list) or not isinstance(result[0], Tensor):
        raise ValueError("the step did not return an output first")
    rest = [part for part in result[1:] if part is not None]
    caches = [part for part in rest if not isinstance(part, Tensor | float | int)]
    # Weights are (B, H, T, S). Keys and values in one tensor have an axis of 2 before that, or no heads.
    caches = caches or [part for part in rest if isinstance(part, Tensor) and part.ndim >= 5]
    caches = caches or [
        part for part in rest if isinstance(part, Tensor) and part.ndim == 4 and len(part) == 2
    ]
    if not caches and len(rest) == 2 and all(isinstance(part, Tensor) for part in rest):
        caches = [tuple(rest)]
    return _as_sequence(result[0], x), caches[-1] if caches else None


def _as_sequence(y: Tensor, x: Tensor) -> Tensor:
    if y.ndim != x.ndim or y.shape[:2] != x.shape[:2]:
        raise ValueError(f"a step on {tuple(x.shape)} returned {tuple(y.shape)}")
    return y


def _construct(kind: type, module: nn.Module, x: Tensor, **sizes: int) -> Any:
    """Construct a cache: sizes that are not stated are guessed from the names of its arguments."""
    if not inspect.signature(kind).parameters:
        return kind()
    made = kind(**constructor_arguments(kind, {}, _sizes(module, x) | sizes))
    return made.to(x.dtype) if isinstance(made, nn.Module) else made


def _call_method(name: str, module: nn.Module, x: Tensor) -> Any:
    return _call_with_sizes(getattr(module, name), module, x)


def _call_with_sizes(method: Callable[..., Any], module: nn.Module, x: Tensor) -> Any:
    """Call a method of a module, with sizes guessed from the names of its arguments."""
    passed: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        # `max_batch_size` of a cache is the batch of the step.
        meaning = vocabulary.size(name.removeprefix("max_")) or vocabulary.size(name)
        if name == "dtype":
            passed[name] = x.dtype
        elif name == "device":
            passed[name] = x.device
        elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            if meaning not in _sizes(module, x):
                raise ValueError(f"`{name}` cannot be guessed")
            passed[name] = _sizes(module, x)[meaning]
    return method(**passed)


def _sizes(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return the sizes of a cache for an input."""
    named = {
        meaning: value
        for name, value in vars(module).items()
        if (meaning := vocabulary.size(name)) and isinstance(value, int) and not isinstance(value, bool)
    }
    batch = {"batch": x.shape[0], "max_batch": x.shape[0]}
    return SIZES | named | batch | {"length": SIZES["length"]}
