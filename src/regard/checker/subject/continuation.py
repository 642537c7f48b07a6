"""How a module continues a sequence: the usual interfaces of a cache of keys and values.

A cache is an argument that goes in and comes out, an object that the module fills, or state of the module
itself, which a method creates and resets. Names are only a first guess: a `Continuation` counts once it has
run, and once the state of the module or of the cache was seen to change.
"""

from __future__ import annotations

import contextlib
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
from regard.checker.subject.source import RESETS, SETS_UP, cache_parts, own_methods, step_methods
from regard.checker.subject.subject import Subject

# Continues a sequence: step(module, x, state) -> (output, state). The first call gets state=None.
Step = Callable[[nn.Module, Tensor, Any], tuple[Any, Any]]
Keywords = Callable[[int, Tensor], dict[str, Any]]  # of a step, by its first position and its input
MakeCache = Callable[[nn.Module, Tensor], Any]  # for a new sequence that begins with this input

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


def continuations(subject: Subject) -> Iterator[Continuation]:
    """Yield the ways in which a module may continue a sequence, most plausible first."""
    module, names = subject.module, subject.arguments
    assert module is not None
    for method in step_methods(module):  # `module.step(x)` or `module.step(x, cache)`
        parameters = list(inspect.signature(getattr(module, method)).parameters)[1:]
        own = {vocabulary.argument(name) or "": (name,) for name in parameters}
        for i, at in enumerate(_at(own.get("start", (None,))[0])[:2]):
            for first in _first_caches(module, own["cache"][0], method) if "cache" in own else (_begin,):
                yield _continue(subject, method, at, own.get("cache", ()), first, certain=i == 0)
    if "cache" in names:
        on = {names["use_cache"]: True} if "use_cache" in names else {}
        for keywords, certain in _positions(subject):
            for first in _first_caches(module, names["cache"]):
                yield _continue(subject, "forward", keywords, (names["cache"],), first, on, certain=certain)
    parameters = list(inspect.signature(module.forward).parameters)
    pair = tuple(name for pattern in _PAIR for name in filter(pattern.search, parameters))
    if len(pair) == 2:  # `y, k, v = module(x, past_k=k, past_v=v)`
        yield _continue(subject, "forward", lambda start, x: {}, pair, lambda module, x: (None, None))
    switch = next((n for n, v in vars(module).items() if v is False and _SWITCH.search(n)), None)
    flags = inspect.signature(module.forward).parameters.values()
    on = {p.name: True for p in flags if p.default is False and "cache" in p.name}
    installations = list(_installations(module))
    # Without an installation it would only seem to ignore its cache.
    kept = bool(cache_parts(module)) or any(map(SETS_UP.search, own_methods(module)))
    keeps = installations or ([_begin] if on or switch or kept else [])
    # gpt-fast passes a mask over all slots of its cache.
    slots = int(SIZES["length"]) if installations else None
    for first in keeps:
        for keywords, certain in _positions(subject, slots):
            yield _continue(subject, "forward", keywords, (), first, on, switch, certain=certain)


_PAIR = [
    re.compile(rf"^(past|prev|cached?|old)_({role})$|^({role})_(cache|past)$")
    for role in ("k|keys?", "v|values?")
]


