"""Whole models and blocks: a verdict for each attention layer as it runs in the model, and for the whole.

A model is run once on token ids, a block on hidden states, while every attention call is observed as in a
capture: its queries, keys, values, mask and output. Each output is compared with the float64 oracle, under
the mask that was in effect. Each kind of attention module is also checked alone, for what a call does not
show: its projections, its dropout, its own mask. Then tokens are changed, and the whole model must answer
as its masks promise.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal as causal_rule
from regard.attention.steps import trace
from regard.checker.catalogue import get_mistake
from regard.checker.diagnose import diagnose
from regard.checker.errors import CheckError
from regard.checker.oracle.oracle import Intent, Observation, describe_difference, relative_difference
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.reports.report import Check, Diagnosis, LayerVerdict, Report
from regard.checker.subject import vocabulary
from regard.checker.subject.source import attention_parts, attention_unit
from regard.checker.whole_models.model_run import (
    Findings,
    ModelRun,
    check_batch,
    check_causality,
    check_padding,
    check_training,
    fail_by,
    stack_of,
)
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall

_TOLERANCE = {torch.float64: 2e-5, torch.float32: 1e-3}  # relative; other dtypes 3e-2


class LayerJudge:
    """Compares the calls of each layer with the oracle, and checks each kind of module once by itself."""

    def __init__(
        self, run: ModelRun, check_alone: Callable[[nn.Module], Report], scale: float | None
    ) -> None:
        self.run, self.check_alone, self.scale = run, check_alone, scale
        self.alone: dict[str, Report | None] = {}
        self.diagnoses: dict[str, Diagnosis] = {}

    def judge(self, unit: str, calls: list[Call]) -> LayerVerdict:
        """Return the verdict on one attention module."""
        module = self.run.module.get_submodule(unit)
        shown = unit or "the model itself"
        heard = [call for call in calls if isinstance(call, AttentionCall)]
        masks = dict.fromkeys(_describe_mask(call.mask) for call in heard)
        row = LayerVerdict(shown, type(module).__name__, "undecided", " or ".join(masks))
        alone = self._check(module) if unit else None
        if alone is not None and alone.verdict == "wrong":
            for diagnosis in alone.diagnoses:
                self.diagnoses.setdefault(diagnosis.name, diagnosis)
            named = next((d.name for d in alone.diagnoses if not d.warning), "")
            detail = f"alone, {alone.failures[0]}" if alone.failures else ""
            return replace(row, verdict="wrong", mistake=named, detail=detail)
        if not heard or len(heard) < len(calls):
            reason = next(
                (c.reason for c in calls if isinstance(c, UnreadableCall)), "no call of it was seen"
            )
            if alone is not None and alone.verdict == "right" and not calls:
                return replace(row, verdict="right", detail="by itself; no call of it was seen in the model")
            return replace(row, detail=f"its attention in the model could not be read: {reason}")
        error, call = max(((self._error(call), call) for call in heard), key=lambda pair: pair[0])
        explained = error < _TOLERANCE.get(call.q.dtype, 3e-2)
        mistake = "" if explained else _name_mistake(call)
        mistake = mistake or next((m for call in heard if (m := _wrong_mask(call))), "")
        if mistake:
            entry = get_mistake(mistake)
            evidence = f"In the model its output equals attention {entry.what}."
            self.diagnoses.setdefault(mistake, Diagnosis(mistake, evidence, entry.effect, entry.fix))
            return replace(row, verdict="wrong", mistake=mistake, detail=f"it equals attention {entry.what}")
        if not explained:
            problem = f" ({call.problem})" if call.problem else ""
            return replace(row, detail=f"in the model its output {describe_difference(error)}{problem}")
        odd = next((call.scale for call in heard if not self._is_usual_scale(call)), None)
        trusted = type(module).__module__.startswith("transformers.")  # whose scale is what the paper says
        if odd is not None and not trusted and (alone is None or alone.verdict != "right"):
            D = heard[0].q.shape[-1]
            return replace(
                row, detail=f"its scale is {odd:.4g}, not 1/√{D}: say scale={odd:.4g} if it should"
            )
        return replace(row, verdict="right")

    def _check(self, module: nn.Module) -> Report | None:
        """Check a module by itself; modules of one kind are checked once. None if it cannot be run alone.

        Those of Transformers are not: the model makes their masks and positions.
        """
        if type(module).__module__.startswith("transformers."):
            return None
        shapes = [(name, tuple(p.shape)) for name, p in module.state_dict().items()]
        plain = {n: v for n, v in vars(module).items() if isinstance(v, int | float | str | None)}
        # Layers of one stack differ by their number alone, and some may be in training mode.
        settings = {n: v for n, v in plain.items() if vocabulary.size(n) != "layer" and n != "training"}
        key = f"{type(module).__qualname__} {shapes} {sorted(settings.items(), key=str)}"
        if key not in self.alone:
            try:
                self.alone[key] = self.check_alone(module)
            except CheckError:
                self.alone[key] = None
        return self.alone[key]

    def _error(self, call: AttentionCall) -> float:
        """Return how far a call's output is from the oracle's, under its mask and scale."""
        q, k, v = (x.double().cpu() for x in (call.q, call.k, call.v))
        sinks = None if call.sinks is None else call.sinks.double().cpu()
        expected = trace(q, k, v, call.mask, scale=call.scale, softcap=call.softcap, sinks=sinks).output
        if expected.shape != call.output.shape:
            return float("inf")
        return relative_difference(call.output.double().cpu(), expected)

    def _is_usual_scale(self, call: AttentionCall) -> bool:
        usual = call.q.shape[-1] ** -0.5 if self.scale is None else self.scale
        return abs(call.scale / usual - 1) < 1e-4


def _name_mistake(call: AttentionCall, mask: Mask | None = None) -> str:
    """Return the mistake that gives a call's output, or "". `mask` should hold; by default the call's own."""
    mask = call.mask if mask is None else mask
    if mask.biased or call.sinks is not None:
        return ""
    q, k, v = (x.double().cpu() for x in (call.q, call.k, call.v))
    question = Question("output", q, k, v, rule=None if mask == causal_rule else mask)
    intent = Intent(Wiring(scale=call.scale), mask == causal_rule, softcap=call.softcap)
    matches = diagnose([Observation(question, Answer(call.output.double().cpu()))], [intent])
    return matches[0].names[0] if matches else ""


def _wrong_mask(call: AttentionCall) -> str:
    """Return the mistake that a mask without a name of its own amounts to, if it is meant to be causal."""
    if all(mask.positional or mask.is_padding for mask in _parts(call.mask)):
        return ""
    mistake = _name_mistake(call, causal_rule)
    return mistake if mistake in _MASK_MISTAKES else ""


_MASK_MISTAKES = (
    "one-token-ahead",
    "missing-diagonal",
    "inverted-mask",
    "transposed-mask",
    "top-left-causal",
)


def _describe_mask(mask: Mask) -> str:
    """Return which keys a mask shows, and what it adds to the scores: "causal, bias relative(4×21)"."""
    hiding = " & ".join(str(part) for part in mask.conjuncts() if part.hides)
    added = " & ".join(str(part) for part in mask.conjuncts() if not part.hides)
    return (hiding or "full") + (f", bias {added}" if added else "")


def _parts(mask: Mask) -> Iterator[Mask]:
    yield mask
    for child in mask.children():
        yield from _parts(child)


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
        report = _report_layers(run, LayerJudge(run, check_alone, scale))
        for finding in _promises(run, report, causal, window):
            if isinstance(finding, Check):
                report.checks.append(finding)
            elif isinstance(finding, str):
                report.assumptions.append(finding)
            elif all(diagnosis.name != finding.name for diagnosis in report.diagnoses):
                report.diagnoses.append(finding)
        return report
    finally:
        run.restore()


def _report_layers(run: ModelRun, judge: LayerJudge) -> Report:
    layers = [judge.judge(unit, calls) for unit, calls in _calls_by_unit(run).items()]
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
    if run.inputs.endswith("(T, B, C)"):
        report.equals = "a block on (T, B, C)"
        if (stated := _batch_first_words(run.module)) and not report.undecided:
            report.undecided = (
                f"it attends over the first axis, as on (T, B, C), and its source says {stated}"
            )
    return report


def _batch_first_words(module: nn.Module) -> str:
    """Return the words by which the source of a block says that it takes (batch, time, …); "" if none do."""
    try:
        source = inspect.getsource(type(module))
    except (OSError, TypeError):  # a class made at a prompt
        return ""
    batch, time = r"(?:b|bs|bsz|batch(?:_?size)?)", r"(?:t|l|s|time\w*|\w*seq\w*|\w*len\w*|tokens?)"
    stated = re.search(rf"[(\[]\s*{batch}\s*,\s*{time}\s*,[^)\]]*[)\]]", source, re.IGNORECASE)
    opposite = re.search(rf"[(\[]\s*{time}\s*,\s*{batch}\s*,", source, re.IGNORECASE)
    return stated[0] if stated and not opposite else ""


def _promises(run: ModelRun, report: Report, causal: bool | None, window: int | None) -> Findings:
    """Yield what a report says beside its layers."""
    yield from _check_window(run, window)
    yield from check_causality(run, causal)
    yield from check_batch(run)
    yield from _check_cross_attention(run)
    yield from _check_shared_tensors(run)
    if any(check.name == "causality" for check in report.passed):
        yield from check_training(run)
    yield from check_padding(run)
    if run.depth:
        yield Check(f"more than {run.depth}", "untried", "pass their number, or an instance")
    if cache := next((name for name in run.parameters if vocabulary.argument(name) == "cache"), None):
        how = f"generate with `{cache}` and without, and compare: positions may be off under it"
        yield Check("cache", "untried", how)


def _calls_by_unit(run: ModelRun) -> dict[str, list[Call]]:
    """Return the calls of every attention module, and the modules called attention that made none."""
    units: dict[str, list[Call]] = {}
    for name, call in run.calls:
        units.setdefault(attention_unit(run.module, name), []).append(call)
    for path in attention_parts(run.module):
        related = any(f"{path}.".startswith(f"{u}.") or f"{u}.".startswith(f"{path}.") for u in units)
        if not related:
            units[path] = []
    return units


def _check_window(run: ModelRun, window: int | None) -> Findings:
    """Check that some layer has the window that the caller promised."""
    if window is None:
        return
    if window in [call.mask.window_size() for _, call in run.attention]:
        yield Check("window", "passed")
    else:
        yield from fail_by("window", f"no layer has a window of {window} keys", "window-dropped")


def _check_cross_attention(run: ModelRun) -> Findings:
    """Say if a decoder sees the other text under a causal mask, as only simultaneous translation does."""
    for name, call in run.attention:
        if call.k.shape[-2] == run.memory and call.mask.is_causal:
            unit = attention_unit(run.module, name)
            how = "pass it no causal mask, unless the model translates while it reads"
            what = f"cross-attention to the whole of the other text (`{unit}` is causal)"
            yield Check(what, "untried", how)
            return


def _check_shared_tensors(run: ModelRun) -> Findings:
    """Say if a tensor that every layer of a stack gets, such as rotary angles, is changed on the way.

    Hidden states may be changed in place, and so may what depends on tokens: a pair representation, a cache.
    """
    first: dict[tuple[str, str, int], tuple[Tensor, Tensor, str]] = {}  # the tensor, its value, its layer
    changed: dict[str, tuple[str, str, str]] = {}

    def look(unit: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = list(inspect.signature(module.forward).parameters)
        values = [*zip(names[1:], args[1:], strict=False), *kwargs.items()]  # without the hidden states
        for name, value in values:
            for x in value if isinstance(value, tuple | list) else (value,):
                if not isinstance(x, Tensor) or x.numel() < 2:
                    continue
                if x.ndim > 2 and x.shape[0] == run.draw(0).shape[0]:  # it may depend on tokens
                    continue
                # The tensor is kept, too, so that its id is not given to another one.
                before, copy, layer = first.setdefault((stack_of(unit), name, id(x)), (x, x.clone(), unit))
                if before is x and layer != unit and not torch.equal(copy, x):
                    changed.setdefault(stack_of(unit), (name, layer, unit))

    hooks = [
        run.module.get_submodule(unit).register_forward_pre_hook(partial(look, unit), with_kwargs=True)
        for unit in _calls_by_unit(run)
        if unit
    ]
    try:
        run.outputs(run.draw(0))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer, unit in changed.values():
        what = f"comparison of `{name}`, which is changed in place between `{layer}` and `{unit}`"
        yield Check(what, "untried", "give every layer its own copy, or change it for none")


def _count(layers: list[LayerVerdict]) -> str:
    return f"{len(layers)} attention layer{'s' * (len(layers) != 1)}"
