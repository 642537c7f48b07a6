"""Records as plain data, as JSON holds it: makes it, and reads it by the types of the records' fields.

A record is a dataclass or a NamedTuple. Its data is an object with its fields by name; that of a NamedTuple
may also be the list that JSON makes of one. Anyone may have written the data: a ValueError names the field
that is wrong, and what it should hold.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from regard.support.files import WORDS, check_type, shorten

NOT_FINITE = ("inf", "-inf", "nan")  # numbers that JSON has as text only


def to_plain(value: Any) -> Any:
    """Return a value as JSON can hold it: records as objects, infinities and NaN as text."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, dict):
        return {key: to_plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(x) for x in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class RecordField(NamedTuple):
    """A field of a record."""

    kind: Any
    is_required: bool


def read_record(kind: Any, data: Mapping[str, Any]) -> Any:
    """Read a record from the object of a file, to which later versions may add fields: they are left out."""
    known = _fields_of(kind)
    return _read_fields(kind, {name: value for name, value in data.items() if name in known})


def read_plain(kind: Any, value: Any, name: str) -> Any:
    """Read a value of a type: a type of JSON, a record, or lists, tuples and objects of them.

    `name` is what errors call the value. A field that a record does not have is an error here.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind in WORDS:
        is_text = kind is float and value in NOT_FINITE
        return float(value) if is_text else check_type(name, value, kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        kinds = [part for part in parts if part is not NoneType]
        return read_plain(next((x for x in kinds if type(value) is x), kinds[0]), value, name)
    if origin is list or (origin is tuple and parts[-1] is Ellipsis):
        return origin(read_plain(parts[0], x, name) for x in check_type(name, value, list))
    if origin is tuple:
        return tuple(read_plain(*pair, name) for pair in zip(parts, _listed(value, parts, name), strict=True))
    if origin is dict:
        of_key, of_value = parts
        items = check_type(name, value, dict).items()
        return {of_key(key): read_plain(of_value, x, f"{name}: {key}") for key, x in items}
    if issubclass(kind, dict):
        return kind(read_plain(kind.__orig_bases__[0], value, name))
    if issubclass(kind, tuple) and isinstance(value, list):
        value = dict(zip(_fields_of(kind), _listed(value, _fields_of(kind), name), strict=True))
    return _read_fields(kind, check_type(name, value, dict))


def _read_fields(kind: Any, data: Mapping[str, Any]) -> Any:
    fields = _fields_of(kind)
    if unknown := sorted(data.keys() - fields.keys()):
        raise ValueError(f"{kind.__name__}: expected the fields {', '.join(fields)}, got {shorten(unknown)}")
    if missing := [name for name, field in fields.items() if field.is_required and name not in data]:
        raise ValueError(f"{kind.__name__}: expected the field {missing[0]}, got none")
    return kind(**{name: read_plain(fields[name].kind, value, name) for name, value in data.items()})


def _listed(value: Any, expected: Any, name: str) -> list[Any]:
    values = check_type(name, value, list)
    if len(values) != len(expected):
        raise ValueError(f"{name}: expected {len(expected)} values, got {shorten(values)}")
    return values


@cache
def _fields_of(kind: Any) -> dict[str, RecordField]:
    types = get_type_hints(kind)
    parameters = inspect.signature(kind).parameters.values()
    return {x.name: RecordField(types[x.name], x.default is x.empty) for x in parameters}
