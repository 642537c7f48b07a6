"""Whole models and blocks: a verdict for each attention layer as it runs in the model, and for the whole.

A model is run once on token ids, a block on hidden states, while every attention call is observed as in a
capture: its queries, keys, values, mask and output. Each output is compared with the float64 oracle, under
the mask that was in effect. Each kind of attention module is also checked alone, for what a call does not
show: its projections, its dropout, its own mask. Then tokens are changed, and the whole model must answer
as its masks promise.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal as causal_rule
from regard.attention.steps import trace
from regard.checker.cases import Cases
from regard.checker.catalogue import get_mistake
from regard.checker.diagnose import diagnose
from regard.checker.errors import CheckError
from regard.checker.intent import Intent, Observation
from regard.checker.oracle.oracle import describe_difference, relative_difference
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer
from regard.checker.oracle.wiring import Wiring
from regard.checker.report import Check, Diagnosis, LayerVerdict, Report
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt, draw_weights
from regard.checker.subject.call_values import make_values
from regard.checker.subject.construct import build, depth_left_out
from regard.checker.subject.forms import forms
from regard.checker.subject.parts import attention_parts
from regard.checker.subject.subject import CallMonitor, Subject, in_dtype, tensors_in_result
from regard.checker.understand import max_length, module_width
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall
from regard.recorder.layer import LayerId
from regard.recorder.observation import choose_sources, observed
from regard.recorder.receiver import CallReceiver

# T, by which no size is confused with another; shorter for models of few positions.
_LENGTHS = (11, 6, 4)
_TOLERANCE = {torch.float64: 2e-5, torch.float32: 1e-3}  # relative; other dtypes 3e-2
_TARGETS = ("targets", "labels", "target")  # nanoGPT gives the logits of all positions only beside them


class CallCollector(CallReceiver):
    """Keeps every attention call of one run, by the name of the module that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Call]] = []

    def record(self, layer_id: LayerId, call: Call) -> Call:
        self.calls.append((layer_id.name, call))
        return call


@dataclass
class ModelRun:
    """A model or a block, and how it is run: `call(x)` on token ids (B, T) or hidden states (B, T, C)."""

    name: str
    module: nn.Module
    call: Callable[..., Any]
    draw: Callable[[int], Tensor]  # inputs, by the seed
    inputs: str  # in words
    dtype: torch.dtype
    training: list[nn.Module] = field(default_factory=list)  # modules to be put back into training mode
    calls: list[tuple[str, Call]] = field(default_factory=list)
    depth: str = ""  # how many of its layers were built, if it has more or may: "2 of 24 layers"
    memory: int = 0  # tokens of the other text that a decoder reads, if it is of another length
    own: bool = False  # whether it is the caller's own instance, whose dtype stays as it is

    def restore(self) -> None:
        """Put the caller's own model back into training mode."""
        for part in self.training:
            part.training = True

    def outputs(self, x: Tensor, **more: Any) -> Tensor | None:
        """Return an output (B, T, …) of the model, or None if it gives none for every position."""
        try:
            with torch.no_grad():
                result = self.call(x, **more)
        except (Exception, SystemExit):  # the author's code may raise anything
            return None
        return next((y for y in tensors_in_result(result) if _is_sequence(y, x)), None)


def _is_sequence(y: Tensor, x: Tensor) -> bool:
    return y.is_floating_point() and y.ndim >= 3 and y.shape[:2] == x.shape[:2]


