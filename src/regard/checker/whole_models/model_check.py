"""Whole models and blocks: a verdict for each attention layer as it runs in the model, and for the whole.

A model is run once on token ids, a block on hidden states, while every attention call is observed as in a
capture: its queries, keys, values, mask and output. Each output is compared with the float64 oracle, under
the mask that was in effect. Each kind of attention module is also checked alone, for what a call does not
show: its projections, its dropout, its own mask. Then tokens are changed, and the whole model must answer
as its masks promise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import nn

from regard.checker.reports.report import Check, LayerVerdict, Report
from regard.checker.subject import vocabulary
from regard.checker.whole_models.causality import check_causality, check_window
from regard.checker.whole_models.hidden_tokens import check_padding
from regard.checker.whole_models.independence import (
    check_batch,
    check_cross_attention,
    check_shared_tensors,
    check_training,
)
from regard.checker.whole_models.layer_judge import LayerJudge, calls_by_unit
from regard.checker.whole_models.model_run import ModelRun, batch_first_words


def check_model(
    run: ModelRun,
    check_alone: Callable[[nn.Module], Report],
    *,
    causal: bool | None,
    window: int | None,
    scale: float | None,
) -> Report:
    """Return the report of a model that ran.

    Arguments:
        run: the model, with its attention calls.
        check_alone: checks an attention module by itself.
        causal, window, scale: what the caller stated; None if nothing.
    """
    try:
        return _check_model(run, LayerJudge(run, check_alone, scale), causal, window)
    finally:
        run.restore()


def _check_model(run: ModelRun, judge: LayerJudge, causal: bool | None, window: int | None) -> Report:
    layers = [judge.judge(unit, calls) for unit, calls in calls_by_unit(run).items()]
    report = Report(f"{run.name} ({_count(layers)})", [f"reads {run.inputs}"], layers=layers)
    report.diagnoses = list(judge.diagnoses.values())
    for layer in layers:
        if layer.verdict == "wrong":
            report.checks.append(Check(layer.name, "failed", layer.detail, layer.mistake))
    undecided = [layer for layer in layers if layer.verdict == "undecided"]
    if undecided:
        report.undecided = f"`{undecided[0].name}`: {undecided[0].detail}"
        report.checks.append(Check("output", "skipped", f"of {_count(undecided)} it was not compared"))
    elif all(layer.verdict == "right" for layer in layers):
        report.checks.append(Check("output", "passed", "of every layer, under the mask in effect"))
    check_window(report, run, window)
    check_causality(report, run, causal)
    check_batch(report, run)
    if run.inputs.endswith("(T, B, C)"):
        report.equals = "a block on (T, B, C)"
        if (stated := batch_first_words(run.module)) and not report.undecided:
            report.undecided = (
                f"it attends over the first axis, as on (T, B, C), and its source says {stated}"
            )
    check_cross_attention(report, run)
    check_shared_tensors(report, run)
    check_training(report, run)
    check_padding(report, run)
    names = inspect.signature(run.module.forward).parameters
    if run.depth:
        report.checks.append(Check(f"more than {run.depth}", "untried", "pass their number, or an instance"))
    if cache := next((name for name in names if vocabulary.argument(name) == "cache"), None):
        how = f"generate with `{cache}` and without, and compare: positions may be off under it"
        report.checks.append(Check("cache", "untried", how))
    return report


def _count(layers: list[LayerVerdict]) -> str:
    return f"{len(layers)} attention layer{'s' * (len(layers) != 1)}"
