"""How visible is a mistake? Its distance from the right answer, in tolerances, by kind of input.

Without arguments `measure_visibility` asks the questions that a check asks; with inputs it says which
mistakes a test on these inputs would not notice, and why. A mistake with `changes` is run as a variant of
attention. One that only another probe finds is planted in a program and checked; its diagnosis says how far
off it is.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.attention.inputs import check_inputs
from regard.attention.masks.named_masks import tensor_mask
from regard.attention.tensors import check_floats, check_tensor
from regard.checker.catalogue import CATALOGUE, RULES, SCALES, Mistake
from regard.checker.checker import ask, check
from regard.checker.examples import (
    DISTRIBUTED_TEMPLATES,
    KERNEL_TEMPLATES,
    NAMES,
    TEMPLATES,
    loaded_program,
    plant_mistake,
)
from regard.checker.interpretation.cases import Cases
from regard.checker.oracle.oracle import TOLERANCE, expected_answer, pytorch_error, relative_error
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT, AttentionVariant, lacks
from regard.checker.oracle.wiring import Wiring
from regard.checker.probes.numbers import LIMIT
from regard.checker.ranks.distributed import adapt_for_ranks, make_trials
from regard.checker.ranks.ring import predict_mistakes
from regard.checker.reports.visibility_table import CLEAR, KINDS, MistakeDistance, VisibilityTable
from regard.checker.subject.adapt import adapt

LARGE = 88.0  # a score whose exponential overflows float32
LACKING = ("there is no ", "no key is hidden")  # how a reason begins if inputs lack what a mistake acts on
# Fields of a variant that need a module: one that splits its heads, or that has a part of its own.
OF_SPLITTING = {"split", "merge", "out", "layers"}
OF_PARTS = {"rotated", "rotation", "normalised", "bias"}


class Asked:
    """A question with its right answer, its tolerance and its kind."""

    def __init__(self, question: Question, wiring: Wiring, tolerance: float) -> None:
        self.question, self.wiring, self.tolerance = question, wiring, tolerance
        with torch.no_grad():
            self.right = CORRECT.answer(question, wiring)
            self.q, self.k, self.v = wiring.project(question)
        self.kind = self._kind()

    def _kind(self) -> str:
        """Return the one kind of input that a question is an example of."""
        question, (T, S) = self.question, (self.q.shape[2], self.k.shape[2])
        k = self.k.repeat_interleave(self.q.shape[1] // self.k.shape[1], 1)
        scale = self.q.shape[-1] ** -0.5 if self.wiring.scale is None else self.wiring.scale
        if float((self.q @ k.mT * scale).abs().max()) > LARGE:
            return "large scores"
        sinks = self.wiring.sinks if question.sinks is None else question.sinks
        options: dict[str, Any] = {"sink logits": sinks, "float mask": question.bias}
        options |= {"window": question.window, "softcap": question.softcap, "mask": question.mask}
        options |= {"padding": question.padding, "lengths": question.lengths}
        masks = [x is not None for x in (question.mask, question.padding, question.bias)]
        # A window and a soft cap alone are asked with causality.
        others = [question.causal and any(masks), question.window is not None, question.softcap is not None]
        if sum([*masks, *others]) > 1:
            return "two options"
        if question.ahead is not None:
            return "window"
        for kind, value in options.items():
            if value is not None:
                return kind
        if self.k.shape[1] < self.q.shape[1]:
            return "grouped heads"
        if T != S and question.causal:
            return "causal, T < S"
        if T != S or self.v.shape[3] != self.k.shape[3]:
            return "other shapes"
        return "causal" if question.causal else "plain"

    def distance(self, variant: AttentionVariant) -> float:
        """Return how far a variant's answer is from the right one; inf if it cannot be computed.

        A row in which the variant sees no key counts as 0: programs differ in what they give there.
        """
        try:
            with torch.no_grad():
                answer = variant.answer(self.question, self.wiring)
            if answer.free is not None:
                answer = Answer(answer.output.masked_fill(answer.free, 0.0))
            return relative_error(answer, self.right) / self.tolerance
        except (RuntimeError, ValueError, IndexError):
            return math.inf

    def reasons(self, change: dict[str, Any]) -> set[str]:
        """Return the reasons why a change to the variant can make no difference here; none if it can."""
        return {_why(self, name, value) for name, value in change.items()} - {""}

    def lacks(self, change: dict[str, Any]) -> bool:
        """Return whether the question has nothing that a change to the variant could act on."""
        return any(reason.startswith(LACKING) for reason in self.reasons(change))

    def applies(self, change: dict[str, Any]) -> bool:
        """Return whether a change concerns this question: some concern only modules of a kind."""
        splits = self.wiring.splits or OF_SPLITTING.isdisjoint(change)
        return splits and not any(
            lacks(name, self.question, self.wiring) for name in OF_PARTS & change.keys()
        )

    @property
    def hides(self) -> bool:
        """Whether any key is hidden from any query."""
        weights = self.right.weights
        return weights is not None and bool((weights == 0).any())


def _first(*reasons: tuple[bool, str]) -> str:
    """Return the first sentence that holds; "" if none does."""
    return next((sentence for holds, sentence in reasons if holds), "")


def _why(one: Asked, field: str, value: Any) -> str:
    """Return why another value of a variant's field makes no difference to a question; "" if it may."""
    asked, (H, T, D), (G, S) = one.question, one.q.shape[1:], one.k.shape[1:3]
    unhidden = "" if one.hides else "no key is hidden"
    if field not in OF_PARTS and (missing := lacks(field, asked, one.wiring)):
        return f"there is no {missing}"
    match field:
        case "causal":
            square = "there are as many queries as keys"
            return _first((T == 1, "there is a single query"), (T == S, square))
        case "window":
            too_wide = f"the window of {asked.window} is longer than the text of {S} keys"
            return too_wide if (asked.window or 0) >= S else ""
        case "mask_argument":
            assert asked.mask is not None
            symmetric = value == "transposed" and torch.equal(asked.mask, asked.mask.mT)
            return _first(
                (bool(asked.mask.all()), "the mask hides nothing"), (symmetric, "the mask is symmetric")
            )
        case "padding":
            assert asked.padding is not None
            return "all lengths are equal, so nothing is padded" if bool(asked.padding.all()) else ""
        case "softcap":
            little = unhidden or f"exp(−{asked.softcap:g}) is too little to show"
            return little if value == "after" else "the scores are far below the soft cap"
        case "masking" | "inverted":
            return ("there is no float mask" if asked.bias is None else "") if value == "scaled" else unhidden
        case "fill":
            return unhidden or f"no visible score comes near {value:g}"
        case "ahead":
            return "the window to the right holds every later key" if (asked.ahead or 0) >= S - 1 else ""
        case "sinks":
            sinks = one.wiring.sinks if asked.sinks is None else asked.sinks
            assert sinks is not None
            nothing = bool((sinks == -torch.inf).all()), "the sink logits are −∞, which takes no share"
            return _first(nothing, (bool((sinks == sinks[0]).all()), "all heads have the same sink logit"))
        case "chunk" | "block" if asked.splits is not None:
            return "" if asked.splits > 1 else "the keys are worked on in one part"
        case "chunk" | "block" if value is None:
            return "there is no number of parts, in which the keys are worked on"
        case "chunk" | "block":
            return f"a part of {value} keys holds the whole text of {S}" if value >= S else ""
        case "tiled":
            equal = "there are as many key/value heads as query heads"
            return _first((H == G, equal), (G == 1, "there is a single key/value head"))
        case "batch":
            return "the batch has one item" if one.q.shape[0] == 1 else ""
        case "scale":
            scale = one.wiring.scale
            return _first(
                (S == 1, "there is a single key, whose weight is always 1"),
                (scale is not None, f"the scale is {scale or 0:g}"),
                (S == D, f"there are {S} keys, as many as a head is wide"),
                (H == 1, "there is a single head"),
            )
        case "normalise" if value == "exp":
            return f"no score is above {LARGE:g}"
        case "normalise" if value == "renormalise":
            return unhidden or "no hidden score is far above the visible ones"
        case "roles":
            return "queries, keys and values are the same tensor" if asked.q is asked.v else ""
        case "detach":
            return "the output is right: only gradients show it"
    return ""


