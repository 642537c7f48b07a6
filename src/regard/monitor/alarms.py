"""The alarms of a monitor: what changed since the first reading of the run, said once for each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.attention.arguments import check_positive, is_number
from regard.monitor.history import HeardLayer, StepRecord

LEAK = 1e-6  # the share of a hidden key is exactly 0, and rounding adds none


@dataclass(frozen=True)
class Thresholds:
    """When a monitor raises its alarms.

    - `entropy`: the share of its entropy in the first reading below which a head's entropy has collapsed.
    - `growth`: how many times its size in the first reading the largest score of a layer may reach,
    - `score`: unless it is smaller than this: the softmax gives the second key e⁻⁵⁰ of the first then.
    - `resolution`: the error of a score, in nats, that the rounding of its dtype may make.
    """

    entropy: float = 0.01
    growth: float = 8.0
    score: float = 50.0
    resolution: float = 0.5

    def __post_init__(self) -> None:
        for name in ("growth", "score", "resolution"):
            check_positive(name, getattr(self, name))
        if not is_number(self.entropy) or not 0 <= self.entropy < 1:
            raise ValueError(f"entropy: expected a share from 0 to below 1, got {self.entropy!r}")


class Alarms:
    """Compares each record with the first one of the run, and says each thing once for each layer."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self._first: dict[str, HeardLayer] = {}
        self._said: set[tuple[str, str]] = set()

    def hear(self, record: StepRecord, dtypes: dict[str, torch.dtype]) -> list[str]:
        """The new alarms of a record; `dtypes` are those of the layers' queries."""
        found = []
        for key, layer in record.layers.items():
            first = self._first.setdefault(key, layer)
            for kind, sentence in self._judge(key, layer, first, dtypes.get(key)):
                if (key, kind) not in self._said:
                    self._said.add((key, kind))
                    found.append(f"step {record.step}, layer {key}: {sentence}")
        return found

    def _judge(
        self, key: str, layer: HeardLayer, first: HeardLayer, dtype: torch.dtype | None
    ) -> Iterator[tuple[str, str]]:
        t = self.thresholds
        for measure, where in (("across", "other documents"), ("padding", "padding")):
            leak = _largest(layer, measure)
            if leak is not None and leak[0] > LEAK:
                yield measure, f"head {leak[1]} gives {leak[0]:.3g} of its attention to {where}"
        top = _largest(layer, "max_score")
        if top and dtype is not None and (error := top[0] * torch.finfo(dtype).eps) > t.resolution:
            name = str(dtype).removeprefix("torch.")
            yield (
                "resolution",
                f"head {top[1]} has a score of {top[0]:.4g}, which {name} rounds by {error:.2g} nats",
            )
        if unknown := _not_finite(layer, first):
            word, verb = ("heads", "have") if len(unknown) > 1 else ("head", "has")
            yield "finite", f"{word} {', '.join(map(str, unknown))} {verb} numbers that are NaN or infinite"
        if not layer.certified and first.certified:
            yield "certified", f"its map is no longer certified: {layer.problem}"
        began = _largest(first, "max_score")
        if top and began and top[0] > max(t.score, t.growth * began[0]):
            yield (
                "growth",
                f"head {top[1]} has a score of {top[0]:.4g}, and the largest was {began[0]:.3g} in the first "
                "reading: the softmax is nearly one-hot",
            )
        pairs = zip(layer.values.get("entropy", ()), first.values.get("entropy", ()), strict=False)
        collapsed = [
            head
            for head, (now, before) in enumerate(pairs)
            if now is not None and before is not None and now < t.entropy * before
        ]
        if collapsed:
            names = ", ".join(map(str, collapsed))
            word = "heads" if len(collapsed) > 1 else "head"
            yield (
                "entropy",
                f"the entropy of {word} {names} fell below {t.entropy:.0%} of that of the first reading",
            )


def _not_finite(layer: HeardLayer, first: HeardLayer) -> list[int]:
    """The heads with numbers that are not finite, which stand in a record as None."""
    norms = (layer.values.get(name, ()) for name in ("q_norm", "k_norm"))
    unknown = {head for row in norms for head, x in enumerate(row) if x is None}
    # A score may also be missing because no sampled row sees a key, but then it was missing before.
    pairs = zip(layer.values.get("max_score", ()), first.values.get("max_score", ()), strict=False)
    unknown |= {head for head, (now, before) in enumerate(pairs) if now is None and before is not None}
    return sorted(unknown)


def _largest(layer: HeardLayer, measure: str) -> tuple[float, int] | None:
    """The largest number of a measure and its head."""
    numbers = [(x, head) for head, x in enumerate(layer.values.get(measure, ())) if x is not None]
    numbers = [(x, head) for x, head in numbers if math.isfinite(x)]
    return max(numbers, default=None)
