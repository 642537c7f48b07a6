"""The certificate: evidence that a captured map holds the weights that produced the model's output.

A layer is certified if the map's weights times the values reproduce the output of the model's own attention
to within rounding, on the rows that were compared, and every row of weights sums to 1. Each row has its own
tolerance, which depends on the precision and on Σ w |v|, the size of the values that the row uses, not on the
size of the scores. A layer that cannot be compared is not certified, and its evidence says why. This file
knows maps and tensors; it does not know models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.recorder.placement import Runs
from regard.support.cell_output import PrintedOutput
from regard.support.lru import LRUCache
from regard.support.table import Column, Table

# A wrong mask, scale or head shows in every row. If a tenth of the rows were wrong at random, 64 would miss
# them all with probability 0.0015.
ROWS = 64
HALF_PRECISION = 1e-3  # a tolerance of weights above this one means that they are in half precision
CERTIFIED = (
    "A layer is certified if its weights times the values give the output of the model's own attention."
)
OWN_OUTPUT = "this layer's own attention output"
KERNEL_OUTPUT = "the output of Regard's kernel, with which the model went on"
KNOWN_CODE = "known from the code of the model"
CHANGED = "established by changing tokens and running the model again"
BY_NUMBER = "known by their number, and nothing was seen that reorders them"
NO_TOKENS = "its axes are not known to be the tokens"


@dataclass(frozen=True)
class Evidence(PrintedOutput):
    """The comparison of one layer's map with what the model computed."""

    difference: float
    """|weights · v − output| at the entry with the largest ratio to its tolerance, over the rows compared."""
    tolerance: float
    """The tolerance at that entry: the rounding error to expect at its dtype and its row's Σ w |v|."""
    row_sums: float
    """The largest |sum of a row − 1|, where the weight of a sink logit counts as part of the row."""
    rows: int
    """The number of rows that were compared."""
    total_rows: int
    """The number of rows of the map."""
    mask: str
    """The mask as text."""
    scale: float
    softcap: float | None = None
    window: int | None = None
    """The size of the sliding window, if the mask has one."""
    sinks: bool = False
    """Whether the layer has sink logits."""
    problem: str | None = None
    """Why the layer cannot be certified whatever the numbers are, or None."""
    row_sums_tolerance: float = 1e-4
    """The tolerance of `row_sums`."""
    against: str = OWN_OUTPUT
    """A name for the output that the map was compared with."""
    weights: float | None = None
    """The largest difference from the weights of the model's own attention; None if it returns none."""
    weights_tolerance: float = 0.0
    """The tolerance of `weights`."""
    scores: float = 0.0
    """The largest |log-sum-exp| of a row, which is about as large as the largest score."""
    empty_rows: int = 0
    """The number of compared rows that have no visible key. The map shows zeros there."""

    replaced_heads: tuple[int, ...] = ()
    """The heads whose output an edit replaced: the model went on with another one than the map gives."""
    recurrence: str = ""
    """The recurrence of a linear layer, such as "gated delta rule"; "" for softmax attention.

    The rows of a linear layer need not sum to 1."""
    unplaced: str | None = None
    """Why its axes are not known to be the texts, heads and tokens of the capture; None if they are.

    The map then shows a call as it was made: its numbers may be certified, but no tokens belong to them."""
    tokens: str = ""
    """What shows that its rows and keys are the tokens of the capture; "" where there are none."""

    @property
    def certified(self) -> bool:
        """Whether every comparison is within its tolerance and there is no problem."""
        # Every comparison with NaN is False, so NaN is never certified.
        return (
            self.problem is None
            and self.difference <= self.tolerance
            and self.row_sums <= self.row_sums_tolerance
            and (self.weights is None or self.weights <= self.weights_tolerance)
        )

    @property
    def tolerance_used(self) -> float:
        """The larger ratio of an error to its tolerance; above 1 the layer is not certified."""
        output = self.difference / max(self.tolerance, 1e-300)
        return largest([output, self.row_sums / self.row_sums_tolerance])

    @property
    def settings(self) -> str:
        """The mask or the recurrence as text and, where the layer has them, its soft cap and sink logits."""
        parts = [self.recurrence or self.mask]
        if self.softcap is not None:
            parts.append(f"soft cap {self.softcap:g}")
        if self.sinks:
            parts.append("sink logits")
        return ", ".join(parts)

    def __str__(self) -> str:
        compared = f"{self.rows:,} of {self.total_rows:,} rows"
        if self.problem is not None:
            return f"not certified: {self.problem}"
        if not self.certified:
            own = "" if self.weights is None else f", off its own weights by {self.weights:.1e}"
            cause = f"; scores reach {self.scores:.0e}, where kernels round" if self.scores > 100 else ""
            if self.weights is not None and self.weights_tolerance > HALF_PRECISION:
                cause = '; it rounds its scores to half precision, which "sdpa" and "regard" do not'
            sums = "" if self.recurrence else f", rows sum to 1 within {self.row_sums:.1e}"
            return (
                f"not certified: off {self.against} by {self.difference:.1e} (tolerance {self.tolerance:.1e})"
                f"{own}{sums}; {compared}{cause}; {self.settings}"
            )
        axes = "" if self.unplaced is None else f"; {NO_TOKENS}: {self.unplaced}"
        empty = f"; {self.empty_rows:,} without a visible key are shown as zeros" if self.empty_rows else ""
        heads = ", ".join(map(str, self.replaced_heads))
        replaced = f"; an edit then replaced the output of head {heads}" if heads else ""
        return (
            f"certified: weights times values are within {self.difference:.1e} of {self.against}{replaced}; "
            f"{compared} compared{empty}; {self.settings}{axes}"
        )