def find_model(thing: Any, init: dict[str, Any], call: dict[str, Any], device: str) -> ModelRun | None:
    """Return a model or a block ready to run; None if the thing is an attention itself, or not a module.

    Whether it is one is seen by running it: it reads token ids, or a part of it attends.
    """
    is_class = isinstance(thing, type) and issubclass(thing, nn.Module)
    if not is_class and not isinstance(thing, nn.Module):
        return None
    try:
        module = build(thing, init) if is_class else thing
    except CheckError:
        return None  # `adapt` says what is missing
    has_sinks = any(hasattr(part, "sinks") for part in module.modules())  # gpt-oss, which has no SDPA
    for part in module.modules() if is_class and not has_sinks else ():
        # A layer of Transformers that no model has built names no implementation, and none is observed then.
        config: Any = getattr(part, "config", None)
        if getattr(config, "_attn_implementation", "") is None:
            config._attn_implementation = "sdpa"
    embeds = any(isinstance(part, nn.Embedding) for part in module.modules())
    if not embeds and not _is_block(module):
        return None
    run = _reading_ids(module, call, device if is_class else None) if embeds else None
    if run is not None and (run.calls or attention_parts(module)):
        run.depth = depth_left_out(thing, init) if is_class else ""
        return run
    if run is not None:
        run.restore()
        return None
    run = _reading_states(module, call, device) if _is_block(module) else None
    # Where the module itself attends, it is an attention, whatever it holds.
    return run if run is not None and any(name for name, _ in run.calls) else None


def _reading_ids(module: nn.Module, call: dict[str, Any], device: str | None) -> ModelRun | None:
    """Return a model that ran on token ids.

    One that was built here gets new weights, on `device`. The caller's own, where `device` is None, is run
    as it is, in eval mode for as long as the check lasts. Neither is copied: minGPT's blocks hold their MLP
    in a lambda, which a copy would share with the original.
    """
    names, dtypes = list(inspect.signature(module.forward).parameters), [torch.float64, torch.float32]
    vocabulary_size = _vocabulary_size(module)
    if vocabulary_size < 8 or not names:
        return None
    training = [part for part in module.modules() if part.training]
    module.eval()
    if device is not None:
        draw_weights(module.to(device))
    where = next((p.device for p in module.parameters()), torch.device("cpu"))
    if device is None:
        dtypes = [next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)]
    first = next((name for name in ("decoder_input_ids", "input_ids") if name in names), names[0])
    # A decoder reads another text, which is shorter or longer: then cross-attention is known by its sizes.
    changes = (-2, 2, 0) if first == "decoder_input_ids" else (0,)
    for dtype, change, T in itertools.product(dtypes, changes, _LENGTHS):
        if device is not None:
            in_dtype(module, dtype)

        def draw(seed: int, T: int = T) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            low = 4 if vocabulary_size > 16 else 0  # the first ids are often special: padding, unknown
            return torch.randint(low, vocabulary_size, (2, T), generator=generator).to(where)

        def run(
            x: Tensor,
            *,
            draw: Callable[[int], Tensor] = draw,
            dtype: torch.dtype = dtype,
            S: int = T + change,
            **more: Any,
        ) -> Any:
            states = torch.zeros(*x.shape, 1, dtype=dtype)
            passed = make_values(call, Question("call", states, states, states)) | more
            if first == "decoder_input_ids":  # beside an encoder, which reads one text for all
                passed.setdefault("input_ids", torch.cat([draw(9), draw(8)], 1)[:1, :S].expand(len(x), -1))
            return module(**{first: x}, **passed)

        found = ModelRun(type(module).__name__, module, run, draw, f"token ids (2, {T})", dtype, training)
        found.own, found.memory = device is None, T + change if change else 0
        if _observe(found):
            return found
    found.restore()
    return None


def _vocabulary_size(model: nn.Module) -> int:
    """Return how many tokens a model knows: the size of its input embedding, or of its first embedding."""
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding))
    get_embedding = getattr(model, "get_input_embeddings", None)
    try:
        own = get_embedding() if callable(get_embedding) else None
    except NotImplementedError:  # a model of Transformers without one
        own = None
    return int(getattr(own, "num_embeddings", embedding.num_embeddings))


