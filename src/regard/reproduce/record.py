"""What a re-run result finds: numbers with intervals beside baselines, and the verdict that follows.

This file knows numbers and sentences; it runs nothing and draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from regard.reproduce.chart import Chart
from regard.support.files import RunFileError, atomic_write, get_field, parse_object

FORMAT = "regard.reproduce 1"
RESAMPLES = 2000  # of a bootstrap, enough for two digits of its 95 % interval
Side = Literal[">", "<"]
Verdict = Literal["holds", "holds in part", "does not hold here"]


@dataclass(frozen=True)
class PublishedResult:
    """An entry of `results.toml`: what was claimed, what is done here about it, and with which sizes."""

    title: str
    papers: list[str]
    """Each as "Authors, year, title, arXiv number or venue"."""
    claim: str
    method: str
    """What is trained or read here, on which text, and what is compared with what."""
    limits: str
    """Why it may not hold at this size, and what a verdict here says nothing about."""
    reads: str = ""
    """The model of `regard data` that a full run reads; "" if it trains its own."""
    quick: dict[str, Any] = field(default_factory=dict)
    """The sizes of a quick run: fewer steps, smaller models, fewer texts."""
    full: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunOptions:
    """How a result is run."""

    quick: bool = False
    """Whether to stay within a minute on two cores: fewer steps, smaller models, fewer texts."""
    device: str = "cpu"
    seed: int = 0
    report: Callable[[str], object] = print
    """Takes a sentence about the progress."""


@dataclass(frozen=True)
class ReproductionCheck:
    """One number beside its baseline, and whether its whole interval lies on the side that was claimed."""

    what: str
    value: float
    low: float
    high: float
    baseline: float
    side: Side
    baseline_is: str
    """What the baseline is, as "uniform attention" or "heads drawn at random"."""
    over: str = ""
    """What the 95 % interval is taken over, as "16 texts"; "" for a number that is counted, not estimated."""

    @property
    def holds(self) -> bool:
        """Whether the interval lies beyond the baseline."""
        return self.low > self.baseline if self.side == ">" else self.high < self.baseline

    def __str__(self) -> str:
        interval = f" [{self.low:.4g}, {self.high:.4g}]" if self.over else ""
        word = "yes" if self.holds else "no"
        baseline = f"{self.side} {self.baseline:.4g} ({self.baseline_is})"
        return f"{self.what}: {self.value:.4g}{interval} {baseline}? {word}"


def counted(what: str, value: float, side: Side, baseline: float, baseline_is: str) -> ReproductionCheck:
    """A check of a number that has no spread."""
    return ReproductionCheck(what, value, value, value, baseline, side, baseline_is)


def estimated(
    what: str, samples: Sequence[float] | Tensor, side: Side, baseline: float, baseline_is: str, over: str
) -> ReproductionCheck:
    """A check of the mean of samples, with its 95 % interval by bootstrap.

    Samples are what varies independently: texts or seeds, not the tokens of one text. For a comparison of two
    conditions give the differences, paired by text or seed, and a baseline of 0. The arguments read as a
    sentence: `estimated("prefix matching of 1.2", scores, ">", null, "uniform attention", "32 texts")`.
    """
    numbers = np.asarray(samples, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2 or not np.isfinite(numbers).all():
        raise ValueError(f"samples: expected two or more finite numbers, got {numbers.tolist()!r:.80}")
    draw = np.random.default_rng(0)
    means = numbers[draw.integers(len(numbers), size=(RESAMPLES, len(numbers)))].mean(1)
    low, high = (float(x) for x in np.quantile(means, (0.025, 0.975)))
    return ReproductionCheck(what, float(numbers.mean()), low, high, baseline, side, baseline_is, over)


@dataclass(frozen=True)
class Findings:
    """What one run of a result found."""

    checks: Sequence[ReproductionCheck]
    charts: Sequence[Chart]
    """The panels of the one picture."""
    note: str = ""
    """What was seen beyond the checks, in whole sentences."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sizes, steps and whatever else the numbers depend on."""

    @property
    def verdict(self) -> Verdict:
        """Holds if every check does, in part if some do."""
        held = [check.holds for check in self.checks]
        if all(held):
            return "holds"
        return "holds in part" if any(held) else "does not hold here"


@dataclass(frozen=True)
class ReproductionRecord:
    """A run of a result with all that it depended on, as it is written to a file."""

    name: str
    quick: bool
    seed: int
    findings: Findings
    machine: dict[str, Any]
    """Versions, device and processor."""
    seconds: float

    def write(self, path: str | PathLike[str]) -> None:
        """Write the record to `path` as JSON, atomically."""
        findings = asdict(self.findings) | {"verdict": self.findings.verdict}
        text = json.dumps({"format": FORMAT, **asdict(self), "findings": findings}, indent=1, allow_nan=False)
        with atomic_write(Path(path)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> ReproductionRecord:
        """Read the record that `write` has written to `path`; its verdict is computed anew."""
        data = parse_object(Path(path).read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise RunFileError(f"{path}: expected the format {FORMAT!r}, got {data.get('format')!r}")
        found = get_field(data, "findings", dict)
        try:
            checks = [ReproductionCheck(**check) for check in found.pop("checks")]
            charts = [Chart(**chart) for chart in found.pop("charts")]
            del data["format"], found["verdict"]
            return cls(**data | {"findings": Findings(checks, charts, **found)})
        except (TypeError, KeyError) as error:
            raise RunFileError(f"{path}: {error!r}") from error
