"""`effect`: how much an edit changes what a model does, beside matched random edits; `importance`: all heads.

An edit of any head changes something. Whether it changes more than others would is the question: so every
effect comes with an interval over texts, and with the effects of random edits that are like it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.heads.measures.running_sums import ratio_interval, students_t
from regard.heads.tables.description import name_layer
from regard.heads.tables.table import HeadRow, HeadTable, Score, split_key
from regard.interventions.ablation import Replacement, ablate
from regard.interventions.edit import Edit
from regard.interventions.edited_run import intervene
from regard.interventions.metrics import Metric, TextMetric, TokenPositions
from regard.interventions.output_means import Text, text_inputs
from regard.interventions.random_edits import ModelHeads, RandomEdgeBlock, draw_edits
from regard.recorder.capture_block import capture
from regard.recorder.capture_result import Capture
from regard.recorder.layer import Layer
from regard.recorder.model_inputs import model_name
from regard.recorder.sources.structure_of_models.model_parts import original_model
from regard.support.table import Table

ENOUGH_DRAWS = 19  # with the band at least as wide as the draws, chance goes beyond it 1 in 20 times at most
HARM = {"loss": 1, "logit_diff": -1}  # the sign of a change for the worse
FULL_MATCH = 0.75  # a smaller share of an edit's attention on random edges is no fair baseline


class CutMass(NamedTuple):
    """The attention on blocked edges, as a mean over queries, heads and texts."""

    edit: float
    """On the edges of the edit."""
    random: float
    """On those that the random edits cut, as a mean over draws."""


@dataclass(frozen=True)
class Effect:
    """The change of a metric by an edit. Made by `regard.effect`; prints as a sentence."""

    value: float
    """The mean over texts of the edited run minus the plain one."""
    low: float
    high: float
    """The ends of a 95% interval over texts; NaN of a single text."""
    per_text: list[float]
    """The change in each text."""
    plain: float
    """The mean of the metric without the edit."""
    baseline: list[float]
    """The effect of each matched random edit, as a mean over the same texts; empty where there is none, as if
    all edges are blocked."""
    baseline_low: float
    baseline_high: float
    """The ends of the band in which 95% of random edits are expected; NaN of fewer than two."""
    cut_mass: CutMass | None
    """For blocked edges: how much attention was on them, and on the random edges; otherwise None."""
    edits: tuple[str, ...]
    """The edits in words."""
    metric: str
    """The name of the metric."""
    harm: int = 0
    """The sign of a change for the worse: 1 for the loss, −1 for "logit_diff", 0 for a metric of your own."""
    other_layers: bool = False
    """Whether the random heads come from other layers too, since those of the edit have too few others."""

    @property
    def beyond_baseline(self) -> bool:
        """Whether the edit does more than random edits do.

        That is more harm than their band, or, if the metric has no direction, a larger change of either sign.
        An edit that does less than they do is not beyond them.
        Chance alone goes beyond the band of n draws in at most 1 of n + 1 cases, whatever their distribution:
        1 in 21 of 20 draws, but 1 in 4 of 3.
        """
        if len(self.baseline) < 2:
            return False
        if self.harm:
            end = self.baseline_high if self.harm > 0 else -self.baseline_low
            return self.harm * self.value > end
        return abs(self.value) > prediction_band([abs(x) for x in self.baseline])[1]

    @property
    def weak(self) -> bool:
        """Whether there were so few random edits that chance alone often goes beyond their band."""
        return len(self.baseline) < ENOUGH_DRAWS

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: the sentence, and the effect beside the band of random edits."""
        rows = [("with the edit", *self._row(self.value, self.low, self.high), len(self.per_text))]
        if self.baseline:
            row = self._row(fmean(self.baseline), self.baseline_low, self.baseline_high)
            rows.append(("with random edits", *row, len(self.baseline)))
        names = ("change of the " + self.metric, "mean", "95% from", "to", "texts or draws")
        return Table(names, rows).output(str(self), f"{self}.")

    def _row(self, *numbers: float) -> tuple[str, ...]:
        return tuple("" if math.isnan(x) else f"{x:+.3f}" for x in numbers)

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" (95% {self.low:+.3f} to {self.high:+.3f})"
        text = f"{self.metric} {self.value:+.3f}{interval} with {', '.join(self.edits)}"
        if not any(self.per_text):
            return f"{text}: nothing that the metric reads has changed"
        n = len(self.baseline)
        if n < 2:
            return f"{text}; " + (
                f"one random edit gives {self.baseline[0]:+.3f}, too few for a band"
                if n
                else "no random edits to compare with"
            )
        verdict = "more" if self.beyond_baseline else "not more"
        band = f"{self.baseline_low:+.3f} to {self.baseline_high:+.3f}"
        layers = " in other layers" if self.other_layers else ""
        weak = f" ({n} draws: weak)" if self.weak else ""
        text = f"{text}; {verdict} than the band of {n} random edits{layers}{weak}, {band}"
        if self.cut_mass is None or self.cut_mass.random >= FULL_MATCH * self.cut_mass.edit:
            return text
        share = self.cut_mass.random / self.cut_mass.edit
        return f"{text}, which cut only {share:.0%} as much attention, so that the band says little"


