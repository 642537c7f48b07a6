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
    forms,
    head_width,
    holds_causal_mask,
    is_certain,
    max_length,
    module_width,
)
from regard.checker.interpretation.hypotheses import (
    Feature,
    add_feature,
    find_features,
    likeliest,
    window_conventions,
)
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    fitting_intents,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.call_tensors import HEAD_LAYOUTS, SEQUENCES, spell
from regard.checker.subject.inside import find_inside
from regard.checker.subject.kernel_layouts import CACHED_LAYOUTS, TensorLayout
from regard.checker.subject.projections import find_wirings, head_counts
from regard.checker.subject.source import lines_reached, source_of
from regard.checker.subject.subject import OutputShapeError, Reply, Subject

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
    def observation(self) -> Observation:
        """The plain question, with the answer of code that ran."""
        assert self.first.answer is not None
        return Observation(self.cases.plain(), self.first.answer)

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
    subject: Subject,
    always: dict[str, Any],
    *,
    causal: bool | None = None,
    heads: int | None = None,
    scale: float | None = None,
) -> Understanding:
    """Find out everything that the probes need to know.

    Arguments:
        subject: the code under test.
        always: fields of every question: a window, a soft cap, a causal flag.
        causal, heads, scale: what the caller stated; None if nothing.
    """
    declared = causal if causal is not None else declared_causality(subject)
    hypotheses = causal_hypotheses(subject, causal, declared)
    if subject.kernel_layouts and subject.kernel_layouts[0].kind in CACHED_LAYOUTS:
        hypotheses = sorted(hypotheses, reverse=True)  # with a cache it is causal, unless its numbers say not
    own = declared_options(subject, always)
    always = always | own
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
        if _is_covered(form, tried):
            continue
        cases, reply, dtype = _first_run(form, wirings, always)
        rotations = form.tables.rotations() if form.tables is not None else []
        rotated = [
            replace(intent, wiring=replace(intent.wiring, rotate=rotation))
            for intent in intents
            for rotation in rotations
        ]
        possible = rotated if form.tables is not None else intents
        tried.append(Understanding(form, form, cases, possible, None, dtype, reply, [], declared))
        if reply.answer is not None:
            tried[-1].right_intent = search([tried[-1].observation], possible, [])
        if tried[-1].right_intent is not None or (reply.error is None and is_certain(form)):
            break
    understanding = _interpret_likeliest(tried)
    failed = [other for other in tried if other.first.used_dot_t and other.first.error is not None]
    if failed and understanding.subject.layout == "TC" and understanding.right_intent is None:
        understanding = interpret(failed[0])
    understanding.fails_on_batch = bool(failed) and understanding.right_intent is not None
    if understanding.right_intent is not None or subject.layout not in SEQUENCES:
        return understanding
    observed = _interpret_inside(understanding, hypotheses, scale)
    if observed is not None and not understanding.intents and observed.right_intent is None:
        return observed
    if observed is not None and observed.right_intent is not None and observed.as_named:
        return observed  # else its names promise another role, or another input
    understanding.observed = observed
    return understanding


def _is_covered(form: Subject, tried: list[Understanding]) -> bool:
    """Return whether a form need not be tried, since a wider one has run."""
    ran = [found.subject for found in tried if found.first.error is None]
    kernel = form.kernel_layout
    if isinstance(kernel, TensorLayout) and kernel.single:
        # Code that takes several queries is judged on them: one sees every key, causal or not.
        layouts = [other.kernel_layout for other in ran]
        several = [x for x in layouts if isinstance(x, TensorLayout) and not x.single]
        return (kernel.queries, kernel.keys) in [(x.queries, x.keys) for x in several]
    # A mistake of the heads would not show in one head.
    return form.layout == "TD" and any(other.layout in ("BHTD", "BTD") for other in ran)


def _interpret_likeliest(tried: list[Understanding]) -> Understanding:
    """Interpret the form in which the code is right, a mistake explains it, it runs, or it came furthest."""
    ran = [found for found in tried if found.first.error is None]
    if not ran or tried[-1].right_intent is not None:
        return interpret(tried[-1] if ran else max(tried, key=_progress))
    if ran[0].subject.layout in SEQUENCES:
        return interpret(ran[0])
    if ran[0].subject.kernel_layout is not None:
        return interpret(most_plausible(ran))
    # Features may make it right in any of the layouts; the first mask with which it runs stands for one.
    layouts = {found.subject.layout: found for found in reversed(ran)}
    running: list[Understanding] = []
    for layout in [layout for layout in HEAD_LAYOUTS[:4] if layout in layouts] or list(layouts):
        running.append(interpret(layouts[layout]))
        if running[-1].right_intent is not None:
            return running[-1]
    split = [found for found in running if "H" in found.subject.layout]
    return most_plausible(split or running[:1])