@dataclass(repr=False)
class Certificate(Sequence[Evidence]):
    """The evidence of every layer of a capture; prints as a table.

    `certificate[3]` and `certificate["decoder.3"]` take the keys that `seen[…]` takes.
    """

    keys: Sequence[int | str]
    """The key of each layer."""
    evidence: Sequence[Evidence]
    """The evidence of each layer, in the same order."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """The attention that was not captured: the class of each module, or the reason, by its name."""
    other_mixers: Mapping[str, str] = field(default_factory=dict)
    """The modules that mix tokens without being attention: the class of each, by its name."""

    def __len__(self) -> int:
        return len(self.evidence)

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        """Return the evidence of a layer by its key, or by position where no layer has such a key."""
        for layer_key, evidence in zip(self.keys, self.evidence, strict=True):
            # A key may come as text from an address or a command line: "3".
            if str(layer_key) == str(key):
                return evidence
        if isinstance(key, str):
            raise KeyError(f"layer: expected one of {list(self.keys)}, got {key!r}")
        return self.evidence[key]

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.evidence)

    def __bool__(self) -> bool:
        return self.certified

    @property
    def certified(self) -> bool:
        """Whether there are layers, each is certified, and no attention is known to be missing.

        Modules that mix tokens without being attention, `other_mixers`, do not count.
        """
        every = bool(self.evidence) and all(evidence.certified for evidence in self.evidence)
        return every and not self.missing

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a row for each layer, and what was not captured."""
        rows = [
            (
                str(key),
                "certified" if evidence.certified else "not certified",
                evidence.difference,
                evidence.tolerance,
                f"{evidence.rows:,} of {evidence.total_rows:,}",
                evidence.settings if evidence.problem is None else evidence.problem,
            )
            for key, evidence in zip(self.keys, self.evidence, strict=True)
        ]
        numbers = Column("off by", ".1e"), Column("tolerance", ".1e")
        columns = ("layer", "certificate", *numbers, "rows compared", "mask")
        not_captured = {"Not captured": self.missing, "Not attention, without a map": self.other_mixers}
        captions = [
            f"{words}: {', '.join(f'{name} ({kind})' for name, kind in modules.items())}."
            for words, modules in not_captured.items()
            if modules
        ]
        return Table(columns, rows).output(str(self), " ".join(captions) or CERTIFIED)

    def __repr__(self) -> str:
        certified = sum(evidence.certified for evidence in self.evidence)
        missing = f", {len(self.missing)} missing" if self.missing else ""
        others = f", {len(self.other_mixers)} not attention" if self.other_mixers else ""
        return f"Certificate({certified} of {len(self)} layers certified{missing}{others})"

    def __str__(self) -> str:
        names = [str(key) for key in self.keys]
        rows = zip(names, map(str, self.evidence), strict=True)
        lines = Table(("layer", "evidence"), rows).lines(header=False)
        lines += [f"missing: {name} ({kind})" for name, kind in self.missing.items()]
        lines += [f"not attention: {name} ({kind})" for name, kind in self.other_mixers.items()]
        by_number = [name for name, x in zip(names, self.evidence, strict=True) if x.tokens == BY_NUMBER]
        if by_number:
            lines.append(f"tokens of {', '.join(by_number)}: {BY_NUMBER}; verify=True changes some to see")
        return "\n".join(lines)


