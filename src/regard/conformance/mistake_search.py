"""The search for the mistakes that explain wrong results.

Cases are compared with the mistakes of the catalogue in groups that are alike: plain ones, those with sink
logits, packed ones, those with a scale of their own. What shows in one kind of case alone, as a mistake of a
cache or of rows that see no key, has a test of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.diagnose import diagnose, diagnose_pairs, explain_parts
from regard.checker.oracle.cache_variant import CacheVariant
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    expected_answer,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer
from regard.checker.oracle.variant import AttentionVariant
from regard.checker.oracle.wiring import Affine, Wiring
from regard.checker.subject.kernel_layouts import unpack
from regard.conformance.case_folder import TOLERANCES
from regard.conformance.cases import ConformanceCase
from regard.conformance.result_comparison import CaseVerdict

# What a mask of finite numbers makes of a row without a visible key: its mean, or its scores without a mask.
FINITE = (AttentionVariant(fill=-1e9), AttentionVariant(masking="add fill", fill=-1e9))


@dataclass(kw_only=True)
class NamedMistakes:
    """The mistakes that explain wrong results, likeliest first."""

    mistakes: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)  # two that explain the results together only
    nearest: str = ""  # the one that explains most of them, if neither one nor two explain them all
    elsewhere: list[str] = field(default_factory=list)
    """Mistakes that explain what the first one does not: cases with sink logits, packed ones, empty rows."""
    uncompared: list[str] = field(default_factory=list)
    """Wrong outputs that the mistakes do not explain, or that were not compared with what these give."""


def name_mistakes(
    verdicts: list[CaseVerdict],
    cases: list[ConformanceCase],
    found: dict[str, Tensor],
    tensors: dict[str, Tensor],
) -> NamedMistakes:
    """Return the mistakes that explain wrong results.

    Arguments:
        verdicts: how each result compares.
        cases: all cases.
        found: the results by name.
        tensors: the inputs and the right answers by name.
    """
    wrong = {(v.case, v.result): v for v in verdicts if not v.right}
    # Zeros tell of no mistake; results of another shape cannot be compared.
    usable = {v.case for v in verdicts if v.result == "output" and not v.problem}
    usable -= {v.case for v in wrong.values() if v.result == "output" and v.numbers.startswith("all zeros")}
    judged = [case for case in cases if case.name in usable]
    observed = {case.name: _observe(case, found[f"{case.name}.output"]) for case in judged}
    outputs = [case for case in judged if (case.name, "output") in wrong]
    only_empty = [case for case in outputs if _is_right_elsewhere(case, observed[case.name], wrong)]
    named = NamedMistakes()
    explained: set[str] = set()
    finite = {case.name for case in judged if bool(found[f"{case.name}.output"].isfinite().any())}
    # NaN in a case without a mask is not that of a mask times infinity.
    is_nan = not any(case.name in finite for case in outputs)
    if is_nan and any(_is_unmasked(case) for case in outputs):
        return named
    for group in _groups(judged):
        group_wrong = [case for case in group if case in outputs and case not in only_empty]
        if group_wrong:
            explained |= _explain_group(named, group, group_wrong, observed, finite)
            # What explains another group alone would say too much.
            if not explained:
                break
    rest = [case for case in outputs if case.name not in explained]
    special: dict[str, set[str]] = {}
    for name, alike in _special_mistakes(rest, only_empty, observed, outputs):
        special.setdefault(name, set()).update(case.name for case in alike)
    if not explained:
        others = _other_results(judged, found, tensors, wrong)
        named.mistakes = named.mistakes or list(dict.fromkeys([*special, *others]))
        named.nearest = "" if named.mistakes else named.nearest
    else:
        known = {*named.mistakes, *named.together, *named.elsewhere}
        named.elsewhere += [name for name in special if name not in known][:1]
    for name in {*named.mistakes, *named.elsewhere} & special.keys():
        explained |= special[name]
    if named.mistakes or named.together:
        names = [case for case, result in wrong if result == "output" and case not in explained]
        named.uncompared = [f"{case}.output" for case in names]
    return named


def _groups(judged: list[ConformanceCase]) -> list[list[ConformanceCase]]:
    """Return the cases of one call in float32 in groups that are alike, the plainest group first."""
    groups: dict[tuple[float, bool, bool], list[ConformanceCase]] = {}
    for case in judged:
        # A mistake may not be defined for a sequence without keys: a scale of 1/√S is not.
        is_empty = min(min(lengths) for lengths in case.question.all_lengths()) == 0
        if case.dtype == "float32" and case.pieces is None and not case.large and not is_empty:
            # With sink logits the variants have a softmax of their own, which is right.
            key = (case.scale or 0.0, case.question.sinks is not None, case.is_packed)
            groups.setdefault(key, []).append(case)
    return [groups[key] for key in sorted(groups)]


def _explain_group(
    named: NamedMistakes,
    group: list[ConformanceCase],
    wrong: list[ConformanceCase],
    observed: dict[str, Observation],
    finite: set[str],
) -> set[str]:
    """Name the mistake that explains a group of cases; return the names of those that it explains.

    Arguments:
        named: the mistakes that are named so far, to which this one is added.
        group: cases that are alike.
        wrong: those of them with a wrong output.
        observed: the outputs of all cases, by name.
        finite: the names of the cases whose output has a finite number.
    """
    if all(_ignores_scale(case, observed[case.name]) for case in wrong):
        _note(named, ["scale-ignored"])
        return {case.name for case in group}
    # Whatever gives NaN elsewhere, a row that sees no key may be 0.
    seeing = [case for case in group if "empty rows" not in case.features()]
    # NaN everywhere tells nothing of its cause, unless there is nothing else.
    if any(case.name in finite for case in wrong):
        group = [case for case in group if case.name in finite]
    intents = [Intent(group[0].wiring, causal=False)]
    # Programs differ in what they do where there are more queries than keys: that may be a mistake apart.
    usual = [case for case in group if "more queries" not in case.features()]
    for cases in (group, usual, seeing):
        observations = [observed[case.name] for case in cases]
        if any(case in wrong for case in cases) and (names := _find_single(observations, intents)):
            _note(named, names)
            return {case.name for case in cases}
    if named.mistakes or named.together:
        return set()
    observations = [observed[case.name] for case in group]
    if pairs := diagnose_pairs(observations, intents):
        named.together = list(pairs[0].names)
        return {case.name for case in group}
    if parts := explain_parts(observations, intents):
        named.nearest = parts[0].names[0]
    return set()


def _find_single(observations: list[Observation], intents: list[Intent]) -> list[str]:
    return list(dict.fromkeys(name for match in diagnose(observations, intents) for name in match.names))


def _note(named: NamedMistakes, names: list[str]) -> None:
    """Note the mistakes that explain a group: the first group's, or others beside these."""
    known = [name for name in names if name in {*named.mistakes, *named.together, *named.elsewhere}]
    if not named.mistakes and not named.together:
        named.mistakes = names
    elif not known:
        named.elsewhere.append(names[0])
    else:
        # Of several mistakes that explain the first group, those that explain this one, too, come first.
        named.mistakes.sort(key=lambda name: name not in known)


