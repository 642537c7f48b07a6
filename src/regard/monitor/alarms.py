"""The alarms of a monitor: what changed since the first readings of the run, said once for each layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.monitor.history import HeardLayer, StepRecord

FIRST = 3  # readings of a layer that what comes later is compared with
LEAK = 1e-6  # the share of a hidden key is exactly 0, and rounding adds none


@dataclass(frozen=True)
class Thresholds:
    """When a monitor raises its alarms.

    - `entropy`: the share of its first entropy below which a head's entropy has collapsed.
    - `growth`: how many times its first size the largest score of a layer may reach,
    - `score`: unless it is smaller than this: the softmax gives the second key e⁻⁵⁰ of the first then.
    - `resolution`: the error of a score, in nats, that the rounding of its dtype may make.
    """

    entropy: float = 0.05
    growth: float = 8.0
    score: float = 50.0
    resolution: float = 0.5


class Alarms:
    """Compares each record with the first ones of the run, and says each thing once for each layer."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self._first: dict[str, list[HeardLayer]] = {}
        self._said: set[tuple[str, str]] = set()

    def hear(self, record: StepRecord, dtypes: dict[str, torch.dtype]) -> list[str]:
        """The new alarms of a record; `dtypes` are those of the layers' queries."""
        found = []
        for key, layer in record.layers.items():
            first = self._first.setdefault(key, [])
            for kind, sentence in self._judge(key, layer, first, dtypes.get(key)):
                if (key, kind) not in self._said:
                    self._said.add((key, kind))
                    found.append(f"step {record.step}, layer {key}: {sentence}")
            if len(first) < FIRST:
                first.append(layer)
        return found

    def _judge(
        self, key: str, layer: HeardLayer, first: list[HeardLayer], dtype: torch.dtype | None
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
        if len(first) < FIRST:
            return
        if not layer.certified and all(x.certified for x in first):
            yield "certified", f"its map is no longer certified: {layer.problem}"
        sizes = [found[0] for x in first if (found := _largest(x, "max_score"))]
        if top and sizes and top[0] > max(t.score, t.growth * max(sizes)):
            yield (
                "growth",
                f"head {top[1]} has a score of {top[0]:.4g}, where the first {FIRST} readings had "
                f"{max(sizes):.3g} at most: the softmax is nearly one-hot there",
            )
        collapsed = []
        for head, now in enumerate(layer.values.get("entropy", ())):
            before = [x.values["entropy"][head] for x in first]
            known = [x for x in before if x is not None]
            if now is not None and len(known) == FIRST and now < t.entropy * min(known):
                collapsed.append(head)
        if collapsed:
            names = ", ".join(map(str, collapsed))
            word = "heads" if len(collapsed) > 1 else "head"
            yield (
                "entropy",
                f"the entropy of {word} {names} fell below {t.entropy:.0%} of that of the first readings",
            )


def _largest(layer: HeardLayer, measure: str) -> tuple[float, int] | None:
    """The largest number of a measure and its head."""
    numbers = [(x, head) for head, x in enumerate(layer.values.get(measure, ())) if x is not None]
    numbers = [(x, head) for x, head in numbers if math.isfinite(x)]
    return max(numbers, default=None)