def largest(numbers: list[float]) -> float:
    """The maximum, or NaN if any number is NaN."""
    return next((x for x in numbers if math.isnan(x)), max(numbers))


def join_evidence(first: Evidence, second: Evidence, mask: Mask) -> Evidence:
    """Join the evidence of two sets of rows of one layer: the worse of the two, over the rows of both.

    `mask` is the mask of all the rows.
    """
    return replace(
        _worst((first, second)),
        rows=first.rows + second.rows,
        total_rows=first.total_rows + second.total_rows,
        mask=str(mask),
        window=mask.window_size(),
        empty_rows=first.empty_rows + second.empty_rows,
    )


def _worst(evidence: Sequence[Evidence]) -> Evidence:
    """Return the worst of some evidence of a layer, with every problem of the others."""

    def badness(x: Evidence) -> tuple[bool, float, float]:
        # NaN is worse than any number, whichever comes first.
        used = math.inf if math.isnan(x.difference) else x.tolerance_used
        return not x.certified, used, x.difference

    weights = [x.weights for x in evidence if x.weights is not None]
    return replace(
        max(evidence, key=badness),
        problem=next((x.problem for x in evidence if x.problem is not None), None),
        unplaced=next((x.unplaced for x in evidence if x.unplaced is not None), None),
        weights=largest(weights) if weights else None,
        scores=max(x.scores for x in evidence),
        replaced_heads=tuple(sorted({head for x in evidence for head in x.replaced_heads})),
    )


class ShardEvidence(NamedTuple):
    """The evidence for a part of a layer that a rank has captured."""

    key: int | str
    heads: tuple[int, ...]
    """The numbers of its heads in the model."""
    rows: Runs | None
    """The positions of its rows; None for all of them."""
    evidence: Evidence


def join_shard_evidence(parts: Sequence[ShardEvidence]) -> Evidence:
    """Return the evidence for a layer from that of its parts: the worst of them.

    Ranks with other heads have compared the same rows, and ranks with other rows more of them.
    """
    evidence = [part.evidence for part in parts]
    by_heads: dict[tuple[int, ...], dict[Runs | None, Evidence]] = {}  # each once, whichever ranks have it
    for part in parts:
        by_heads.setdefault(part.heads, {})[part.rows] = part.evidence
    return replace(
        _worst(evidence),
        rows=min(sum(x.rows for x in by_rows.values()) for by_rows in by_heads.values()),
        total_rows=max(sum(x.total_rows for x in by_rows.values()) for by_rows in by_heads.values()),
        empty_rows=max(x.empty_rows for x in evidence),
    )


def sampled_rows(T: int, max_rows: int = ROWS, device: torch.device | str = "cpu") -> Tensor:
    """Return all row numbers, or `max_rows` of them: the first, the last and a fixed random sample."""
    # Every layer of a model asks for the same sample, and copying it to a GPU waits for what runs there.
    return _samples.get((T, max_rows, str(device)), lambda: _sample_rows(T, max_rows).to(device))


_samples: LRUCache[Tensor] = LRUCache(64)


def _sample_rows(T: int, max_rows: int) -> Tensor:
    # They are used later, perhaps outside of that mode.
    with torch.inference_mode(False):
        if max_rows >= T:
            return torch.arange(T, device="cpu")
        # The same rows in every run, so that a certificate can be repeated.
        generator = torch.Generator().manual_seed(T)
        between = torch.randperm(T - 2, generator=generator, device="cpu")[: max_rows - 2] + 1
        return torch.cat([torch.tensor([0, T - 1], device="cpu"), between]).sort().values
