"""Finding out what the code is meant to compute: its shapes, its weights, its mask, and whether it is causal.

Guesses from names are verified by running the code. An `Intent` is one interpretation of the code, under
which its output is either right or wrong. If several are plausible all are kept, and the code is right if it
is right under one of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import causal as causal_rule
from regard.checker.diagnose import diagnose
from regard.checker.interpretation.cases import (
    Cases,
    causal_hypotheses,
    declared_causality,
    declared_options,
    declared_scale,
    holds_causal_mask,
    input_widths,
    max_length,
)
from regard.checker.interpretation.hypotheses import add_feature, find_features, head_width, likeliest, search
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    fitting_intents,
    window_conventions,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.call_tensors import HEAD_LAYOUTS, SEQUENCES, spell
from regard.checker.subject.construct import forms, is_certain, with_open_masks
from regard.checker.subject.inside import find_inside
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS, CacheLayout, PagedLayout
from regard.checker.subject.projections import find_wirings, head_counts
from regard.checker.subject.reply import OutputShapeError, Reply, lines_reached
from regard.checker.subject.source import source_of
from regard.checker.subject.subject import Subject

# Sizes that a kernel may want: widths that are powers of two, lengths that fill its blocks.
KERNEL_SIZES: tuple[dict[str, Any], ...] = ({}, {"powers": True}, {"powers": True, "multiple": 128})
_PAGES = (4, 16, 256)  # sizes of pages that kernels take

NEARLY_RIGHT = 3e-2  # relative: only precision is lost


@dataclass
class Understanding:
    """A subject, its interpretations, and the assumptions behind them."""

    subject: Subject
    compared: Subject  # whose answers are compared with the oracle's: the subject, or its attention observed
    cases: Cases
    intents: list[Intent]
    right_intent: Intent | None  # the interpretation under which the plain output is right
    dtype: torch.dtype  # in which mistakes are recognised: float64 if the code runs in it
    first: Reply  # the reply to the plain question
    assumptions: list[str] = field(default_factory=list)
    declared_causal: bool | None = None  # what the caller or the code itself declares
    roles: tuple[int, int, int] | None = (0, 1, 2)  # which of query, key, value, by name, acts as each
    inputs_as_named: bool = True  # whether each role is made of the input of its name, and of no other
    observed: Understanding | None = None  # by its own queries, keys and values, if its weights gave none
    fails_on_batch: bool = False  # right on one sequence; a batch fails because of .T

    @property
    def intent(self) -> Intent | None:
        """The right interpretation, or the most plausible one."""
        return self.right_intent or (self.intents[0] if self.intents else None)

    @property
    def as_named(self) -> bool:
        """Whether inputs and weights have the roles that their names promise."""
        return self.inputs_as_named and self.roles == (0, 1, 2)

    @property
    def causal(self) -> bool:
        """Whether the code should be causal by itself: by its interpretation, or by a mask that it holds."""
        if self.intent is None:
            return bool(self.declared_causal)
        rule = self.cases.always.get("rule")
        return self.intent.causal or (rule is not None and not bool(rule.to_dense(6).triu(1).any()))


def understand(
    subject: Subject, *, causal: bool | None, heads: int | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Find out everything that the probes need to know.

    Arguments:
        subject: the code under test.
        causal, heads, scale: what the caller stated; None if nothing.
        always: fields of every question: a window, a soft cap, a causal flag.
    """
    declared = causal if causal is not None else declared_causality(subject)
    if subject.layout in SEQUENCES:
        return _understand_sequences(subject, causal, declared, heads, scale, always)
    return _understand_heads(subject, causal, declared, scale, always)