def _reading_states(module: nn.Module, call: dict[str, Any], device: str) -> ModelRun | None:
    """Return a block that ran on hidden states."""
    adapted = adapt(module, {}, None, call)
    adapted.device = device
    for subject, dtype in itertools.product(forms(adapted), (torch.float64, torch.float32)):
        width = _state_width(module)
        cases = Cases(subject, width, width, max_length(subject))
        question = cases.plain(T=11).to(dtype)
        own = subject.module_as(dtype)
        assert own is not None

        def run(
            x: Tensor,
            subject: Subject = subject,
            own: nn.Module = own,
            question: Question = question,
            cases: Cases = cases,
        ) -> Any:
            inputs = question.map_inputs(lambda _: x)
            if subject.inputs == "context":  # a decoder's memory is another text, the same for every item
                memory = cases.plain(T=9, seed=7).q.to(x.dtype)[:1].expand(len(x), -1, -1)
                inputs = replace(inputs, k=memory, v=memory)
            reply = subject.run(inputs, module=own)
            if reply.error is not None:
                raise reply.error
            return reply.answer

        def draw(seed: int, cases: Cases = cases, dtype: torch.dtype = dtype) -> Tensor:
            return cases.plain(T=11, seed=seed).q.to(dtype)

        shape = tuple(question.q.shape)
        found = ModelRun(type(module).__name__, own, run, draw, f"hidden states {shape}", dtype)
        found.memory = 9 if subject.inputs == "context" else 0
        if _observe(found):
            return _time_first(found) or found
    return None


def _time_first(run: ModelRun) -> ModelRun | None:
    """Return a block as one on (B, T, C) if it takes (T, B, C), as nn.TransformerEncoderLayer does.

    Then the items of its second axis do not depend on each other, and those of its first do.
    """

    def call(x: Tensor) -> list[Tensor]:
        results = tensors_in_result(run.call(x.transpose(0, 1)))
        return [y.transpose(0, 1) if y.ndim > 1 else y for y in results]

    turned = replace(run, call=call, inputs=f"{run.inputs} as (T, B, C)", calls=[])
    if _mixes_batch(run, run.draw(3)) and _mixes_batch(turned, run.draw(3)) is False and _observe(turned):
        return turned
    return None


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


def _mixes_batch(run: ModelRun, x: Tensor) -> bool | None:
    """Return whether the items of a batch depend on each other; None if they cannot be run alone."""
    more = _with_targets(run, x) or {}
    together = run.outputs(x, **more)
    alone = [run.outputs(item[None], **dict.fromkeys(more, item[None])) for item in x]
    parts = [y for y in alone if y is not None]
    if together is None or len(parts) < len(alone):
        return None
    return bool(_differ(together, torch.cat(parts)).any())


def _state_width(module: nn.Module) -> int:
    """Return the width of a block's hidden states: that of its norms, or else of its first layer."""
    norms = [part for part in module.modules() if "norm" in type(part).__name__.lower()]
    sizes = [p.numel() for part in norms for p in part.parameters(recurse=False) if p.ndim == 1]
    return Counter(sizes).most_common(1)[0][0] if sizes else module_width(module)


def _observe(run: ModelRun) -> bool:
    """Run a model once and keep its attention calls; returns whether it ran."""
    collector = CallCollector()
    try:
        with torch.no_grad(), observed(run.module, collector, choose_sources(run.module)):
            run.call(run.draw(0))
    except (Exception, SystemExit):  # it does not take such inputs
        return False
    run.calls = collector.calls
    return True


def _is_block(module: nn.Module) -> bool:
    """Return whether a module has layers around a part that may be an attention, such as an MLP.

    An attention module has its projections, of known names, and at most one that follows the heads.
    """
    matrices = [path for path, p in module.named_parameters() if p.ndim > 1]
    for path, part in module.named_modules():
        inside = [p for p in part.parameters() if p.ndim > 1]
        if not path or len(inside) < 2 or isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        outside = [vocabulary.projection(p) for p in matrices if not p.startswith(f"{path}.")]
        if None in outside or outside.count("out") > 1:
            return True
    return False


def _unit(model: nn.Module, path: str) -> str:
    """Return the path of the attention module that a call belongs to: of all heads, with its projections."""
    unit = path.partition("#")[0]
    parent = unit
    while parent:
        parent = parent.rpartition(".")[0]
        part = model.get_submodule(parent)
        if not parent or _is_block(part):
            break
        if not isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            unit = parent
    return unit


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
        return _check_model(run, _LayerJudge(run, check_alone, scale), causal, window)
    finally:
        run.restore()