def measure_visibility(
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    mask: Tensor | None = None,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    ahead: int | None = None,
    scale: float | None = None,
    tolerance: float = TOLERANCE,
) -> VisibilityTable:
    """Measure how far each mistake of the catalogue is from the right answer, in tolerances.

    Without inputs, the inputs of `regard.check` are used. With inputs, the result says which mistakes a test
    that compares outputs on them would not notice, and why.

    Arguments:
        q, k, v: your test's queries (B, H, T, D), keys and values (B, G, S, D).
        causal, window, softcap, scale: the attention that your test asks for.
        mask: a boolean mask (T, S) or (B, 1, T, S), True where a key is visible.
        padding: a boolean mask (B, S), True where there is a token.
        bias: numbers (T, S) that are added to the scores.
        sinks: a sink logit per head, (H,).
        ahead: how many later keys a window shows; None for all of them.
        tolerance: the largest difference that your test accepts, relative to the largest expected number.

    >>> import torch
    >>> from regard.checker import measure_visibility
    >>> q, k, v = torch.randn(3, 1, 2, 16, 8)
    >>> measure_visibility(q, k, v, causal=True, window=64).unseen["window-off-by-one"]
    'the window of 64 is longer than the text of 16 keys'
    """
    if q is None or k is None or v is None:
        if not (q is k is v is None):
            raise ValueError("q, k, v: expected all three, or none for the inputs of a check")
        return _of_the_check()
    for name, x in {"q": q, "k": k, "v": v}.items():
        check_floats(name, x)
    if not q.ndim == k.ndim == v.ndim == 4:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"q, k, v: expected (B, H, T, D), (B, G, S, D) and (B, G, S, D), got {shapes}")
    shape = check_inputs(q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks).shape
    if 0 in (*shape.matrix, shape.E):
        raise ValueError(f"q, k, v: expected sizes of at least 1, got {shape.matrix} and {shape.E}")
    if bias is not None:
        tensor_mask(check_floats("bias", bias)).check(shape.matrix)
    if padding is not None:
        marks = check_tensor("padding", padding)
        if marks.dtype != torch.bool or marks.shape != (shape.B, shape.S):
            got = f"{tuple(marks.shape)} {marks.dtype}"
            raise ValueError(f"padding: expected booleans {(shape.B, shape.S)}, True for tokens, got {got}")
    question = Question("inputs", q, k, v, causal, mask, padding, bias, window, softcap)
    question = replace(question, sinks=sinks, ahead=ahead, flag=causal)
    question = question.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
    asked = Asked(question, Wiring(scale=scale), tolerance)
    mistakes, not_asked = [], []
    for mistake in CATALOGUE.values():
        modules = any(change.keys() & (OF_SPLITTING | OF_PARTS) for change in mistake.changes)
        if not mistake.changes or mistake.layouts or modules:
            not_asked.append(mistake.name)
        else:
            mistakes.append(_measure(mistake, [asked]))
    return VisibilityTable(tuple(mistakes), tolerance, (asked.kind,), tuple(not_asked))