def effect(
    model: nn.Module,
    texts: Text | Sequence[Text],
    edits: Edit | Sequence[Edit],
    metric: Metric = "loss",
    *,
    tokenizer: Any = None,
    positions: TokenPositions | None = None,
    tokens: Sequence[int | str] | None = None,
    draws: int = 20,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Effect:
    """Measure how much edits change a metric, beside matched random edits and with an interval over texts.

    - `model`: a causal language model that `regard.capture` serves. It runs in eval mode.
    - `texts`: strings, token ids (T,) or (B, T), or dicts of the model's arguments; read one at a time.
    - `edits`: one or several of `regard.ablate`, `regard.block`, `regard.evict` and `regard.patch`, together.
    - `metric`: "loss", the mean next-token cross entropy in nats; "logit_diff", the logit of one token minus
      that of another, after the text; or a function of the model's output and the token ids (T,).
    - `tokenizer`: for texts that are strings; by default `model.tokenizer`.
    - `positions`: which tokens the loss is of: "repeated" (those that occurred before in the text), "first"
      (first occurrences), a boolean mask (T,), or a function that makes one of ids (T,). None for all.
    - `tokens`: the two tokens (a, b) of "logit_diff", as ids or as texts.
    - `draws`: how many random edits to compare with. For edits of heads they choose as many other heads of
      the same layers, or of the whole model where those leave fewer than two sets (`other_layers` of the
      result); for blocked edges they cut other edges of the same heads with as much attention on them, as far
      as they find so much (`cut_mass` of the result); for a cache policy they keep as many random keys. 0
      leaves them out. With fewer than 19, or where the layers have fewer other heads, the result is `weak`
      and says so.
    - `seed`: of the draws.
    - `report`: called with the number of forward passes done so far and of all.
    """
    draws = check_whole_number("draws", draws, 0)
    several = list(edits) if isinstance(edits, Sequence) else [edits]
    resolved = list(intervene(model, *several).edits)  # wrong edits raise here, before anything runs
    runs = MetricRuns(model, texts, metric, tokenizer, positions, tokens, report)
    with evaluating(runs.model):
        heads = ModelHeads.of(runs.softmax_layers())
        random_edits = draw_edits(resolved, heads, draws, seed) if draws else []
        plain = runs.run_plain(1 + len(random_edits))
        changes = runs.changes(resolved)
        baseline = [fmean(runs.changes(some)) for some in random_edits]
    cut_mass = _cut_mass(random_edits)
    if cut_mass is not None and cut_mass.random == 0:  # there were no other edges to cut
        baseline = []
    band = prediction_band(baseline)
    return Effect(
        fmean(changes),
        *mean_interval(changes),
        changes,
        fmean(plain),
        baseline,
        *band,
        cut_mass,
        tuple(map(str, resolved)),
        metric if isinstance(metric, str) else getattr(metric, "__name__", "metric"),
        HARM[metric] if isinstance(metric, str) else 0,
        any(_layers(heads, edits) - _layers(heads, resolved) for edits in random_edits),
    )


def importance(
    model: nn.Module,
    texts: Text | Sequence[Text],
    metric: Metric = "loss",
    *,
    by: Replacement = "zero",
    tokenizer: Any = None,
    positions: TokenPositions | None = None,
    tokens: Sequence[int | str] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> HeadTable:
    """Measure the effect of ablating every head of a model alone.

    The table has a score "importance" for every head: the mean over texts of the change of the metric, by
    default the rise of the loss in nats a token. Its 95% interval over texts holds for all heads together
    (Bonferroni), since the largest of many is looked at: of N heads each has an interval of 1 − 0.05 / N.
    Join it to other scores with `seen.heads().join(regard.importance(model, texts))`.

    - `model`: a causal language model that `regard.capture` serves. It runs in eval mode.
    - `texts`: strings, token ids (T,) or (B, T), or dicts of the model's arguments; read one at a time.
    - `metric`, `tokenizer`, `positions`, `tokens`: those of `regard.effect`.
    - `by`: what replaces a head's output, as in `regard.ablate`: "zero", or the means of
      `regard.interventions.mean_outputs`.
    - `report`: called with the number of forward passes done so far and of all: one for each text and head.
    """
    runs = MetricRuns(model, texts, metric, tokenizer, positions, tokens, report)
    with evaluating(runs.model):
        attention = runs.softmax_layers()
        keys, heads = [layer.key for layer in attention], [layer.heads for layer in attention]
        layers = [name_layer(i, layer.map, keys, heads) for i, layer in enumerate(attention)]
        count, rows = sum(map(len, heads)), []
        runs.run_plain(count)
        for layer in layers:
            stack, number = split_key(layer.key)
            for head, kv_head in zip(layer.heads, layer.kv_heads, strict=True):
                changes = runs.changes([ablate(layer.key, head, by)])
                low, high = mean_interval(changes, 1 - 0.05 / count)
                score = Score(fmean(changes), math.nan, math.nan, low, high, math.nan)
                rows.append(HeadRow(number, head, kv_head, (), None, {"importance": score}, stack))
    total = sum(len(token_ids(arguments)) for arguments in runs.inputs)
    return HeadTable(rows, len(runs.inputs), total, model=model_name(runs.model))


class MetricRuns:
    """Runs a model over texts, plain or edited, and counts the forward passes, by options of `effect`."""

    def __init__(
        self,
        model: nn.Module,
        texts: Text | Sequence[Text],
        metric: Metric,
        tokenizer: Any,
        positions: TokenPositions | None,
        tokens: Sequence[int | str] | None,
        report: Callable[[int, int], None],
    ) -> None:
        self.model, self.report = original_model(model), report
        tokenizer = getattr(self.model, "tokenizer", None) if tokenizer is None else tokenizer
        self.measure = TextMetric(metric, positions=positions, tokens=tokens, tokenizer=tokenizer)
        self.inputs = list(text_inputs(self.model, texts, tokenizer))
        self.done = self.total = 0
        self.plain: list[float] = []

    def softmax_layers(self) -> list[Layer]:
        """Return the layers that edits reach, from a run over one text."""
        seen = capture(self.model, inputs=self.inputs[0])
        if self.measure.metric == "loss":
            check_causal(self.model, seen)
        return [layer for layer in seen.layers if not layer.is_linear]

    def run_plain(self, others: int) -> list[float]:
        """Return the metric of each text without edits; `others` is how many edited runs are to come."""
        self.total = len(self.inputs) * (1 + others)
        self.plain = self._run()
        return self.plain

    def changes(self, edits: Sequence[Edit]) -> list[float]:
        """Return the change of the metric of each text by edits."""
        return [a - b for a, b in zip(self._run(edits), self.plain, strict=True)]

    @torch.no_grad()
    def _run(self, edits: Sequence[Edit] = ()) -> list[float]:
        values = []
        for arguments in self.inputs:
            with intervene(self.model, *edits) if edits else nullcontext():
                output = self.model(**arguments)
            value = self.measure(output, token_ids(arguments))
            if not math.isfinite(value):
                raise ValueError(f"metric: expected a finite number for every text, got {value}")
            values.append(value)
            self.done += 1
            self.report(self.done, self.total)
        return values


def token_ids(arguments: dict[str, Any]) -> Tensor:
    """Return the token ids (T,) among the arguments of a model."""
    found = [
        x for x in arguments.values() if isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point()
    ]
    ids = arguments.get("input_ids", found[0] if found else None)
    if not isinstance(ids, Tensor) or ids.ndim != 2 or len(ids) != 1:
        raise ValueError("texts: expected token ids (1, T) among the model's arguments, one text at a time")
    return ids[0]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in eval mode, without dropout."""
    # Modules that were in evaluation mode, such as frozen ones, stay in it.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _layers(heads: ModelHeads, edits: Sequence[Edit]) -> set[int | str]:
    return {layer for edit in edits for layer, _ in heads.pairs(edit.selection)}


def check_causal(model: nn.Module, seen: Capture) -> None:
    """Raise a ValueError if the first token of a captured model sees later ones, as BERT's does."""
    first = next((x.map for x in seen.layers if not x.stack.startswith(("encoder", "cross"))), None)
    if first is not None and bool((first[0, :, 0, 1:] > 0).any()):
        raise ValueError(
            f"metric: expected a causal language model for the loss, but the first token of "
            f"{type(model).__name__} sees the tokens that it would predict: pass a function as metric"
        )


def mean_interval(values: Sequence[float], share: float = 0.95) -> tuple[float, float]:
    """Return the ends of the interval of a mean, by Student's t; NaN of fewer than two values.

    `share` is its confidence level.

    >>> [round(x, 2) for x in mean_interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]
    """
    n, squares = len(values), math.fsum(x * x for x in values)
    return ratio_interval(fmean(values), n, n, squares, math.fsum(values), n, share)


def prediction_band(values: Sequence[float]) -> tuple[float, float]:
    """Return the band in which 95% of further values are expected, by Student's t; NaN of fewer than two.

    It reaches at least from the smallest to the largest value: most draws may do nothing, and few do much.

    >>> [round(x, 2) for x in prediction_band([1.0, 2.0, 3.0])]
    [-2.97, 6.97]
    """
    n = len(values)
    if n < 2:
        return math.nan, math.nan
    reach = students_t(n - 1) * stdev(values) * math.sqrt(1 + 1 / n)
    return min(fmean(values) - reach, *values), max(fmean(values) + reach, *values)


def _cut_mass(random_edits: Sequence[Sequence[Edit]]) -> CutMass | None:
    """Return the mass on the edges of an edit and on those of its random counterparts."""
    blocks = [edit for edits in random_edits for edit in edits if isinstance(edit, RandomEdgeBlock)]
    masses = [pair for edit in blocks for pair in edit.masses]
    return CutMass(*map(fmean, zip(*masses, strict=True))) if masses else None