def _check_model(run: ModelRun, judge: _LayerJudge, causal: bool | None, window: int | None) -> Report:
    layers = [judge.judge(unit, calls) for unit, calls in _by_unit(run).items()]
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
    _check_window(report, run, window)
    _check_causality(report, run, causal)
    _check_batch(report, run)
    if run.inputs.endswith("(T, B, C)"):
        report.equals = "a block on (T, B, C)"
        if (stated := _batch_first_words(run.module)) and not report.undecided:
            report.undecided = (
                f"it attends over the first axis, as on (T, B, C), and its source says {stated}"
            )
    _check_cross_attention(report, run)
    _check_shared_tensors(report, run)
    _check_training(report, run)
    _check_padding(report, run)
    names = inspect.signature(run.module.forward).parameters
    if run.depth:
        report.checks.append(Check(f"more than {run.depth}", "untried", "pass their number, or an instance"))
    if cache := next((name for name in names if vocabulary.argument(name) == "cache"), None):
        how = f"generate with `{cache}` and without, and compare: positions may be off under it"
        report.checks.append(Check("cache", "untried", how))
    return report


def _count(layers: list[LayerVerdict]) -> str:
    return f"{len(layers)} attention layer{'s' * (len(layers) != 1)}"


def _by_unit(run: ModelRun) -> dict[str, list[Call]]:
    """Return the calls of every attention module, and the modules called attention that made none."""
    units: dict[str, list[Call]] = {}
    for name, call in run.calls:
        units.setdefault(_unit(run.module, name), []).append(call)
    for path in attention_parts(run.module):
        related = any(f"{path}.".startswith(f"{u}.") or f"{u}.".startswith(f"{path}.") for u in units)
        if not related:
            units[path] = []
    return units


class _LayerJudge:
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
            return replace(row, verdict="wrong", mistake=named, detail=_first_failure(alone))
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


def _first_failure(report: Report) -> str:
    return f"alone, {report.failures[0]}" if report.failures else ""


def _check_window(report: Report, run: ModelRun, window: int | None) -> None:
    """Check that some layer has the window that the caller promised."""
    if window is None:
        return
    found = [call.mask.window_size() for _, call in run.calls if isinstance(call, AttentionCall)]
    if window in found:
        report.checks.append(Check("window", "passed"))
    else:
        _add_mistake(report, "window", f"no layer has a window of {window} keys", "window-dropped")


def _check_causality(report: Report, run: ModelRun, causal: bool | None) -> None:
    """Change later tokens: no earlier output of a model that is causal may change."""
    masks = [call.mask for _, call in run.calls if isinstance(call, AttentionCall)]
    hidden = [mask.is_causal for mask in masks]
    expected = causal
    # nn.TransformerDecoderLayer gets its causal mask from the caller.
    is_given_masks = run.draw(0).is_floating_point() and any(
        "mask" in name for name in inspect.signature(run.module.forward).parameters
    )
    is_named_so = any(
        vocabulary.predicts_next_token(n) or vocabulary.says_causal(n) for n in _class_names(run)
    )
    names = inspect.signature(run.module.forward).parameters
    # A decoder that is trained on its input ids must not see the later ones, unless the caller masks them.
    is_decoder = "decoder_input_ids" in names
    given = [n for n in names if n != "attention_mask" and vocabulary.argument(n) == "mask"]
    if causal is None and (is_named_so or (is_decoder and not given)) and not is_given_masks:
        expected = True
    stacked, mixed = _mixed_stack(run), ""
    if causal is None and is_decoder and given:
        mixed = f"`{given[0]}` was not passed"
    elif causal is None and stacked is not None:
        mixed = f"{_paths(stacked[True])} causal, {_paths(stacked[False])} not"
        expected = expected or _predicts_tokens(run)
    leak = _find_leak(run)
    if leak is None:
        detail = "it gives no output for every token, or none that depends on another token"
        report.checks.append(Check("causality", "skipped", detail))
        _add_mixed(report, mixed)
        return
    if not leak:
        report.assumptions.append("causal, as measured")
        report.checks.append(Check("causality", "passed", "no output depends on a later token"))
        _check_causality_under_padding(report, run)
        return
    detail = f"output {leak[0]} depends on token {leak[1]}"
    if expected or (hidden and all(hidden)):
        through = "" if not hidden or not all(hidden) else ", though every attention layer's mask is causal"
        mistake = "no-mask" if masks and not any(mask.hides for mask in masks) else ""
        through += f": of its layers {mixed}" if mixed else ""
        _add_mistake(report, "causality", detail + through, mistake)
    else:
        report.assumptions.append("not causal, as measured")
        _add_mixed(report, mixed)