def most_plausible(ran: list[Understanding]) -> Understanding:
    """Return the layout in which a mistake explains the numbers, or else the one that is nearest to right.

    It is for code that runs in several layouts and is right in none.
    """
    if len(ran) == 1:
        return ran[0]
    ran = sorted(ran, key=_smallest_error)
    if _smallest_error(ran[0]) < NEARLY_RIGHT:
        return ran[0]
    return next((found for found in ran if diagnose([found.observation], found.intents)), ran[0])


def _smallest_error(found: Understanding) -> float:
    """Return how far the reply to the plain question is from right, in the interpretation that suits it."""
    question, answer = found.observation.question, found.observation.answer
    return min((intent.error(question, answer) for intent in found.intents), default=math.inf)


def _progress(understanding: Understanding) -> tuple[bool, int]:
    """Return how far code that failed came: whether it returned something, and at which line it failed."""
    error = understanding.first.error
    return isinstance(error, OutputShapeError), lines_reached(error, understanding.subject.target)


def first_form(subject: Subject, always: dict[str, Any]) -> tuple[Subject, Cases]:
    """Return code on sequences in the first form in which it runs, and what makes questions for it.

    What it computes is not asked. `always` are fields of every question.
    """
    wirings = _wirings(subject, None, None)
    tried = []
    for form in forms(subject):
        cases, reply, _ = _first_run(form, wirings, always)
        tried.append((form, cases))
        if reply.error is None:
            return form, cases
    return tried[0]


def _first_run(
    subject: Subject, wirings: list[Wiring], always: dict[str, Any]
) -> tuple[Cases, Reply, torch.dtype]:
    """Run the code in the first sizes that it takes; in the first of all if it takes none."""
    failed: list[tuple[Cases, Reply, torch.dtype]] = []
    whole = subject.layout in SEQUENCES
    for cases in _cases(subject, wirings, always) if whole else _head_cases(subject, always):
        reply, dtype = run_once(subject, cases.plain())
        if reply.error is None and whole:
            # A fixed length, if the code does not take a shorter sequence.
            T = cases.plain().k.shape[-2]
            shorter = run_once(subject, cases.plain(T=max(1, T - 2)))[0]
            cases = cases if shorter.error is None else replace(cases, fixed_length=T)
        if reply.error is None:
            return cases, reply, dtype
        failed.append((cases, reply, dtype))
        if whole and not is_certain(subject):
            break
    return failed[0]


def _head_cases(subject: Subject, always: dict[str, Any]) -> Iterator[Cases]:
    """Yield cases in the sizes that a function on split heads may want."""
    kind = subject.kernel_layout.kind if subject.kernel_layout is not None else ""
    always = always | {"layout": kind} if kind else always
    # Sizes that a kernel may want: widths that are powers of two, lengths that fill its blocks, its pages.
    for powers, multiple in ((False, 1), (True, 1), (True, 128)):
        for page in ({"page": 4}, {"page": 16}, {"page": 256}) if kind.startswith("paged") else ({},):
            yield Cases(subject, always=always | page, powers=powers, multiple=multiple)


def _cases(subject: Subject, wirings: list[Wiring], always: dict[str, Any]) -> Iterator[Cases]:
    """Yield cases of the widths and lengths that code on sequences may take, most plausible first."""
    limit, module = max_length(subject), subject.module
    projected = next((w for w in wirings if w.query is not None), None)
    roles = (projected.query, projected.key, projected.value) if projected is not None else (None,) * 3
    q, k, v = (module_width(module) if x is None else x.weight.shape[0] for x in roles)
    cases = Cases(subject, q, k, limit, always, value_width=v)
    for length in (limit, None, 5, 4, 3, 2):
        yield replace(cases, max_length=length)
    for n in [n for n in head_counts(module, None, None, 1) if n > 1] if module else []:
        # Projections of one head that all heads share.
        yield replace(cases, width=q * n, context_width=k * n, value_width=v * n)
    if limit is not None and module is not None and not holds_causal_mask(module):
        yield replace(cases, fixed_length=limit)