def _understand_heads(
    subject: Subject, causal: bool | None, declared: bool | None, scale: float | None, always: dict[str, Any]
) -> Understanding:
    """Understand a function on queries, keys and values: try the layouts that it may take."""
    hypotheses = causal_hypotheses(subject, causal, declared)
    if subject.kernel_layouts and subject.kernel_layouts[0].kind in CACHED_LAYOUTS:
        hypotheses = sorted(hypotheses, reverse=True)  # with a cache it is causal, unless its numbers say not
    intents = [Intent(Wiring(scale=scale), c) for c in hypotheses]
    tried: dict[str, Understanding] = {}
    # A layout in which the output is right.
    for candidate in _head_forms(subject):
        layout = repr(candidate.kernel_layout or candidate.layout)
        if (several := _takes_several(candidate)) in tried and tried[several].first.error is None:
            continue  # code that takes several queries is judged on them: one sees every key, causal or not
        found = attempt(candidate, *_first_run(candidate, _head_cases(candidate, always)), intents, declared)
        if layout not in tried or tried[layout].first.error is not None:
            tried[layout] = found
        ran = [other for other in ("'BHTD'", "'BTD'") if other in tried and tried[other].first.error is None]
        if found.right_intent is not None and not (layout == "'TD'" and ran):
            understanding = interpret(found)
            understanding.fails_on_batch = any(
                other.first.used_dot_t and other.first.error is not None for other in tried.values()
            )
            return understanding
    if subject.kernel_layouts:
        return interpret(most_plausible(list(tried.values())))
    # A layout in which it is right with a feature, or in which the code at least runs.
    usual = [found for found in tried.values() if found.subject.layout in ("BHTD", "BTHD", "BTD", "TD")]
    running: list[Understanding] = []
    for found in usual:
        if found.first.error is None and not (found.subject.layout == "TD" and running):
            running.append(interpret(found))
            if running[-1].right_intent is not None:
                return running[-1]
    if running:
        split = [found for found in running if found.subject.layout in ("BHTD", "BTHD")]
        return most_plausible(split or running[:1])
    # It ran in none: the report shows the layout in which it came furthest, with its error.
    return max(usual, key=lambda found: lines_reached(found.first.error, subject.target))


def _head_forms(subject: Subject) -> Iterator[Subject]:
    """Yield a function on split heads in every layout that it may take, the likeliest first."""
    yield from (subject.replaced(kernel_layout=layout) for layout in subject.kernel_layouts)
    forms = with_open_masks(subject) if not subject.kernel_layouts else ()
    yield from (form.replaced(layout=layout) for form, layout in itertools.product(forms, HEAD_LAYOUTS))


def _head_cases(subject: Subject, always: dict[str, Any]) -> Iterator[Cases]:
    """Yield cases in the sizes that a function on split heads may want."""
    kernel = subject.kernel_layout
    if kernel is not None:
        always = always | {"layout": kernel.kind}
    for sizes in KERNEL_SIZES:
        for page in _PAGES if isinstance(kernel, PagedLayout) else (None,):
            yield Cases(subject, always=always if page is None else always | {"page": page}, **sizes)


def _takes_several(subject: Subject) -> str:
    """Return the layout of several queries in place of one."""
    kernel = subject.kernel_layout
    return repr(replace(kernel, single=False)) if isinstance(kernel, CacheLayout) and kernel.single else ""


def most_plausible(tried: list[Understanding]) -> Understanding:
    """Return the layout in which a mistake explains the numbers, or else the one that is nearest to right.

    It is for code that runs in several layouts and is right in none.
    """
    ran = [found for found in tried if found.first.error is None] if len(tried) > 1 else []
    ran.sort(key=_smallest_error)
    if ran and _smallest_error(ran[0]) < NEARLY_RIGHT:
        return ran[0]
    return next((found for found in ran if _is_explained(found)), (ran or tried)[0])


def _is_explained(understanding: Understanding) -> bool:
    """Return whether a mistake reproduces the reply to the plain question."""
    answer = understanding.first.answer
    observations = [] if answer is None else [Observation(understanding.cases.plain(), answer)]
    return bool(diagnose(observations, understanding.intents))


def _smallest_error(understanding: Understanding) -> float:
    """Return how far the reply to the plain question is from right, in the interpretation that suits it."""
    answer, question = understanding.first.answer, understanding.cases.plain()
    assert answer is not None
    return min((intent.error(question, answer) for intent in understanding.intents), default=math.inf)


def _understand_sequences(
    subject: Subject,
    causal: bool | None,
    declared: bool | None,
    heads: int | None,
    scale: float | None,
    always: dict[str, Any],
) -> Understanding:
    """Understand code on sequences (B, T, C): find its widths, its weights and a length that it takes."""
    # What the module declares of itself, and the interpretations of its weights.
    own = declared_options(subject, always)
    always = always | own
    hypotheses = causal_hypotheses(subject, causal, declared)
    if isinstance(rule := always.get("rule"), Mask) and rule == causal_rule:
        always.pop("rule")
        hypotheses = [True]
    wirings = _wirings(subject, heads, scale)
    intents = [Intent(wiring, c) for wiring in wirings for c in hypotheses]
    if "window" in own:
        conventions = window_conventions(source_of(subject))
        intents += [replace(intent, convention=c) for c in conventions for intent in intents[:8]]
    # A form in which it is right, or at least runs.
    tried: list[Understanding] = []
    for form in forms(subject):
        ran = _run_sequences(form, wirings, always)
        tried.append(attempt(form, *ran, _with_rotations(form, intents), declared))
        if tried[-1].right_intent is not None or (tried[-1].first.error is None and is_certain(form)):
            break
    best = max(tried, key=_success)
    dot_t = best.subject.layout == "TC" and tried[0].first.used_dot_t
    if dot_t and best.right_intent is None:
        best = tried[0]
    understanding = interpret(best)
    understanding.fails_on_batch = dot_t and best.right_intent is not None
    if understanding.right_intent is None and subject.module is not None:
        observed = _interpret_inside(understanding, hypotheses, scale)
        if observed is not None and not understanding.intents and observed.right_intent is None:
            return observed
        if observed is not None and observed.right_intent is not None and observed.as_named:
            return observed  # else its names promise another role, or another input
        understanding.observed = observed
    return understanding