def _class_names(run: ModelRun) -> list[str]:
    """Return the name of a model's class and its other names in its file: `GPT = TinyTransformer`."""
    kind = type(run.module)
    file = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    return [run.name, *(name for name, value in list(file.items()) if value is kind)]


def _add_mixed(report: Report, mixed: str) -> None:
    if mixed:
        how = "say causal=True or causal=False, which the model should be"
        report.checks.append(Check(f"one answer on causality ({mixed})", "untried", how))


def _mixed_stack(run: ModelRun) -> dict[bool, list[str]] | None:
    """Return the self-attention layers of a stack, `h.0.attn`, `h.1.attn` …, with and without a causal mask.

    None if every stack has layers of one kind only. An encoder and a decoder are two stacks, and so are the
    two attentions of a decoder's blocks.
    """
    stacks: dict[tuple[str, torch.Size], dict[bool, list[str]]] = {}
    for name, call in run.calls:
        if isinstance(call, AttentionCall) and call.q.shape[-2] == call.k.shape[-2]:
            unit = _unit(run.module, name)
            key = (re.sub(r"\d+", "#", unit, count=1), call.q.shape)
            layers = stacks.setdefault(key, {True: [], False: []})[call.mask.is_causal]
            layers.append(unit) if unit not in layers else None
    return next((stack for stack in stacks.values() if stack[True] and stack[False]), None)


def _paths(units: list[str]) -> str:
    return ", ".join(units if len(units) < 4 else [*units[:2], "…", units[-1]])


def _predicts_tokens(run: ModelRun) -> bool:
    """Return whether a model has a head of the vocabulary's size and says that it is a language model's.

    Masked language models have both as well (`labels` and `lm_head` of RoBERTa): it is a sign only for those
    that have causal layers.
    """
    x = run.draw(1)
    more = None if x.is_floating_point() else _with_targets(run, x)
    y = None if more is None else run.outputs(x, **more)
    names = (*inspect.signature(run.module.forward).parameters, *dict(run.module.named_children()))
    is_said = any(name in (*_TARGETS, "lm_head") for name in names)
    return y is not None and is_said and y.shape[-1] >= _vocabulary_size(run.module)


