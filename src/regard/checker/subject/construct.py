"""Constructing an instance of a class.

Arguments are those that the caller gave, and guesses from names for the others. The guessed sizes differ from
one another, so that no two axes can be confused by chance. A required argument that cannot be guessed is
named in a `CheckError`.
"""

from __future__ import annotations

import importlib
import inspect
import tomllib
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from regard.checker.errors import CheckError, error_line
from regard.checker.subject import vocabulary
from regard.checker.subject.vocabulary import parameters_of

_GUESSES = tomllib.loads(Path(__file__).with_name("sizes.toml").read_text(encoding="utf-8"))
SIZES: dict[str, Any] = _GUESSES["sizes"]
# Widths for code that needs many channels, such as a group norm of 32 groups.
WIDE: dict[str, Any] = _GUESSES["wide"]
_DEEPEST = 12  # layers: a default up to this is kept, since one layer may differ from the others
# By meaning: values that stay at any default, or at None, and those that are small in a configuration.
_KEPT: list[str] = _GUESSES["kept"]
_OPTIONAL: list[str] = _GUESSES["optional"]
_SMALL: list[str] = _GUESSES["small"]
_CONFIGS: list[str] = _GUESSES["configs"]


def build(
    cls: type[nn.Module], init: dict[str, Any], sizes: dict[str, Any] | None = None, seed: int = 0
) -> nn.Module:
    """Construct an instance of `cls`.

    Arguments:
        cls: the class.
        init: the constructor arguments that the caller gave.
        sizes: changes to the guessed `SIZES` of the others.
        seed: from which its weights are drawn.

    Raises `CheckError` if an argument is missing or the constructor fails.
    """
    first_error: CheckError | None = None
    for more in (SIZES, SIZES | WIDE):
        try:
            return _build(
                cls, constructor_arguments(cls, init, _consistent(more, init) | (sizes or {})), seed
            )
        except CheckError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _build(cls: type[nn.Module], arguments: dict[str, Any], seed: int) -> nn.Module:
    try:
        # The weights do not depend on what was drawn before, and nothing drawn later depends on them.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(**arguments)
    except Exception as error:
        if isinstance(error, UnknownFieldError):
            missing, read = error.field, f"reads `config.{error.field}`"
            raise CheckError(_missing(cls, missing, read)) from error
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())[:160]
        raise CheckError(
            f"{cls.__name__}({shown}) raised {error_line(error)}; "
            f"pass its arguments: --with name=value, or check({cls.__name__}, init={{…}})"
        ) from error


def choose_implementation(module: nn.Module) -> None:
    """Name an implementation in a layer of Transformers that no model has built: else none is observed.

    That of gpt-oss has no SDPA, for its sinks.
    """
    parts = list(module.modules())
    for part in parts if not any(hasattr(part, "sinks") for part in parts) else ():
        config: Any = getattr(part, "config", None)
        if getattr(config, "_attn_implementation", "") is None:
            config._attn_implementation = "sdpa"


def _missing(cls: type, name: str, wants: str) -> str:
    """Say how to give what cannot be guessed."""
    return (
        f"{cls.__name__} {wants}, which cannot be guessed: pass it with --with {name}=…, "
        f"or check({cls.__name__}, init={{{name!r}: …}})"
    )


