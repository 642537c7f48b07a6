"""Evidence as plain data, for `capture.json` and for the other ranks of a run. What is read is checked."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from regard.recorder.certificates.certificate import Evidence, ShardEvidence
from regard.recorder.rank_group import RankGroup
from regard.support.files import check_type, parse_object, shorten

if TYPE_CHECKING:
    from regard.recorder.result import Capture

NOT_FINITE = ("inf", "-inf", "nan")  # as JSON has them: it has none of these numbers
TYPES = {"float": float, "int": int, "bool": bool, "str": str}


def describe_evidence(evidence: Evidence) -> dict[str, Any]:
    """Describe evidence as data that JSON can hold."""
    return {name: _json_number(x) for name, x in dataclasses.asdict(evidence).items()}


def _json_number(value: Any) -> Any:
    """Return infinities and NaN as text, since JSON has neither; anything else as it is."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_evidence(described: dict[str, Any]) -> Evidence:
    """The evidence that was described, whose fields have the types that the class declares."""
    # The annotations of a dataclass are text under `from __future__ import annotations`.
    types = {field.name: str(field.type).split(" | ") for field in dataclasses.fields(Evidence)}
    if unknown := sorted(described.keys() - types):
        raise ValueError(f"evidence: expected the fields {', '.join(types)}, got {shorten(unknown)}")
    values: dict[str, Any] = {}
    for name, value in described.items():
        kind, *optional = types[name]
        if kind == "float" and value in NOT_FINITE:
            values[name] = float(value)
        elif kind == "tuple[int, ...]":
            values[name] = tuple(check_type(name, n, int) for n in check_type(name, value, list))
        else:
            values[name] = None if value is None and optional else check_type(name, value, TYPES[kind])
    try:
        return Evidence(**values)
    except TypeError as error:  # a required field is missing
        raise ValueError(f"evidence: {error}") from None


def exchange_evidence(seen: Capture, ranks: RankGroup) -> tuple[ShardEvidence, ...]:
    """Tell the other ranks the evidence of this one, and return theirs. All ranks call it."""
    layers = [
        {
            "key": layer.key,
            "heads": layer.heads,
            "rows": None if layer.placement is None else layer.placement.rows,
            "evidence": describe_evidence(layer.evidence),
        }
        for layer in seen.layers
    ]
    texts = ranks.exchange(json.dumps({"layers": layers}))
    return tuple(
        ShardEvidence(
            layer["key"],
            tuple(layer["heads"]),
            None if layer["rows"] is None else tuple((first, stop) for first, stop in layer["rows"]),
            read_evidence(layer["evidence"]),
        )
        for rank, text in enumerate(texts)
        if rank != ranks.rank
        for layer in parse_object(text)["layers"]
    )