def _check_causality_under_padding(report: Report, run: ModelRun) -> None:
    """Check that a causal model is causal with its padding mask, which may replace the causal one."""
    name = _padding_argument(run)
    if name is None:
        return
    visible = torch.ones_like(run.draw(1))
    # The mask is that of the encoder's text, if there is one.
    text = {"input_ids": run.draw(9)} if run.memory else {}
    padded = visible.clone()
    padded[:, visible.shape[1] // 2] = 0
    leaks = [
        [_find_leak(run, **text, **{name: meaning(mask)}) for mask in (visible, padded)]
        for meaning in _meanings(name)
    ]
    if [(), ()] in leaks:
        report.checks.append(Check("causality with padding", "passed", f"with `{name}`, too"))
    elif leak := next((leak for leak in itertools.chain(*leaks) if leak), None):
        detail = f"output {leak[0]} depends on token {leak[1]} with `{name}`, though not without"
        _add_mistake(report, "causality with padding", detail, "no-mask")


def _padding_argument(run: ModelRun) -> str | None:
    """Return the argument of a model of tokens that hides padding by a mask (B, T); None if it has none."""
    names = inspect.signature(run.module.forward).parameters
    name = next((n for n in names if n == "attention_mask" or vocabulary.argument(n) == "padding"), None)
    return None if name is None or "len" in name or run.draw(0).is_floating_point() else name


def _meanings(name: str) -> list[Callable[[Tensor], Tensor]]:
    """Return the ways to write which tokens are visible, given as (B, T) with 1 for a visible token.

    In `attention_mask` 1 is a token. True in `key_padding_mask` hides in PyTorch, and shows in flash-attn.
    """
    if name == "attention_mask":
        return [lambda visible: visible]
    return [lambda visible: visible == 0, lambda visible: visible == 1]


def _check_cross_attention(report: Report, run: ModelRun) -> None:
    """Say if a decoder sees the other text under a causal mask, as only simultaneous translation does."""
    calls = [(name, call) for name, call in run.calls if isinstance(call, AttentionCall)]
    crossing = [name for name, call in calls if call.k.shape[-2] == run.memory and call.mask.is_causal]
    if crossing:
        unit = _unit(run.module, crossing[0])
        how = "pass it no causal mask, unless the model translates while it reads"
        what = f"cross-attention to the whole of the other text (`{unit}` is causal)"
        report.checks.append(Check(what, "untried", how))


def _check_shared_tensors(report: Report, run: ModelRun) -> None:
    """Say if a tensor that every layer of a stack gets, such as rotary angles, is changed on the way.

    Hidden states may be changed in place, and so may what depends on tokens: a pair representation, a cache.
    """
    units = [unit for unit in _by_unit(run) if unit]
    first: dict[tuple[str, str, int], tuple[Tensor, Tensor, str]] = {}  # the tensor, its value, its layer
    changed: dict[str, tuple[str, str, str]] = {}

    def watch(unit: str) -> Callable[..., None]:
        stack = re.sub(r"\d+", "#", unit, count=1)

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            names = list(inspect.signature(module.forward).parameters)
            values = [*zip(names[1:], args[1:], strict=False), *kwargs.items()]  # without the hidden states
            for name, value in values:
                for x in value if isinstance(value, tuple | list) else (value,):
                    if not isinstance(x, Tensor) or x.numel() < 2 or _has_batch(x, run):
                        continue
                    before, copy, layer = first.setdefault((stack, name, id(x)), (x, x.clone(), unit))
                    if before is x and layer != unit and not torch.equal(copy, x):
                        changed.setdefault(stack, (name, layer, unit))

        return look

    hooks = [
        run.module.get_submodule(unit).register_forward_pre_hook(watch(unit), with_kwargs=True)
        for unit in units
    ]
    try:
        run.outputs(run.draw(0))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer, unit in changed.values():
        what = f"comparison of `{name}`, which is changed in place between `{layer}` and `{unit}`"
        report.checks.append(Check(what, "untried", "give every layer its own copy, or change it for none"))


def _has_batch(x: Tensor, run: ModelRun) -> bool:
    """Return whether a tensor has an entry for every sequence: then it may depend on tokens."""
    return x.ndim > 2 and x.shape[0] == run.draw(0).shape[0]


def _check_training(report: Report, run: ModelRun) -> None:
    """Check that a model of tokens that is causal in eval mode is causal in training mode, too.

    Dropout is off, and random numbers are the same in every run. A batch norm takes its statistics over all
    tokens in training, so that the model learns to read later ones. Encoders may do that, and so may blocks
    on hidden states: streaming Conformers have one after a causal convolution.
    """
    causal = any(check.name == "causality" and check.status == "passed" for check in report.checks)
    if not causal or run.draw(0).is_floating_point():
        return

    def call(x: Tensor, **more: Any) -> Any:
        with torch.random.fork_rng(devices=[]), CallMonitor(dropout=False):
            torch.manual_seed(0)
            return run.call(x, **more)

    parts = [(part, part.training) for part in run.module.modules()]
    # Running statistics: a batch norm writes into them, other layers replace them.
    buffers = [
        (part, name, x, x.clone()) for part, _ in parts for name, x in part._buffers.items() if x is not None
    ]
    training = replace(run, call=call)
    try:
        run.module.train()
        leak = _find_leak(training) if _is_repeatable(training) else None
        mixed = bool(leak) and _mixes_batch(training, run.draw(3)) is True
    finally:
        for part, mode in parts:
            part.training = mode
        for part, name, buffer, value in buffers:
            buffer.data.copy_(value)
            part._buffers[name] = buffer
    if not leak:
        if leak is not None:
            report.checks.append(Check("causality in training", "passed"))
        return
    detail = f"output {leak[0]} depends on token {leak[1]} in training mode, though not in eval mode"
    modules = run.module.named_modules()
    norm = next(((name, part) for name, part in modules if isinstance(part, _BatchNorm)), None)
    if norm is None:
        _add_mistake(report, "causality in training", detail, "")
        return
    kind = type(norm[1]).__name__
    detail += f": `{norm[0]}` ({kind}) takes its mean and variance over all tokens of the batch"
    fix = f"nn.LayerNorm or nn.RMSNorm instead of nn.{kind}: they use one token's numbers only"
    _add_mistake(report, "causality in training", detail, "batch-items-mixed" if mixed else "", fix)


def _is_repeatable(run: ModelRun) -> bool:
    """Return whether a model gives the same output three times: it may draw numbers by other means."""
    x = run.draw(1)
    more = _with_targets(run, x) or {}
    first, *others = (run.outputs(x, **more) for _ in range(3))
    return first is not None and all(y is not None and torch.equal(first, y) for y in others)


def _find_leak(run: ModelRun, **options: Tensor) -> tuple[int, int] | tuple[()] | None:
    """Return the first output that depends on a later token; () if there is none; None if it is unknown.

    `options` are further arguments of the model, the same in every run.
    """
    x, other = run.draw(1), run.draw(2)
    more = _with_targets(run, x)
    more = None if more is None else more | options
    before = None if more is None else run.outputs(x, **more)
    if before is None or more is None or before.isnan().any():
        return None
    T = x.shape[1]
    first_changed = run.outputs(torch.cat([other[:, :1], x[:, 1:]], 1), **more)
    if first_changed is None or not bool(_differ(before, first_changed)[1:].any()):
        return None  # with weights of 0, as some output projections begin, no token depends on another
    for token in range(1, T):
        changed = torch.cat([x[:, :token], other[:, token:]], 1)
        after = run.outputs(changed, **more)
        if after is None:
            return None
        rows = _differ(before, after)[:token].nonzero()
        if len(rows):
            return int(rows[0]), token
    return ()


def _with_targets(run: ModelRun, x: Tensor) -> dict[str, Any] | None:
    """Return the keywords with which a model gives an output for every token; None if there are none."""
    if run.outputs(x) is not None:
        return {}
    names = inspect.signature(run.module.forward).parameters
    for name in (name for name in _TARGETS if name in names and not x.is_floating_point()):
        if run.outputs(x, **{name: x}) is not None:
            return {name: x}
    return None


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (T,), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    return _where_differ(a, b).any(0)


def _where_differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (B, T), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    rounding = 1e-9 if a.dtype == torch.float64 else 1e-4
    largest = a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1e-30)
    # Logits of forbidden tokens may be -inf in both.
    same = ((a - b).abs() <= rounding * largest) | (a == b)
    return ~same.flatten(2).all(-1)