def _observe(case: ConformanceCase, output: Tensor) -> Observation:
    """Return a case with its output as (B, H, T, E), in float64."""
    output = output.double()
    if case.question.lengths is not None:
        output = unpack(output, case.question.lengths[0])
    return Observation(case.question, Answer(output))


def _is_right_elsewhere(
    case: ConformanceCase, observation: Observation, wrong: dict[tuple[str, str], CaseVerdict]
) -> bool:
    """Return whether an output is wrong in rows alone that see no key."""
    right = expected_answer(case.question, case.wiring)
    return relative_error(observation.answer, right) < wrong[case.name, "output"].tolerance


def _is_unmasked(case: ConformanceCase) -> bool:
    q = case.question
    return not q.causal and all(x is None for x in (q.mask, q.padding, q.window, q.ahead, q.lengths))


def _ignores_scale(case: ConformanceCase, observation: Observation) -> bool:
    """Return whether an output is that of 1/√D, where another scale is asked for."""
    if case.scale is None:
        return False
    return (
        relative_error(observation.answer, expected_answer(case.question, Wiring())) < TOLERANCES["float32"]
    )


def _special_mistakes(
    rest: list[ConformanceCase],
    only_empty: list[ConformanceCase],
    observed: dict[str, Observation],
    outputs: list[ConformanceCase],
) -> Iterator[tuple[str, list[ConformanceCase]]]:
    """Yield the mistakes that show in one kind of case alone, each with the cases that it explains.

    Arguments:
        rest: the cases with a wrong output that is not explained yet.
        only_empty: those that are wrong only in rows that see no key.
        observed: the outputs of all cases.
        outputs: all cases with a wrong output.
    """
    if cached := [case for case in rest if case.pieces is not None and case not in only_empty]:
        # The cache's oracle takes no padding, which grows with each piece.
        plain = [
            case
            for case in cached
            if case.dtype == "float32" and not case.large and case.question.padding is None
        ]
        yield from ((name, plain) for name in _cache_mistakes(plain, observed))
    overflown = [c for c in rest if c.large and c not in only_empty and not _is_finite(observed[c.name])]
    if overflown and all(case.large or case in only_empty or case not in rest for case in outputs):
        yield "softmax-overflow", overflown
    if broken := [case for case in only_empty if not _is_finite(observed[case.name])]:
        yield "empty-row-nan", broken
    # In a cache the rows of a piece see fewer keys than the variants do.
    finite = [case for case in only_empty if _is_finite(observed[case.name]) and case.pieces is None]
    if finite and all(_hides_with_a_number(case, observed[case.name]) for case in finite):
        yield "finite-mask-value", finite
    half = [case for case in rest if case.dtype != "float32"]
    if half and len(half) == len(outputs):
        alike = [case for case in half if not case.is_packed and case.pieces is None and not case.large]
        names = _find_single([observed[case.name] for case in alike], [Intent(Wiring(), causal=False)])
        yield from ((name, half) for name in names or ["precision-lost"])


