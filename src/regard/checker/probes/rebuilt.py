"""The class under test, built again with other arguments: understood anew, and its output checked.

Groups, blocks, heads, switches and lengths are tried so. What the class then computes may be another kind of
attention, which is no mistake: without a known form of attention there is no verdict.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard.checker.catalogue import get_mistake
from regard.checker.errors import CheckError
from regard.checker.interpretation.understand import understand
from regard.checker.probes.gradients import gradient_failure, probe_gradients
from regard.checker.probes.inputs import probe_causality
from regard.checker.probes.output import probe_output
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt
from regard.checker.subject.call_tensors import SEQUENCES
from regard.checker.subject.subject import Subject


def rebuild(
    session: CheckSession,
    changes: dict[str, Any] | None = None,
    sizes: dict[str, Any] | None = None,
    causal: bool | None = None,
) -> CheckSession | str:
    """Return a session on the class built with other arguments; a sentence if it cannot be run so.

    `changes` are arguments of its constructor, `sizes` changes to the guessed ones, and `causal` is a promise
    in addition to the caller's.
    """
    subject, options = session.subject, session.options
    assert subject.cls is not None
    try:
        other = adapt(
            subject.cls, subject.init | (changes or {}), options.get("true_means"), subject.call, sizes
        )
    except CheckError as error:
        return str(error)
    other.device = subject.device
    # `adapt` guesses the layout anew, which was found out before.
    return understand_again(session, other.replaced(layout=subject.layout), causal)


def understand_again(
    session: CheckSession, subject: Subject, causal: bool | None = None
) -> CheckSession | str:
    """Return a session on the code in another form, with the same promises; a sentence if it does not run."""
    options = session.options if causal is None else session.options | {"causal": causal}
    understanding = understand(
        subject, session.always, causal=options.get("causal"), scale=options.get("scale")
    )
    if understanding.first.answer is None:
        return f"it raised {understanding.first.error_line}"
    return CheckSession(understanding, options)


def check_output(
    session: CheckSession,
    inner: CheckSession,
    check: str,
    shown: str,
    mistakes: Collection[str] | None = None,
) -> None:
    """Record whether the class as built with `shown` is right, under the name of this check.

    `mistakes` are those that make it wrong; None if every failure does.
    """
    probe_output(inner)
    # What is promised must hold of attention that is not known, too.
    if inner.right_intent is not None or inner.options.get("causal"):
        probe_causality(inner)
    if inner.right_intent is not None and mistakes is None and session.has_passed("gradients"):
        probe_gradients(inner, inner.right_intent)
    failed = [found for found in inner.checks if found.status == "failed"]
    if failed and mistakes is not None:
        named = [d for d in inner.diagnoses if not d.warning]
        # Even with a switch of known meaning turned, causality is a promise.
        leaks = mistakes and any(found.name == "causality" for found in failed)
        if not leaks and not any(diagnosis.name in mistakes for diagnosis in named):
            equal = f"; its output equals attention {get_mistake(named[0].name).what}" if named else ""
            reason = f"whether it should, is not known{equal}"
            session.add_untried(check, f"with {shown}, {failed[0].name} {failed[0].detail}: {reason}")
            return
    if failed:
        session.add_failure(check, f"with {shown}, {failed[0].name} {failed[0].detail}")
    elif inner.undecided or inner.right_intent is None:
        session.add_untried(check, f"with {shown} there was no verdict: {inner.undecided}")
    else:
        session.add_pass(check, shown)
    known = [(warning.name, warning.mistake) for warning in session.checks if warning.status == "warning"]
    session.checks += [
        replace(found, name=check, detail=f"with {shown}, {found.detail}")
        for found in inner.checks
        if found.status == "warning" and (found.name, found.mistake) not in known
    ]
    for diagnosis in inner.diagnoses if failed else [d for d in inner.diagnoses if d.warning]:
        warning = diagnosis.warning and not get_mistake(diagnosis.name).warning
        what = f"With {shown}: {diagnosis.what}"
        session.add_diagnosis(
            diagnosis.name, what, diagnosis.error, distance=diagnosis.distance, warning=warning
        )


# Nine is neither even nor a power of two, as some code needs it; then eight decide.
_SIZES = (
    {"heads": 9, "groups": 3, "width": 72, "out_width": 72, "context_width": 72, "head_width": 8},
    {"heads": 8, "groups": 2, "width": 64, "out_width": 64, "context_width": 64, "head_width": 8},
)


def probe_many_heads(session: CheckSession) -> None:
    """Check code that splits its heads itself with nine or eight of them, where their number can be chosen.

    Functions on heads are asked about nine among the other questions of `probe_output`.
    """
    intent, subject = session.right_intent, session.subject
    if intent is None or intent.wiring.heads == 1 or subject.layout not in SEQUENCES:
        return
    name = subject.arguments.get("heads", "")
    if any(vocabulary.size(key) == "heads" for key in subject.init) or name in subject.init:
        return  # their number is the caller's
    failed = []
    for sizes in _SIZES:
        heads = sizes["heads"]
        if subject.module is None and name in subject.extra:
            other = understand_again(session, subject.replaced(extra=subject.extra | {name: heads}))
        elif subject.cls is not None and subject.step is None:
            other = rebuild(session, sizes=sizes)
        else:
            return
        if isinstance(other, str):
            continue
        if other.right_intent is not None:
            session.add_pass("many heads", f"{heads} of them")
            question = other.cases.plain(seed=21)
            if failure := gradient_failure(session, other.subject, question, other.right_intent):
                session.add_failure("gradients, many heads", failure)
            return
        failed.append(heads)
    if failed:
        detail = f"right with {intent.wiring.heads} heads, and wrong with {failed[0]}"
        session.add_failure("many heads", detail)
