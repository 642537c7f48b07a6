"""One answer judged: right, and its gradients with it, or wrong, and the mistake that gives its numbers."""

from __future__ import annotations

from dataclasses import replace

from regard.checker.diagnose import diagnose
from regard.checker.oracle.oracle import Intent, Observation, describe_difference
from regard.checker.oracle.question import Question
from regard.checker.probes.gradients import gradient_failure
from regard.checker.probes.wrong_output import describe_failure
from regard.checker.session import CheckSession, ComparedAnswer
from regard.checker.subject.subject import Subject


def ask(
    session: CheckSession,
    question: Question,
    intent: Intent,
    subject: Subject | None = None,
    *,
    passed: str = "",
    refused: str = "",
) -> ComparedAnswer:
    """Ask the code, or `subject`, a question; record that its answer and gradients are right, if they are.

    `passed` is the detail of the pass; `refused` begins that of a skip if there is no answer.
    """
    asked = session.compare(question, intent, subject)
    if asked.answer is None and refused:
        session.add_skip(question.name, f"{refused} {asked.error_line}")
    if asked.agrees:
        session.add_pass(question.name, passed)
        if failure := gradient_failure(session, subject or session.compared, question, intent):
            session.add_failure(f"gradients, {question.name}", failure)
    return asked


def record_wrong(
    session: CheckSession,
    asked: ComparedAnswer,
    intent: Intent,
    given: str,
    only: str = "",
    warning: str = "",
) -> bool:
    """Record a wrong answer with the mistake that gives it, or else with its first wrong number.

    `given` says what was asked. If it is not the mistake `only`, nothing is recorded; `warning` only warns
    here. Returns whether something was recorded.
    """
    question, answer = asked.question, asked.answer
    if answer is None:
        return False
    matches = diagnose([Observation(question, answer)], [intent], session.source)
    if only and not any(match.names == (only,) for match in matches):
        return False
    name = matches[0].names[0] if matches else ""
    status = "warning" if name and name == warning else "failed"
    session.add_check(question.name, status, f"{given}, the output {describe_difference(asked.error)}", name)
    for match in matches[:1]:
        session.add_match(replace(match, detail=given), asked.distance, warning=name == warning)
    if not matches and not session.example:
        session.example = describe_failure(question, answer.output, intent.answer(question).output)
    return True