def _measure(mistake: Mistake, asked: list[Asked]) -> MistakeDistance:
    """Measure the forms of a mistake on some inputs."""
    distances: dict[str, float] = {}
    unseen_forms: dict[str, str] = {}
    asked = [one for one in asked if not mistake.layouts or one.question.layout in mistake.layouts]
    for change in mistake.changes:
        variant, largest = replace(CORRECT, **change), 0.0
        for one in (one for one in asked if one.applies(change)):
            distance = one.distance(variant)
            distances[one.kind] = max(distance, distances.get(one.kind, 0.0))
            largest = max(largest, distance)
        blind = [one for one in asked if one.applies(change) and not one.lacks(change)]
        if not largest > 1.0 and blind:
            unseen_forms[_describe_form(change)] = _why_unseen(blind[0], [change], largest)
    largest = max(distances.values(), default=0.0)
    seen = largest > 1.0 or not mistake.changes or not asked
    reason = "" if seen else _why_unseen(asked[0], mistake.changes, largest)
    return MistakeDistance(mistake.name, distances, unseen_forms, reason)


def _why_unseen(asked: Asked, changes: Iterable[dict[str, Any]], distance: float) -> str:
    """Return why none of some changes makes a difference beyond the tolerance."""
    reasons = {reason for change in changes for reason in asked.reasons(change)}
    if len(reasons) > 1 and not asked.hides:
        return "no key is hidden"
    small = f"it is off by only {distance:.1g} of the tolerance" if distance else "nothing here depends on it"
    telling = {reason for reason in reasons if not reason.startswith(LACKING)}
    return "; ".join(sorted(telling or reasons)) or small