def _check_batch(report: Report, run: ModelRun) -> None:
    """Run each sequence of a batch alone: it must give the same output."""
    x = run.draw(3)
    more = _with_targets(run, x)
    together = None if more is None else run.outputs(x, **more)
    if together is None or more is None:
        return
    alone = [run.outputs(item, **dict.fromkeys(more, item)) for item in (x[:1], x[1:])]
    if any(y is None for y in alone):
        report.checks.append(Check("batch", "skipped", "it does not take one sequence"))
    elif bool(_differ(together, torch.cat([y for y in alone if y is not None])).any()):
        _add_mistake(report, "batch", "a sequence gives another output in a batch", "batch-items-mixed")
    else:
        report.checks.append(Check("batch", "passed", "sequences do not depend on each other"))


def _check_padding(report: Report, run: ModelRun) -> None:
    """Hide a token of each sequence by the model's padding mask, and change it: no other output may change.

    Each sequence hides another token, since a model may use the first one's mask for all. A model that was
    built here runs in float64, where `(1 - mask.float()) * torch.finfo(x.dtype).min` is NaN, and its users do
    not: NaN counts if it is there in float32, too.
    """
    name = _padding_argument(run)
    if name is None:
        return
    problems = [_padding_problem(run, name, meaning) for meaning in _meanings(name)]
    if "" not in problems and any(p and p.endswith("NaN") for p in problems) and not run.own:
        in_dtype(run.module, torch.float32)
        narrow = replace(run, call=partial(run.call, dtype=torch.float32), dtype=torch.float32)
        problems = [_padding_problem(narrow, name, meaning) for meaning in _meanings(name)]
        in_dtype(run.module, run.dtype)
    if "" in problems:
        report.checks.append(Check("padding", "passed", f"a token that `{name}` hides changes nothing"))
    elif detail := next((problem for problem in problems if problem), None):
        _add_mistake(report, "padding", detail, "" if detail.endswith("NaN") else "padded-keys-leak")
    else:
        report.checks.append(Check("padding", "skipped", f"`{name}` does not take (B, T) with 1 for a token"))