def _consistent(sizes: dict[str, Any], init: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes to guess with, so that the width of a head fits what the caller gave."""
    stated = {meaning: x for meaning, x in vocabulary.sizes(init).items() if type(x) is int}
    width, heads = stated.get("width", sizes["width"]), stated.get("heads", sizes["heads"])
    if not {"width", "heads"} & stated.keys() or width % heads:
        return sizes
    groups = sizes["groups"] if heads % sizes["groups"] == 0 else 1
    return sizes | {"width": width, "out_width": width, "head_width": width // heads, "groups": groups}


def constructor_arguments(cls: type, init: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with which to construct `cls`."""
    every = parameters_of(cls)
    named = {n: p for n, p in every.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in every.values())
    arguments: dict[str, Any] = {}
    configured = False
    for name, parameter in named.items():
        if name in init:
            arguments[name] = init[name]
        elif name in _CONFIGS:
            arguments[name], configured = _config(cls, name, init, sizes), True
        elif (guess := _guess(cls, name, parameter, sizes)) is not None:
            arguments[name] = guess
        elif parameter.default is parameter.empty:
            raise CheckError(_missing(cls, name, f"needs `{name}`"))
    unknown = [] if configured else [name for name in init if name not in named]
    if unknown and not takes_any:
        accepted = ", ".join(name for name in every if name != "self")
        raise CheckError(f"{cls.__name__} takes no `{unknown[0]}`; it takes {accepted or 'no arguments'}")
    return arguments | {name: init[name] for name in unknown}


def _guess(cls: type, name: str, parameter: inspect.Parameter, sizes: dict[str, Any]) -> Any:
    """Guess an argument's value from its name; None leaves it at its default.

    A default of None, a boolean, a tuple or a module is the author's decision, and is kept.
    """
    default = parameter.default
    meaning = vocabulary.size(name)
    if meaning is None or meaning == "causal" or (default is None and meaning in _OPTIONAL):
        return None
    if (meaning in _KEPT and default is not parameter.empty) or _is_own_depth(meaning, default):
        return None
    if default not in (None, parameter.empty) and (type(default) not in (int, float)):
        return None
    kind = annotated_class(cls, name)
    if kind is not None and issubclass(kind, nn.Module):
        return nn.Dropout(sizes["dropout"]) if meaning == "dropout" else None
    return sizes.get(meaning)


def _is_own_depth(meaning: str | None, default: Any) -> bool:
    return meaning == "layers" and type(default) is int and 0 < default <= _DEEPEST


def depth_left_out(cls: type, init: dict[str, Any]) -> str:
    """Return how many layers `build` gives a model that has more, or may: "2 of 24 layers"; else ""."""
    small, configs = SIZES["layers"], [name for name in parameters_of(cls) if name in _CONFIGS]
    kinds = [_config_class(cls, name) for name in configs]
    for owner in [cls, *(kind for kind in kinds if kind is not None)]:
        for name, parameter in parameters_of(owner).items():
            default = parameter.default
            if vocabulary.size(name) != "layers" or name in init or _is_own_depth("layers", default):
                continue
            known = type(default) is int and default > small
            return f"{small} of {default} layers" if known else f"{small} layers"
    return f"{small} layers" if None in kinds else ""


def _config_class(cls: type, name: str) -> type | None:
    """Return the class of a constructor's configuration; None if it is not known."""
    home, _, file = cls.__module__.rpartition(".")
    # That of a Transformers attention often has no annotation.
    if home.startswith("transformers.models.") and file.startswith("modeling_"):
        module = importlib.import_module(f"{home}.{file.replace('modeling_', 'configuration_', 1)}")
        for kind in vars(module).values():
            own = isinstance(kind, type) and kind.__module__ == module.__name__
            if own and kind.__name__.endswith("Config"):
                return cast(type, kind)
    return annotated_class(cls, name)


def _config(cls: type, name: str, init: dict[str, Any], sizes: dict[str, Any]) -> Any:
    """Return a small configuration for an argument called `config`, of its annotated class if it has one."""
    kind = _config_class(cls, name)
    if kind is None or issubclass(kind, dict) or not (is_dataclass(kind) or parameters_of(kind)):
        return GuessedConfig(sizes, init)
    small: dict[str, Any] = {}
    for name, parameter in parameters_of(kind).items():
        meaning, own = vocabulary.size(name), parameter.default
        if meaning in _SMALL and not isinstance(own, bool) and not _is_own_depth(meaning, own):
            small[name] = sizes[meaning]
        if name in init:
            small[name] = init[name]
    return kind(**small)


class UnknownFieldError(AttributeError):
    """A field of a guessed configuration that cannot be guessed. An AttributeError, for `hasattr`."""

    def __init__(self, field: str) -> None:
        super().__init__(f"config.{field} cannot be guessed: pass it with --with {field}=…")
        self.field = field


class GuessedConfig(SimpleNamespace):
    """A configuration whose attributes are guessed from their names: `config.n_head` is a number of heads."""

    def __init__(self, sizes: dict[str, Any] | None = None, init: dict[str, Any] | None = None) -> None:
        super().__init__(**(init or {}))
        self.__dict__["_sizes"] = sizes or {}  # `copy` makes one without arguments, then fills it

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for methods such as __deepcopy__.
        if name.startswith("__"):
            raise AttributeError(name)
        meaning, sizes = vocabulary.size(name), self.__dict__["_sizes"]
        if meaning in sizes:
            return sizes[meaning]
        if name.endswith("bias") or meaning == "causal":
            return True
        if name in ("transformer", "attention", "attn", "model"):
            return self  # a part of the configuration
        if name == "model_type":
            return None  # minGPT's GPT takes either this or the sizes
        raise UnknownFieldError(name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, as a dictionary does."""
        return getattr(self, name, default)

    def __repr__(self) -> str:
        return "a configuration"


def annotated_class(function: Callable[..., Any], argument: str) -> type | None:
    """Return the class in an argument's annotation, ignoring `None`; None if there is no class.

    The arguments of a class are those of its constructor.
    """
    try:
        function = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        hint = typing.get_type_hints(function).get(argument)
    except Exception:  # the annotations cannot be resolved
        return None
    choices = [c for c in typing.get_args(hint) if c is not type(None)] or [hint]
    return choices[0] if isinstance(choices[0], type) else None