def _describe_form(change: dict[str, Any]) -> str:
    words = {function: word for word, function in (RULES | SCALES).items()}
    return ", ".join(f"{name} = {words[x] if callable(x) else x}" for name, x in change.items())


@functools.cache
def _of_the_check() -> VisibilityTable:
    """Measure every mistake on the questions that a check asks of the right templates."""
    asked = {kind: list(_questions(kind)) for kind in TEMPLATES}
    measured = _measure_on_ranks()
    for mistake in CATALOGUE.values():
        if mistake.name not in measured:
            # What only kernels can get wrong is asked of kernels, and everything else of other code.
            kernels = mistake.plants.keys() <= KERNEL_TEMPLATES.keys()
            own = [one for kind in asked if (kind in KERNEL_TEMPLATES) == kernels for one in asked[kind]]
            measured[mistake.name] = _measure_planted(mistake, _measure(mistake, own))
    present = {one.kind for questions in asked.values() for one in questions}
    kinds = tuple(kind for kind in KINDS if kind in present)
    return VisibilityTable(tuple(measured[name] for name in CATALOGUE), TOLERANCE, kinds)


def _measure_on_ranks() -> dict[str, MistakeDistance]:
    """Measure the mistakes of several processes, on the questions that a check asks of two."""
    name, source = next(iter(DISTRIBUTED_TEMPLATES.items()))
    with loaded_program(source, NAMES[name]) as program:
        subject = adapt_for_ranks(program, {}, 2)
    distances: dict[str, dict[str, float]] = {}
    for trial in make_trials(subject, 2, {}):
        plain = Cases(subject).plain(**trial["sizes"])
        asked = Asked(replace(plain, causal=bool(trial["flag"])), Wiring(), TOLERANCE)
        for mistake, output in predict_mistakes(asked.question, 2, None):
            by_kind = distances.setdefault(mistake, {})
            distance = relative_error(Answer(output), asked.right) / TOLERANCE
            by_kind[asked.kind] = max(distance, by_kind.get(asked.kind, 0.0))
    return {mistake: MistakeDistance(mistake, by_kind) for mistake, by_kind in distances.items()}


def _measure_planted(mistake: Mistake, measured: MistakeDistance) -> MistakeDistance:
    """Return the distance that a probe measures in a planted program, if outputs do not show the mistake."""
    if measured.largest >= CLEAR:
        return measured
    if mistake.unseen_because:
        return replace(measured, reason=mistake.unseen_because)
    kind = next(iter(mistake.plants))
    with loaded_program(plant_mistake(mistake, kind), NAMES[kind]) as program:
        report = check(program)
    distance = next((d.distance for d in report.diagnoses if d.name == mistake.name), None)
    failed = (*report.failures, *report.warnings)
    if distance is None or not failed:
        return measured
    return replace(measured, distances=measured.distances | {failed[0].name: distance}, reason="")


def _questions(kind: str) -> Iterator[Asked]:
    """Yield the questions that a check asks of a right template, the last one of each name."""
    program = loaded_program(TEMPLATES[kind], NAMES[kind])
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), program as right:
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        subject = adapt(right, {}, None)
        # As in a check, which passes the flag always: its default differs between implementations.
        session = ask(subject, {}, {"flag": False} if "causal" in subject.arguments else {})
    intent = session.right_intent
    if intent is None:
        raise ValueError(f"the {kind} template is not right")
    questions = {question.name: question for question in session.subject.asked if _is_comparable(question)}
    for question in questions.values():
        applied, tolerance = intent.apply(question.map_inputs(Tensor.detach)), TOLERANCE
        if question.dtype != torch.float64:
            right = expected_answer(applied, intent.wiring)
            tolerance = LIMIT * pytorch_error(question, intent, right, question.dtype)
        yield Asked(applied, intent.wiring, tolerance)


def _is_comparable(question: Question) -> bool:
    """Return whether a question is one of those whose output is compared with the oracle's."""
    # Extreme scores are asked in float32, whose exponentials overflow.
    exact = question.dtype == torch.float64 or question.name == "extreme scores"
    return (
        exact
        and question.scale is None  # an intent's own scale is that of the default
        and question.q.device.type == "cpu"
        and all(bool(x.isfinite().all()) for x in (question.q, question.k, question.v))
    )