def _continue(
    subject: Subject,
    method: str,
    keywords: Keywords,
    names: tuple[str, ...],
    first: MakeCache,
    extra: dict[str, Any] | None = None,
    switch: str | None = None,
    *,
    certain: bool = True,
) -> Continuation:
    """Return a continuation: `y, cache = module(x, cache=…)`, `y, k, v = module(x, k=…, v=…)` or `module(x)`.

    `names` are the arguments that take the cache, none if the module keeps it; `first` makes it. `extra` are
    further arguments, and `switch` an attribute to set.
    """
    extra = extra or {}

    def step(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            state = first(module, x), 0
            if switch is not None:
                setattr(module, switch, True)
        cache, start = state
        # The arguments that are always passed belong to the forward pass.
        fixed = make_values(subject.extra, Question("step", x, x, x)) if method == "forward" else {}
        held = dict(zip(names, cache if len(names) == 2 else (cache,), strict=True)) if names else {}
        # Called as a module, its hooks run too.
        call = module if method == "forward" else getattr(module, method)
        result = call(x, **{**fixed, **keywords(start, x), **held, **extra})
        y, returned = _split_result(result, x, len(names) == 2)
        if names and returned is None and (cache is None or (isinstance(cache, dict | list) and not cache)):
            raise ValueError("no cache was returned, and none was filled")
        return y, (cache if returned is None or not names else returned, start + x.shape[1])

    shown = [f"{name}=…" for name in names] or [f"{name}={value}" for name, value in extra.items()]
    if not names and "start" in subject.arguments and method == "forward":
        shown.append(f"{subject.arguments['start']}=…")
    single = _ONE_TOKEN.search(method) is not None
    explicit = bool(shown or switch or method != "forward")
    return Continuation(f"{method}({', '.join(['x', *shown])})", step, certain, single, explicit)


def _installations(module: nn.Module) -> Iterator[MakeCache]:
    """Yield functions that put a cache where a module keeps None for one, as gpt-fast's `setup_caches` does.

    How many heads the cache has is not known: it may be of the queries or of the groups.
    """
    names = [name for name, value in vars(module).items() if value is None and vocabulary.is_cache(name)]
    kinds = [kind for kind in _cache_kinds(module) if hasattr(kind, "update")]
    numbers = [v for v in vars(module).values() if type(v) is int and v > 0]
    heads = vocabulary.sizes(vars(module)).get("heads", int(SIZES["heads"]))
    counts = sorted({heads, *(n for n in numbers if heads % n == 0)}, reverse=True)

    def install(name: str, kind: type, count: int, module: nn.Module, x: Tensor) -> None:
        _begin(module, x)
        setattr(module, name, _construct(kind, module, x, heads=count))

    yield from (partial(install, *place) for place in itertools.product(names, kinds, counts))


# Llama's own code takes a number, gpt-fast positions (T,), and Transformers positions (B, T).
_POSITIONS: tuple[Callable[[int, Tensor], Any], ...] = (
    lambda start, x: start,
    lambda start, x: torch.arange(start, start + x.shape[1]),
    lambda start, x: torch.arange(start, start + x.shape[1]).expand(x.shape[0], -1),
)


def _positions(subject: Subject, slots: int | None = None) -> Iterator[tuple[Keywords, bool]]:
    """Yield the keywords of a step: the position in each usual form, and a causal mask if one is needed.

    The second item says whether they are certain. A mask has a column for each key so far, or `slots`
    columns, for a cache that is read whole.
    """
    names, tables = subject.arguments, subject.tables

    def keywords(at: Keywords, columns: int | None, start: int, x: Tensor) -> dict[str, Any]:
        T, S = x.shape[1], start + x.shape[1]
        passed = at(start, x)
        if columns is not None:
            allowed = torch.ones(T, columns or S, dtype=torch.bool).tril(S - T)
            passed[names["mask"]] = subject.mask_form.encode(allowed, x.dtype, x.shape[0])
        return passed if tables is None else passed | tables.make(T, x.dtype, start)

    takes_causal = "mask" in names and subject.mask_form.rank > 1  # a mask (B, S) shows padding only
    for columns in (None, slots or 0) if takes_causal else (None,):
        for i, at in enumerate(_at(names.get("start"))):
            yield partial(keywords, at, columns), columns is None and i == 0


def _at(name: str | None) -> list[Keywords]:
    """Return the functions that pass a step its first position, in each usual form, by this argument."""

    def at(form: Callable[[int, Tensor], Any], start: int, x: Tensor) -> dict[str, Any]:
        return {} if name is None else {name: form(start, x)}

    return [partial(at, form) for form in (_POSITIONS if name is not None else _POSITIONS[:1])]


def _first_caches(module: nn.Module, name: str, method: str = "forward") -> Iterator[MakeCache]:
    """Yield functions that make the cache of a new sequence, for an argument of a method."""
    kind = annotated_class(getattr(type(module), method), name)
    kinds = [kind] if kind is not None and kind not in (tuple, list, dict, Tensor) else []
    yield from (partial(_construct, kind) for kind in dict.fromkeys([*kinds, *_cache_kinds(module)]))

    def set_up(method: str, module: nn.Module, x: Tensor) -> Any:
        return _call_with_sizes(getattr(module, method), module, x)

    yield from (partial(set_up, method) for method in filter(SETS_UP.search, own_methods(module)))
    yield from (lambda module, x: None, lambda module, x: {}, lambda module, x: [])


def _cache_kinds(module: nn.Module) -> list[type]:
    """Return the classes of caches that stand in the module's file."""
    home = type(module).__module__
    things = vars(sys.modules[home]).items() if home in sys.modules else ()
    own = [(name, x) for name, x in things if isinstance(x, type) and x.__module__ == home]
    return [x for name, x in own if "cache" in name.lower()]


def _begin(module: nn.Module, x: Tensor) -> None:
    """Create or reset the caches inside a module, if it has methods for that."""
    methods = own_methods(module)
    # A cache must exist before it can be emptied.
    for name in [*filter(SETS_UP.search, methods), *filter(RESETS.search, methods)]:
        with contextlib.suppress(TypeError, ValueError, RuntimeError, AttributeError):
            _call_with_sizes(getattr(module, name), module, x)


def _split_result(result: Any, x: Tensor, pair: bool) -> tuple[Tensor, Any]:
    """Return the output of a step and the cache that it returned, or None if there is none.

    A pair of caches is the last two of three or more.
    """
    y, *rest = result if isinstance(result, tuple | list) else (result,)
    if not isinstance(y, Tensor):
        raise ValueError("the step did not return an output first")
    if y.ndim != x.ndim or y.shape[:2] != x.shape[:2]:
        raise ValueError(f"a step on {tuple(x.shape)} returned {tuple(y.shape)}")
    if pair:
        if len(rest) < 2:
            raise ValueError("no cache was returned")
        return y, tuple(rest[-2:])
    rest = [part for part in rest if part is not None]
    tensors = [part for part in rest if isinstance(part, Tensor)]
    caches = [part for part in rest if not isinstance(part, Tensor | float | int)]
    # Weights are (B, H, T, S). Keys and values in one tensor have an axis of 2 before that, or no heads.
    caches = caches or [part for part in tensors if part.ndim >= 5]
    caches = caches or [part for part in tensors if part.ndim == 4 and len(part) == 2]
    if not caches and len(rest) == len(tensors) == 2:
        caches = [tuple(rest)]
    return y, caches[-1] if caches else None


def _construct(kind: type, module: nn.Module, x: Tensor, **sizes: int) -> Any:
    """Construct a cache: sizes that are not stated are guessed from the names of its arguments."""
    if not inspect.signature(kind).parameters:
        return kind()
    made = kind(**constructor_arguments(kind, {}, _sizes(module, x) | sizes))
    return made.to(x.dtype) if isinstance(made, nn.Module) else made


def _call_with_sizes(method: Callable[..., Any], module: nn.Module, x: Tensor) -> Any:
    """Call a method of a module, with sizes guessed from the names of its arguments."""
    passed: dict[str, Any] = {}
    sizes = _sizes(module, x)
    for name, parameter in inspect.signature(method).parameters.items():
        # `max_batch_size` of a cache is the batch of the step.
        meaning = vocabulary.size(name.removeprefix("max_")) or vocabulary.size(name)
        if name in ("dtype", "device"):
            passed[name] = getattr(x, name)
        elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            if meaning not in sizes:
                raise ValueError(f"`{name}` cannot be guessed")
            passed[name] = sizes[meaning]
    return method(**passed)


def _sizes(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return the sizes of a cache for an input."""
    named = {meaning: x for meaning, x in vocabulary.sizes(vars(module)).items() if type(x) is int}
    return SIZES | named | {"batch": x.shape[0], "max_batch": x.shape[0], "length": SIZES["length"]}