def first_form(subject: Subject, always: dict[str, Any]) -> tuple[Subject, Cases]:
    """Return code on sequences in the first form in which it runs, and what makes questions for it.

    What it computes is not asked. `always` are fields of every question.
    """
    wirings = _wirings(subject, None, None)
    tried = []
    for form in forms(subject):
        cases, reply, _ = _run_sequences(form, wirings, always)
        if reply.error is None:
            return form, cases
        tried.append((form, cases))
    return tried[0]


def _success(understanding: Understanding) -> tuple[int, int]:
    """Return how far the code came in this form: it is right, it ran, it returned something, or it failed.

    The second number is the line at which it failed.
    """
    error = understanding.first.error
    if understanding.right_intent is not None:
        return 3, 0
    if error is None:
        return 2, 0
    return int(isinstance(error, OutputShapeError)), lines_reached(error, understanding.subject.target)


def _first_run(subject: Subject, attempts: Iterable[Cases]) -> tuple[Cases, Reply, torch.dtype]:
    """Run the code in the first sizes that it takes; in the first of all if it takes none."""
    failed: tuple[Cases, Reply, torch.dtype] | None = None
    for cases in attempts:
        reply, dtype = run_once(subject, cases.plain())
        if reply.error is None:
            return cases, reply, dtype
        failed = failed or (cases, reply, dtype)
    assert failed is not None
    return failed


def _run_sequences(
    subject: Subject, wirings: list[Wiring], always: dict[str, Any]
) -> tuple[Cases, Reply, torch.dtype]:
    """Run code on sequences at a width and a length that it takes."""
    attempts = _cases(subject, wirings, always)
    cases, reply, dtype = _first_run(
        subject, attempts if is_certain(subject) else itertools.islice(attempts, 1)
    )
    return (cases if reply.error else _with_fixed_length(cases)), reply, dtype


def _cases(subject: Subject, wirings: list[Wiring], always: dict[str, Any]) -> Iterator[Cases]:
    """Yield cases of the widths and lengths that the code may take, most plausible first."""
    widths = input_widths(subject, wirings)
    limit = max_length(subject)
    for length in (limit, None, 5, 4, 3, 2):
        yield Cases(subject, widths[0], widths[1], length, always, value_width=widths[2])
    for heads in [n for n in head_counts(subject.module, None, None, 1) if n > 1] if subject.module else []:
        q, k, v = (width * heads for width in widths)  # projections of one head that all heads share
        yield Cases(subject, q, k, limit, always, value_width=v)
    if limit is not None and subject.module is not None and not holds_causal_mask(subject.module):
        yield Cases(subject, widths[0], widths[1], limit, always, value_width=widths[2], fixed_length=limit)


def _with_fixed_length(cases: Cases) -> Cases:
    """Return the cases, with a fixed length if the code does not take a shorter sequence."""
    T = cases.plain().k.shape[-2]
    shorter = run_once(cases.subject, cases.plain(T=max(1, T - 2)))[0]
    return cases if shorter.error is None else replace(cases, fixed_length=T)


def _with_rotations(subject: Subject, intents: list[Intent]) -> list[Intent]:
    """Return the interpretations with the rotations that the subject's tables may mean."""
    if subject.tables is None:
        return intents
    return [
        replace(intent, wiring=replace(intent.wiring, rotate=rotation))
        for intent in intents
        for rotation in subject.tables.rotations()
    ]


def attempt(
    subject: Subject,
    cases: Cases,
    reply: Reply,
    dtype: torch.dtype,
    intents: list[Intent],
    declared: bool | None,
) -> Understanding:
    """Return a subject in one form with its reply to the plain question, which may be right in it."""
    right = find_right_intent(reply, cases.plain(), intents)
    return Understanding(subject, subject, cases, intents, right, dtype, reply, [], declared)


