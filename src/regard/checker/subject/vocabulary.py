"""The names that authors use: signatures, and how arguments, sizes and projections are recognised.

A name is only a first guess, which is verified by running the code (see `understand` and `projections`).
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))


def meanings(kind: str) -> dict[str, str]:
    """Return the meanings of the names of one kind, a table of `names.toml`."""
    return {name: meaning for meaning, names in _NAMES[kind].items() for name in names.split()}


_ARGUMENT_OF, _SIZE_OF, _PROJECTION_OF = map(meanings, ("arguments", "sizes", "projections"))


def argument(name: str) -> str | None:
    """Return the meaning of an argument of a forward pass, "mask" for `attn_mask`; None if it is unknown."""
    # As it is written first: `H` is a height, and `h` a hidden state.
    return _ARGUMENT_OF.get(name) or _ARGUMENT_OF.get(name.lower().strip("_"))


def size(name: str) -> str | None:
    """Return the meaning of a constructor's argument or a module's attribute, "heads" for `n_head`."""
    return _SIZE_OF.get(name) or _SIZE_OF.get(name.lower().strip("_"))


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of a class's constructor; none if they cannot be read."""
    try:
        return dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return {}


def is_required(parameter: inspect.Parameter) -> bool:
    """Return whether an argument has no default."""
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable


def missing_argument(name: str, key: str) -> str:
    """Say how to pass an argument of a call that cannot be guessed."""
    return (
        f"{name} needs `{key}` in its call, which cannot be guessed: pass it with --call {key}=…, or "
        f"check({name}, call={{{key!r}: …}}); a tensor by its shape, as {key}=randn(B,T)"
    )


def arguments_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of a module's forward pass."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    three = {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")}
    # This function is written in C and has no signature.
    if target is F.scaled_dot_product_attention:
        optional = {
            "attn_mask": None,
            "dropout_p": 0.0,
            "is_causal": False,
            "scale": None,
            "enable_gqa": False,
        }
        return three | {name: inspect.Parameter(name, kind, default=x) for name, x in optional.items()}
    function = target.forward if isinstance(target, nn.Module) else target
    function = getattr(function, "_init_fn", function)  # of an operator made by torch.library.custom_op
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return three
    # A wrapper of (*args, **kwargs) says nothing; three tensors are likeliest.
    named = any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    return parameters if named or not parameters else three


def by_meaning(names: Iterable[str], meaning: Callable[[str], str | None]) -> dict[str, str]:
    """Return names by their meaning: the first of each."""
    found: dict[str, str] = {}
    for name in names:
        if (known := meaning(name)) is not None:
            found.setdefault(known, name)
    return found


def sizes(named: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers and switches among attributes or arguments by their meaning; the first of each."""
    numbers = [name for name, value in named.items() if isinstance(value, int | float)]
    return {meaning: named[name] for meaning, name in by_meaning(numbers, size).items()}


# Names of the output's projection that say no more than “a projection”: in `query.proj` another part decides.
_ANY_PROJECTION = ("proj", "projection", "dense", "fc")


def projection(path: str) -> str | None:
    """Return the projection that a parameter or layer is named after: query, key, value, out, qkv or kv."""
    parts = [re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", part).lower() for part in path.split(".")]
    unnamed = None
    # The last part with a meaning decides: `query_block.0.key.weight` is a key.
    for part in reversed([part for part in parts if part not in ("weight", "bias") and not part.isdigit()]):
        bare = re.sub(r"_(weight|linear|layer|lin|fc|w|matrix|net|map|transform)$", "", part).strip("_")
        if (fused_or_out := _PROJECTION_OF.get(part) or _PROJECTION_OF.get(bare)) is not None:
            if part not in _ANY_PROJECTION:
                return fused_or_out
            unnamed = unnamed or fused_or_out
        word = re.sub(r"^(w|b|c|to|linear|fc|proj|lin|weight|weights|layer)_?(?=[qkv])", "", bare)
        word = re.sub(r"_?(proj|projection|s|_states)$", "", word)
        for role in ("query", "key", "value"):
            # “querie” is what is left of `queries` without its s.
            if word in (role[0], role, {"query": "querie"}.get(role, role)):
                return role
    return unnamed


_CACHE = re.compile(
    r"(^|_)(cache|caches|cached|past|kvcache)(_|$)|(^|_)(prev|old|stored)_(k|v|keys|values)$", re.I
)


_TABLE = re.compile(r"cos|sin|freq|rope|rotary|pos|mask|bias|seq|len", re.I)


def is_cache(name: str) -> bool:
    """Return whether an attribute is named like a cache of keys and values: `cache_k`, `past_keys`.

    A table that is computed once, `cos_cached`, is not one.
    """
    return _CACHE.search(name) is not None and _TABLE.search(name) is None


_CAUSAL = r"(?:\bcausal|\bautoregress|\bmasked (?:self|multi|attention)|\blook[- ]?ahead)"
_NOT_CAUSAL = r"\b(?:non|not|un|without|no)[ -]?(?:a )?(?:causal|masked)"
# "It isn't autoregressive", "it has no look-ahead mask", "causal masking is not used".
_DENIED = re.compile(
    rf"(?:n['’]t|\b(?:no|not|non|never|neither|nor|without|cannot|unlike))\b.*{_CAUSAL}"
    rf"|{_CAUSAL}\w*(?:\W+\w+){{0,2}}?\W+(?:is|are|was|were|does|do)(?:n['’]t|\W+(?:not|never))\b"
)
_ELSEWHERE = re.compile(r"\b(?:see|unlike|instead|rather|cannot)\b")  # the sentence speaks of other code


# Nothing else tells a model that predicts the next token from an encoder that forgot its mask. XLNet's model
# with this name reads both ways, unless it is told otherwise by perm_mask.
_NEXT_TOKEN = re.compile(
    r"^(?!XLNet).*(GPT|CausalLM|LMHeadModel|LanguageModel|Transducer|Decoder(?!.*Encoder))|^LM$"
)


def predicts_next_token(name: str) -> bool:
    """Return whether the name of a class is that of a model that predicts the next token."""
    return _NEXT_TOKEN.search(name) is not None


def says_causal(name: str) -> bool | None:
    """Return whether the name of a class or function calls it causal; None if it does not say."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).lower().replace("_", " ")
    if re.search(rf"{_NOT_CAUSAL}|bidirectional|\bcross", words):
        return False
    return True if re.search(_CAUSAL, words) else None


def docstring_says_causal(doc: str) -> bool | None:
    """Return whether prose calls the attention causal; None if it does not say.

    Every sentence is read alone: "Causal. Cannot be used for bidirectional encoders." says causal.
    """
    text = re.sub(r"\s*\n(?!\s*\n)\s*", " ", doc.lower().replace("_", " "))  # lines of one paragraph
    sentences = [s for s in re.split(r"[.;:()\n](?:\s|$)|[()]", text) if not _ELSEWHERE.search(s)]
    if any(re.search(_CAUSAL, s) and not _DENIED.search(s) for s in sentences):
        return True
    return False if any(re.search(rf"{_NOT_CAUSAL}|\bbidirectional", s) for s in sentences) else None