def interpret(tried: Understanding) -> Understanding:
    """Find the interpretation under which several outputs are right: a plain one, or one with features.

    If there is none, those with an evident feature join the interpretations under which mistakes are sought.
    """
    subject, cases, intents = tried.subject, tried.cases, tried.intents
    dtype, kernel = tried.dtype, subject.kernel_layout
    width = f", C = {cases.width}" if subject.layout in SEQUENCES else ""
    inputs = f"inputs {spell(subject.layout) + width if kernel is None else kernel.description}"
    understanding = replace(tried, right_intent=None, assumptions=[inputs])
    if tried.first.answer is None or not intents:
        return understanding
    others = [cases.plain(B=3, T=5, D=6, H=3, seed=3), cases.longer()]
    observations = [tried.observation, *observe(subject, others, dtype)]
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


_LIKELY = 20  # features of one kind that are tried together with others


def search(observations: list[Observation], bases: list[Intent], features: list[Feature]) -> Intent | None:
    """Return the first interpretation that explains all observations.

    The plain interpretations come first, then every feature alone, then the likeliest evident ones in pairs.

    Arguments:
        observations: questions with the code's answers.
        bases: the plain interpretations, most plausible first.
        features: what to try.
    """
    for intent in _with_features(bases, features):
        if intent is not None and all(intent.error(o.question, o.answer) < TOLERANCE for o in observations):
            return intent
    return None


def _with_features(bases: list[Intent], features: list[Feature]) -> Iterator[Intent | None]:
    """Yield the candidates of `search`, in its order; None where a feature does not apply."""
    yield from bases
    for feature, base in itertools.product(features, bases):
        yield add_feature(base, feature)
    for first, second in itertools.combinations(likeliest(features, _LIKELY), 2):
        for base in bases[:2] if first.kind != second.kind else ():
            once = add_feature(base, first)
            yield None if once is None else add_feature(once, second)


def observe(subject: Subject, questions: Iterable[Question], dtype: torch.dtype) -> list[Observation]:
    """Run the code on questions in one precision; those that it does not answer are left out."""
    replies = ((question, subject.run(question.to(dtype)).answer) for question in questions)
    return [Observation(question, answer) for question, answer in replies if answer is not None]


def _interpret_inside(
    understanding: Understanding, hypotheses: list[bool], scale: float | None
) -> Understanding | None:
    """Interpret a module by its own queries, keys, values and merged heads; None if they are not found."""
    subject, cases = understanding.subject, understanding.cases
    if understanding.first.answer is None or subject.module is None:
        return None
    if (found := find_inside(subject, cases)) is None:
        return None
    inside, wiring = found
    wiring = replace(wiring, scale=scale if scale is not None else declared_scale(subject))
    reply = inside.run(cases.plain().to(understanding.dtype))
    if reply.answer is None:
        return None
    intents = [Intent(wiring, c) for c in hypotheses]
    observed = interpret(
        replace(understanding, subject=inside, compared=inside, intents=intents, first=reply)
    )
    named = inside.sources == (0, 1, 2)
    return replace(
        observed,
        subject=subject,
        first=understanding.first,
        inputs_as_named=named,
        roles=inside.acting_roles() if named else inside.sources,
        assumptions=[*understanding.assumptions, inside.describe()],
    )


def run_once(subject: Subject, question: Question) -> tuple[Reply, torch.dtype]:
    """Run the code in float64, or in float32 if it fails in float64. The error is that of the longer run."""
    reply = subject.run(question)
    if reply.error is not None:
        single = subject.run(question.to(torch.float32))
        reached = [lines_reached(attempt.error, subject.target) for attempt in (reply, single)]
        if single.error is None or reached[1] > reached[0]:
            return single, torch.float32
    return reply, torch.float64


def _wirings(subject: Subject, heads: int | None, scale: float | None) -> list[Wiring]:
    """Return the possible wirings of the code, most plausible first."""
    module = subject.module
    if subject.layout not in SEQUENCES:
        return [Wiring(scale=scale)]
    if module is None or not any(True for _ in module.parameters()):
        H = heads or subject.extra.get(subject.arguments.get("heads", ""), 1)
        plain = Wiring(H, H, splits=True, width=40, scale=scale)
        # Tutorials teach attention without weights also without the scale.
        return [plain, replace(plain, scale=1.0)] if module is None and subject.inputs == "x" else [plain]
    declared = scale if scale is not None else declared_scale(subject)
    double = subject.module_as(torch.float64, device="cpu")
    assert double is not None
    return find_wirings(double, heads=heads, declared=declared)