def interpret(tried: Understanding) -> Understanding:
    """Find the interpretation under which several outputs are right: a plain one, or one with features.

    If there is none, those with an evident feature join the interpretations under which mistakes are sought.
    """
    subject, cases, intents, reply = tried.subject, tried.cases, tried.intents, tried.first
    dtype, kernel = tried.dtype, subject.kernel_layout
    width = f", C = {cases.width}" if subject.layout in SEQUENCES else ""
    inputs = f"inputs {spell(subject.layout) + width if kernel is None else kernel.description}"
    understanding = replace(tried, right_intent=None, assumptions=[inputs])
    if reply.answer is None or not intents:
        return understanding
    others = [cases.plain(B=3, T=5, D=6, H=3, seed=3), cases.longer()]
    observations = [Observation(cases.plain(), reply.answer), *observe(subject, others, dtype)]
    fitting = fitting_intents(intents, observations)
    understanding.right_intent = search(observations, fitting, [])
    if understanding.right_intent is not None:
        return understanding
    if not fitting:
        understanding.intents = []
        return understanding
    bases = fitting[:8]
    width_of_head = head_width(bases[0].wiring, cases.plain())
    longest = max(observation.question.q.shape[-2] for observation in observations)
    features = [
        feature
        for feature in find_features(subject, bases[0].wiring, width_of_head, longest)
        if not (feature.kind == "cap" and "softcap" in cases.always)
        and not (feature.kind == "mask" and {"window", "rule"} & cases.always.keys())
    ]
    understanding.right_intent = search(observations, bases, features)
    if understanding.right_intent is None:
        held = [f for f in features if f.evident and f.kind in ("rotation", "bias", "sinks", "norm")]
        share = 16 // max(1, len({feature.kind for feature in held}))
        more = [add_feature(base, feature) for feature in likeliest(held, share) for base in bases[:2]]
        # First among the wirings: a fused projection has dozens, and mistakes are sought under the first 24.
        understanding.intents = [*bases, *(intent for intent in more if intent is not None), *fitting[8:]]
    return understanding


def observe(subject: Subject, questions: Iterable[Question], dtype: torch.dtype) -> list[Observation]:
    """Run the code on questions in one precision; those that it does not answer are left out."""
    replies = ((question, subject.run(question.to(dtype)).answer) for question in questions)
    return [Observation(question, answer) for question, answer in replies if answer is not None]


def _interpret_inside(
    understanding: Understanding, hypotheses: list[bool], scale: float | None
) -> Understanding | None:
    """Interpret a module by its own queries, keys, values and merged heads; None if they are not found."""
    subject, dtype = understanding.subject, understanding.dtype
    if understanding.first.answer is None or subject.module is None:
        return None
    if (found := find_inside(subject, understanding.cases)) is None:
        return None
    inside, wiring = found
    wiring = replace(wiring, scale=scale if scale is not None else declared_scale(subject))
    reply = inside.run(understanding.cases.plain().to(dtype))
    if reply.answer is None:
        return None
    intents = [Intent(wiring, c) for c in hypotheses]
    observed = interpret(
        attempt(inside, understanding.cases, reply, dtype, intents, understanding.declared_causal)
    )
    observed.subject, observed.first = subject, understanding.first
    observed.inputs_as_named = inside.sources == (0, 1, 2)
    observed.roles = inside.acting_roles() if observed.inputs_as_named else inside.sources
    observed.assumptions = [*understanding.assumptions, inside.describe()]
    return observed


def run_once(subject: Subject, question: Question) -> tuple[Reply, torch.dtype]:
    """Run the code in float64, or in float32 if it fails in float64. The error is that of the longer run."""
    reply = subject.run(question)
    if reply.error is not None:
        single = subject.run(question.to(torch.float32))
        reached = [lines_reached(attempt.error, subject.target) for attempt in (reply, single)]
        if single.error is None or reached[1] > reached[0]:
            return single, torch.float32
    return reply, torch.float64


def find_right_intent(reply: Reply, question: Question, intents: list[Intent]) -> Intent | None:
    """Return the first interpretation under which an answer is right."""
    answer = reply.answer
    if answer is None:
        return None
    return next((intent for intent in intents if intent.error(question, answer) < TOLERANCE), None)


def _wirings(subject: Subject, heads: int | None, scale: float | None) -> list[Wiring]:
    """Return the possible wirings of code on sequences, most plausible first."""
    module = subject.module
    if module is None or not any(True for _ in module.parameters()):
        H = heads or subject.extra.get(subject.arguments.get("heads", ""), 1)
        plain = Wiring(H, H, splits=True, width=40, scale=scale)
        # Tutorials teach attention without weights also without the scale.
        return [plain, replace(plain, scale=1.0)] if module is None and subject.inputs == "x" else [plain]
    declared = scale if scale is not None else declared_scale(subject)
    double = subject.module_as(torch.float64, device="cpu")
    assert double is not None
    return find_wirings(double, heads=heads, declared=declared)
