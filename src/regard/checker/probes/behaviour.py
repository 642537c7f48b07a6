"""Mistakes that show in what the code does beside its reference: what it sees, and how it rounds.

They have a name although no formula of the attention is known. An intervention in the code's softmax names
those that are a matter of its scale or its axis.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.checker.interpretation.intent import Observation
from regard.checker.interpretation.understand import NEARLY_RIGHT
from regard.checker.oracle.oracle import relative_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.probes.dependence import name_difference, visible_heads, visible_tokens
from regard.checker.probes.intervention import name_by_intervention
from regard.checker.session import CheckSession, Reference

# The fields of a question that the same question of another size has, too.
OPTIONS = ("flag", "window", "ahead", "softcap", "scale", "extra")


def with_options(question: Question, other: Question) -> Question:
    """Return a question with the options of another one."""
    return replace(question, **{name: getattr(other, name) for name in OPTIONS})


def name_by_behaviour(session: CheckSession, reference: Reference, wrong: list[Observation]) -> None:
    """Name the mistakes behind answers that differ from the reference's."""
    for observation in wrong:
        question = observation.question
        if question.name == "empty rows":
            if _has_nan_row(reference, observation):
                evidence = f"A query without a visible key gives NaN; in {reference.name} it gives numbers."
                session.add_diagnosis("empty-row-nan", evidence)
            continue
        if question.extra or question.scale is not None or session.mixed:
            continue
        name_visibility(session, reference, question)
        if question.q.ndim == 4 and question.k.shape[1] < question.q.shape[1]:
            _name_groups(session, reference, question)
    if session.diagnoses or session.mixed:
        return
    _intervene(session, reference, wrong[0].question)
    worst = max(session.error(observation) for observation in wrong)
    if worst < NEARLY_RIGHT and not session.diagnoses and _jumps(session, reference):
        evidence = (
            f"The output agrees with {reference.name} only to {worst:.0e}, and tiny changes of the inputs "
            "do not change it smoothly: it is rounded on the way."
        )
        session.add_diagnosis("precision-lost", evidence, worst)


def _has_nan_row(reference: Reference, observation: Observation) -> bool:
    """Return whether the row without a visible key, the second one, is NaN where the reference's is not."""
    expected = reference.answer(observation.question)
    assert expected is not None
    got, wanted = (x.output[..., 1, :] for x in (observation.answer, expected))
    return bool(got.isnan().any()) and bool(wanted.isfinite().all())


def name_visibility(session: CheckSession, reference: Reference, question: Question) -> None:
    """Name the mistake by which outputs see other tokens than the reference's, if there is one."""
    got, want = (visible_tokens(s, question) for s in (session, reference.session))
    if got is None or want is None or not (name := name_difference(question, got, want)):
        return
    row, token = (int(i) for i in (got != want).nonzero()[0])
    seen = bool(got[row, token])
    verb, other = ("depends", "does not") if seen else ("does not depend", "does")
    evidence = f"In “{question.name}” output {row} {verb} on token {token}; your reference's {other}."
    session.add_diagnosis(name, evidence)


def _name_groups(session: CheckSession, reference: Reference, question: Question) -> None:
    got, want = (visible_heads(s, question) for s in (session, reference.session))
    if got is None or want is None or torch.equal(got, want):
        return
    H, G = got.shape
    tiled, interleaved = torch.eye(G, dtype=torch.bool).repeat(H // G, 1), torch.arange(H) // (H // G)
    if torch.equal(got, tiled) and torch.equal(want, interleaved[:, None] == torch.arange(G)):
        evidence = "Query head 1 reads key/value head 1; your reference's reads head 0."
        session.add_diagnosis("grouped-heads-tiled", evidence)


def _intervene(session: CheckSession, reference: Reference, question: Question) -> None:
    """Change the code's softmax until its output agrees, at two sizes, and record what that says."""
    other = with_options(session.cases.plain(B=3, T=5, D=6, H=2, seed=3), question)
    # The reference answers before, since it must not be changed.
    expected = [(q, answer) for q in (question, other) if (answer := reference.answer(q)) is not None]

    def difference(index: int) -> float:
        question, wanted = expected[min(index, len(expected) - 1)]
        answer = session.subject.run(question.to(session.dtype)).answer
        return float("inf") if answer is None else relative_error(answer, wanted)

    widths = (question.q.shape[-1], other.q.shape[-1])
    found = name_by_intervention(difference, widths if other.q.ndim == 4 else None, session.tolerance)
    if found is not None:
        session.add_diagnosis(*found)


def _jumps(session: CheckSession, reference: Reference) -> bool:
    """Return whether tiny changes of the inputs change the output by steps, unlike the reference's."""
    if session.dtype != torch.float64:
        return False
    question = session.cases.plain(seed=17)
    # Less than a step of float32, 1.2e-7: an output that was rounded on the way stays or jumps.
    near = question.map_inputs(lambda x: x * (1 + 1e-7))
    changes = []
    for side in (session, reference.session):
        before, after = (side.subject.run(q.to(side.dtype)).answer for q in (question, near))
        if before is None or after is None:
            return False
        changes.append((after.output - before.output).detach().double())
    return relative_difference(*changes) > 0.5
