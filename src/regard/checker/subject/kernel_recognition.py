"""Which layout a function takes, judged by the names of its arguments. Running it verifies the guess."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from regard.checker.errors import CheckError
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import is_required, missing_argument, parameters_of
from regard.checker.subject.framework_layouts import InterfaceLayout, MaskInterfaceLayout, ModLayout
from regard.checker.subject.kernel_layouts import KernelLayout, TensorLayout

_OPTIONS = {"causal", "window", "softcap", "scale", "lse", "mask", "dropout", "training", "weights", "sinks"}
_OPTIONS |= {"splits", "left window", "right window"}
_MODS = (("b", "batch", "batch_idx"), ("h", "head", "head_idx"), ("q_idx", "q", "query_idx", "q_index"))


_MEANINGS, _MASK_MEANINGS = map(vocabulary.meanings, ("kernels", "masks"))


def recognize_layouts(
    function: Callable[..., Any], init: dict[str, Any]
) -> tuple[list[KernelLayout], dict[str, str]] | None:
    """Return the layouts that a function may take, likeliest first, and its options by their meaning.

    None if it takes plain tensors. `init` are the arguments that the caller gave.
    """
    parameters = parameters_of(function)
    order = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if (mod := _mod(order)) is not None:
        return [mod], {}
    # Every mask function of Transformers takes these two.
    if "mask_function" in order and "kv_length" in order:
        names = _by_meaning(order, _MASK_MEANINGS)
        _refuse_unknown(function, {*names.values(), *init})
        asked = {"causal": "mask_function", "mask": "mask_function", "padding": names.get("padding", "")}
        return [MaskInterfaceLayout(names)], {m: name for m, name in asked.items() if name}
    names = _by_meaning(order, _MEANINGS)
    layouts = _candidates(names, parameters, order)
    if not layouts:
        return None
    given = [*order, *_read_from_keywords(function, parameters)]
    options: dict[str, str] = {}
    for name in given:
        meaning = _MEANINGS.get(name) or vocabulary.argument(name)
        if meaning in _OPTIONS and name not in init:
            options.setdefault(meaning, name)
    scale = options.get("scale")
    if scale is not None and (
        scale not in parameters or parameters[scale].default is inspect.Parameter.empty
    ):
        layouts = [replace(layout, names=layout.names | {"scale": scale}) for layout in layouts]
    _refuse_unknown(function, {*layouts[0].names.values(), *options.values(), *init})
    return layouts, options


def _read_from_keywords(function: Callable[..., Any], parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names that a function takes out of its `**kwargs`, read from its source text.

    A sink logit that it takes from the module it is called with is one of them.
    """
    rest = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    try:
        source = inspect.getsource(function) if rest is not None else ""
    except (OSError, TypeError):
        return []
    names: list[str] = re.findall(rf"\b{rest}(?:\.get\(|\.pop\(|\[)\s*[\"'](\w+)", source)
    # Transformers hands the sink logits of gpt-oss over as `s_aux`.
    sinks = ["s_aux"] if "module.sinks" in source else []
    return [name for name in names if vocabulary.argument(name) != "weights"] + sinks


def _by_meaning(order: list[str], meanings: dict[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in order:
        if name in meanings:
            names.setdefault(meanings[name], name)
    return names


def _mod(order: list[str]) -> ModLayout | None:
    """Return the layout of a FlexAttention mod, if the arguments are those of one."""
    scores = len(order) == 5 and order[0] in ("score", "scores", "s")
    places = order[1:] if scores else order
    if len(places) != 4 or not places[3].startswith(("kv", "k")):
        return None
    # The fourth name was looked at above.
    if any(name not in known for name, known in zip(places, _MODS, strict=False)):
        return None
    return ModLayout(scores=scores)


def _candidates(
    names: dict[str, str], parameters: dict[str, inspect.Parameter], order: list[str]
) -> list[KernelLayout]:
    """Return the layouts that fit the names, likeliest first."""
    # Transformers passes the module that calls first.
    if order[:1] == ["module"] and {"query", "key", "value"} <= names.keys():
        scale = {"scale": "scaling"} if "scaling" in order else {}
        return [InterfaceLayout(names | scale)]
    has_inputs = {"query", "key", "value"} <= names.keys()
    packs_queries = "query starts" in names and is_required(parameters[names["query starts"]])
    packs_keys = "key starts" in names and is_required(parameters[names["key starts"]])
    if "page table" in names and has_inputs and not (packs_queries and packs_keys):
        optional = not is_required(parameters[names["page table"]])
        forms = (("packed", False),) if packs_queries else _QUERY_FORMS
        return _cached(names, forms, optional=optional)
    if "query starts" in names and (has_inputs or "qkv" in names or {"query", "kv"} <= names.keys()):
        return [TensorLayout(names)]
    if has_inputs and ("cache" in names["key"] or _CACHE_LENGTHS.search(names.get("lengths", ""))):
        return _cached(names, _QUERY_FORMS)
    return []


def _cached(
    names: dict[str, str], forms: tuple[tuple[str, bool], ...], *, optional: bool = False
) -> list[KernelLayout]:
    orders = itertools.product(("SG", "GS"), forms)
    return [TensorLayout(names, queries, keys, single, optional) for keys, (queries, single) in orders]


# Lengths of this name belong to a cache. `lengths` beside q, k and v may mean padding.
_CACHE_LENGTHS = re.compile(r"^(context|cache)_(len|length|seqlen)s$|^seqused_k$")
# Several queries come before one, so that code that takes several is tried on several.
_QUERY_FORMS = (("BTHD", False), ("BHTD", False), ("BHD", False), ("BTHD", True), ("BHTD", True))


def _refuse_unknown(function: Callable[..., Any], known: set[str]) -> None:
    """Raise `CheckError` for a required argument whose meaning is not known."""
    for name, parameter in parameters_of(function).items():
        if is_required(parameter) and name not in known:
            raise CheckError(missing_argument(getattr(function, "__name__", "the kernel"), name))
