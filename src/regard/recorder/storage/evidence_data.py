"""Evidence as plain data, for `capture.json` and for the other ranks of a run. What is read is checked."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

from regard.recorder.certificates.certificate import Evidence, ShardEvidence
from regard.recorder.layer import shard_evidence
from regard.recorder.rank_group import RankGroup
from regard.support.files import parse_object
from regard.support.plain_data import read_plain

if TYPE_CHECKING:
    from regard.recorder.result import Capture


def describe_evidence(evidence: Evidence) -> dict[str, Any]:
    """Describe evidence as data that JSON can hold."""
    return {name: _json_number(x) for name, x in dataclasses.asdict(evidence).items()}


def _json_number(value: Any) -> Any:
    """Return infinities and NaN as text, since JSON has neither; anything else as it is."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def exchange_evidence(seen: Capture, ranks: RankGroup) -> tuple[ShardEvidence, ...]:
    """Tell the other ranks the evidence of this one, and return theirs. All ranks call it."""
    parts = [shard_evidence(layer, layer.evidence) for layer in seen.layers]
    layers = [part._asdict() | {"evidence": describe_evidence(part.evidence)} for part in parts]
    texts = ranks.exchange(json.dumps({"layers": layers}))
    return tuple(
        part
        for rank, text in enumerate(texts)
        if rank != ranks.rank
        for part in read_plain(list[ShardEvidence], parse_object(text)["layers"], "layers")
    )
