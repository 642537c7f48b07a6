"""Making an instance of somebody's class: constructor arguments that were given, guessed from their names, or
missing, and then the answer says which.

The guessed sizes differ from one another, so that no two axes can be mistaken for each other by chance.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class CheckError(ValueError):
    """The thing could not be checked: one line that says why and what to do."""


SIZES: dict[str, Any] = {
    "width": 48,
    "out_width": 48,
    "context_width": 48,
    "heads": 4,
    "groups": 2,
    "head_width": 12,
    "length": 16,
    "dropout": 0.5,  # off wherever numbers are compared, and strong where dropout itself is looked at
    "window": 3,
    "softcap": 2.0,
    "layer": 0,
    "batch": 2,
}
_OPTIONAL = (
    "window",
    "softcap",
    "groups",
    "context_width",
    "head_width",
    "layer",
)  # left at a default of None


def build(cls: type[nn.Module], given: dict[str, Any], sizes: dict[str, Any] | None = None) -> nn.Module:
    """An instance of `cls`, with `given` arguments and guesses for the others; CheckError says what is
    missing."""
    sizes = SIZES | (sizes or {})
    arguments = constructor_arguments(cls, given, sizes)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return cls(**arguments)
    except Exception as error:
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())[:160]
        raise CheckError(
            f"{cls.__name__}({shown}) raised {type(error).__name__}: {_first_line(error)}; "
            f"give its arguments: --with name=value, or check({cls.__name__}, name=value)"
        ) from error


def constructor_arguments(cls: type, given: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments with which to build `cls`."""
    parameters = _parameters(cls)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    arguments: dict[str, Any] = {}
    used: set[str] = set()
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in given:
            arguments[name] = given[name]
            used.add(name)
        elif (config := _config(cls, name, parameter, given, sizes)) is not None:
            arguments[name] = config
            used.update(given)
        elif (guess := _guess(name, parameter, sizes)) is not None:
            arguments[name] = guess
        elif parameter.default is parameter.empty:
            raise CheckError(
                f"{cls.__name__} needs `{name}`, which cannot be guessed: give it with --with {name}=…, "
                f"or check({cls.__name__}, {name}=…)"
            )
    unknown = [name for name in given if name not in used]
    if unknown and takes_any:
        arguments.update({name: given[name] for name in unknown})
    elif unknown:
        known = ", ".join(name for name in parameters if name != "self")
        raise CheckError(f"{cls.__name__} takes no `{unknown[0]}`; it takes {known or 'no arguments'}")
    return arguments


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(cls).parameters)
    except (TypeError, ValueError):
        return {}


def _guess(name: str, parameter: inspect.Parameter, sizes: dict[str, Any]) -> Any:
    """A value for an argument by its name. A default that says "none" or "on/off" is the author's, and stays.
    A value for an argument by its name. A default that says "none" or "on/off" is the author's, and stays."""
    from regard.checker.subject.vocabulary import size

    default = parameter.default
    meaning = size(name)
    if meaning is None or isinstance(default, bool) or meaning == "causal":
        return None
    if default is None and meaning in _OPTIONAL:
        return None
    return sizes.get(meaning)


def _config(
    cls: type, name: str, parameter: inspect.Parameter, given: dict[str, Any], sizes: dict[str, Any]
) -> Any:
    """A small configuration for an argument called `config`, by its annotated class if it has one."""
    if name not in ("config", "cfg", "args", "conf", "hparams", "params", "model_args"):
        return None
    kind = parameter.annotation
    kind = _transformers_config(cls) or kind
    if isinstance(kind, type) and kind is not inspect.Parameter.empty and not issubclass(kind, dict):
        return _configured(kind, given, sizes)
    return Guessed(sizes, given)


def _transformers_config(cls: type) -> type | None:
    """The configuration class of an attention of Transformers, which often goes unannotated."""
    home, _, file = cls.__module__.rpartition(".")
    if not home.startswith("transformers.models.") or not file.startswith("modeling_"):
        return None
    module = importlib.import_module(f"{home}.{file.replace('modeling_', 'configuration_', 1)}")
    kinds = [k for k in vars(module).values() if isinstance(k, type) and k.__module__ == module.__name__]
    return next((k for k in kinds if k.__name__.endswith("Config")), None)


def _configured(kind: type, given: dict[str, Any], sizes: dict[str, Any]) -> Any:
    if not (is_dataclass(kind) or _parameters(kind)):
        return Guessed(sizes, given)
    from regard.checker.subject.vocabulary import size

    small: dict[str, Any] = {}
    for name, parameter in _parameters(kind).items():
        meaning = size(name)
        if name in given:
            small[name] = given[name]
        elif meaning in ("width", "heads", "groups", "length", "head_width", "dropout") and not isinstance(
            parameter.default, bool
        ):
            small[name] = sizes[meaning]
    return kind(**small)


class Guessed(SimpleNamespace):
    """A configuration that answers by the meaning of a name: `config.n_head` is a number of heads."""

    def __init__(self, sizes: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__(**given)
        self.__dict__["_sizes"] = sizes

    def __getattr__(self, name: str) -> Any:
        from regard.checker.subject.vocabulary import size

        if name.startswith("__"):
            raise AttributeError(name)
        meaning = size(name)
        if meaning in self.__dict__["_sizes"]:
            return self.__dict__["_sizes"][meaning]
        if name.endswith("bias") or meaning == "causal":
            return True
        raise AttributeError(f"config.{name} cannot be guessed: give it with --with {name}=…")


def annotated_class(function: Callable[..., Any], argument: str) -> type | None:
    """The class that an argument is annotated with, `None` aside."""
    try:
        hint = typing.get_type_hints(function).get(argument)
    except Exception:  # annotations that cannot be resolved tell nothing
        return None
    choices = [c for c in typing.get_args(hint) if c is not type(None)] or [hint]
    return choices[0] if isinstance(choices[0], type) else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]
