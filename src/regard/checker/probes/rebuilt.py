"""The class under test, built again with other arguments: understood anew, and its output checked.

Groups, blocks, switches and lengths are tried so. What the class then computes may be another kind of
attention, which is no mistake: without a known form of attention there is no verdict.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard.checker.catalogue import get_mistake
from regard.checker.errors import CheckError
from regard.checker.interpretation.understand import understand
from regard.checker.probes.leaks import probe_causality
from regard.checker.probes.number_comparison.gradients import probe_gradients
from regard.checker.probes.output_comparison.output_probe import probe_output
from regard.checker.session import CheckSession
from regard.checker.subject.adapt import adapt
from regard.checker.subject.call_tensors import arguments_of


def rebuild(
    session: CheckSession, changes: dict[str, Any] | None = None, sizes: dict[str, Any] | None = None
) -> CheckSession | str:
    """Return a session on the class built with other arguments; a sentence if it cannot be run so.

    `changes` are arguments of its constructor, `sizes` changes to the guessed ones.
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
    understanding = understand(
        # `adapt` guesses the layout anew, which was found out before.
        other.replaced(layout=subject.layout),
        causal=options.get("causal"),
        heads=None,
        scale=options.get("scale"),
        always=session.always,
    )
    if understanding.first.answer is None:
        return f"it raised {understanding.first.error_line}"
    return CheckSession(understanding, options)


def constructor_parameters(target: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor, or of a function; none if they are not known."""
    try:
        return (
            dict(inspect.signature(target).parameters) if isinstance(target, type) else arguments_of(target)
        )
    # Classes that are written in C may have no signature.
    except (TypeError, ValueError):
        return {}


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
    if inner.right_intent is not None:
        probe_causality(inner)
        if mistakes is None and session.has_passed("gradients"):
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
    session.checks += [
        replace(found, name=check, detail=f"with {shown}, {found.detail}")
        for found in inner.checks
        if found.status == "warning"
    ]
    for diagnosis in inner.diagnoses if failed else [d for d in inner.diagnoses if d.warning]:
        warning = diagnosis.warning and not get_mistake(diagnosis.name).warning
        what = f"With {shown}: {diagnosis.what}"
        session.add_diagnosis(
            diagnosis.name, what, diagnosis.error, distance=diagnosis.distance, warning=warning
        )