def _padding_problem(run: ModelRun, name: str, meaning: Callable[[Tensor], Tensor]) -> str | None:
    """Return what is wrong with a padding mask; "" if nothing is, None if the model does not take it."""
    names = inspect.signature(run.module.forward).parameters
    x = run.draw(4)
    B, T = x.shape
    hidden = torch.tensor([T // 2, min(T // 2 + 2, T - 1)], device=x.device)
    items = torch.arange(B, device=x.device)
    other, visible = x.clone(), torch.ones_like(x)
    other[items, hidden] = (x[items, hidden] + 1).where(x[items, hidden] < x.max(), x.min())
    visible[items, hidden] = 0
    more = _with_targets(run, x)
    plain = None if more is None else run.outputs(x, **more)
    if plain is None or more is None:
        return None
    has_encoder = "decoder_input_ids" in names  # the mask is that of the encoder's text
    texts = [(x, {"input_ids": y}) if has_encoder else (y, {}) for y in (x, other)]
    unmasked, before, after = (
        run.outputs(y, **more, **text, **{name: meaning(mask)})
        for (y, text), mask in ((texts[0], torch.ones_like(x)), (texts[0], visible), (texts[1], visible))
    )
    if before is None or after is None:
        return None
    own = torch.zeros_like(visible, dtype=torch.bool) if has_encoder else visible == 0
    for outputs, number in ((unmasked, "no token"), (before, "one token")):
        if outputs is not None and bool((outputs.isnan().flatten(2).any(-1) & ~own).any()):
            return None if plain.isnan().any() else f"with `{name}` hiding {number}, its output is NaN"
    places = (_where_differ(before, after) & ~own).nonzero()
    if not len(places):
        return ""
    item, row = places[0].tolist()
    return f"token {int(hidden[item])}, hidden by `{name}`, changes output {row}"


def _add_mistake(report: Report, check: str, detail: str, mistake: str, fix: str = "") -> None:
    report.checks.append(Check(check, "failed", detail, mistake))
    if mistake and all(d.name != mistake for d in report.diagnoses):
        entry = get_mistake(mistake)
        report.diagnoses.append(
            Diagnosis(mistake, f"In the whole model, {detail}.", entry.effect, fix or entry.fix)
        )