def _is_finite(observation: Observation) -> bool:
    return bool(observation.answer.output.isfinite().all())


def _hides_with_a_number(case: ConformanceCase, observation: Observation) -> bool:
    """Return whether rows that see no key are those of a mask with a large negative number for −∞."""
    tolerance = 5 * TOLERANCES["float32"]
    for variant in FINITE:
        for dtype in (torch.float64, torch.float32):
            answer = variant.answer(case.question.to(dtype), case.wiring)
            if relative_difference(observation.answer.output, answer.output.double()) < tolerance:
                return True
    return False


def _other_results(
    judged: list[ConformanceCase],
    found: dict[str, Tensor],
    tensors: dict[str, Tensor],
    wrong: dict[tuple[str, str], CaseVerdict],
) -> Iterator[str]:
    for case in judged:
        if (case.name, "lse") in wrong:
            base_2 = tensors[f"{case.name}.lse"] / math.log(2)
            if relative_difference(found[f"{case.name}.lse"].double(), base_2) < 1e-4:
                yield "lse-base-2"
        no_outputs = all(result != "output" for _, result in wrong)
        if (case.name, "dq") in wrong and no_outputs and not bool(found[f"{case.name}.dq"].any()):
            yield "weights-detached"


def _cache_mistakes(cases: list[ConformanceCase], observed: dict[str, Observation]) -> list[str]:
    """Return the mistakes of a cache that give the outputs of these cases, the simplest first."""
    found: dict[str, int] = {}
    for mistake in CATALOGUE.values():
        for change in mistake.cache_changes:
            if cases and all(
                _is_cache_of(CacheVariant(**change), case, observed[case.name]) for case in cases
            ):
                found[mistake.name] = min(len(change), found.get(mistake.name, len(change)))
    return sorted(found, key=found.__getitem__)


def _is_cache_of(variant: CacheVariant, case: ConformanceCase, observation: Observation) -> bool:
    """Return whether an output is that of a cache with a mistake."""
    question = case.question
    heads = [x.shape[1] * x.shape[3] for x in (question.q, question.k, question.v)]
    # The cache's oracle projects one sequence; here that holds queries, keys and values side by side.
    x = torch.cat([t.transpose(1, 2).flatten(2) for t in (question.q, question.k, question.v)], -1)
    query, key, value = (
        Affine(pick)
        for pick in torch.split(torch.eye(sum(heads), dtype=torch.float64, device=x.device), heads, 1)
    )
    wiring = Wiring(
        question.q.shape[1], question.k.shape[1], query, key, value, splits=True, scale=case.scale
    )
    try:
        with torch.no_grad():
            output = variant.answer(replace(question, q=x, k=x, v=x), wiring, case.pieces or ())
    except (RuntimeError, ValueError, IndexError):
        return False
    merged = observation.answer.output.transpose(1, 2).flatten(2)
    return relative_error(Answer(merged), Answer(output)) < TOLERANCE
