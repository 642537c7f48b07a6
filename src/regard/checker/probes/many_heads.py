"""More heads than a few: code that treats later heads otherwise than the first four."""

from __future__ import annotations

from collections.abc import Iterator

from regard.checker.errors import CheckError
from regard.checker.interpretation.understand import understand
from regard.checker.probes.number_comparison.gradients import gradient_failure
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt
from regard.checker.subject.construction.construct import build
from regard.checker.subject.subject import SEQUENCES, Subject

# Nine is neither even nor a power of two, as some code needs it; then eight decide.
_SIZES = (
    {"heads": 9, "groups": 3, "width": 72, "out_width": 72, "context_width": 72, "head_width": 8},
    {"heads": 8, "groups": 2, "width": 64, "out_width": 64, "context_width": 64, "head_width": 8},
)


def probe_many_heads(session: CheckSession) -> None:
    """Check code that splits its heads itself with nine or eight of them, where their number can be chosen.

    Functions on heads are asked about nine among the other questions of `probe_output`.
    """
    intent, options = session.right_intent, session.options
    if intent is None or intent.wiring.heads == 1 or session.subject.layout not in SEQUENCES:
        return
    failed = []
    for heads, subject in _with_more_heads(session):
        understanding = understand(
            subject,
            causal=options.get("causal"),
            heads=None,
            scale=options.get("scale"),
            always=session.always,
        )
        if understanding.right_intent is not None:
            session.add_pass("many heads", f"{heads} of them")
            question, right = understanding.cases.plain(seed=21), understanding.right_intent
            if failure := gradient_failure(session, understanding.subject, question, right):
                session.add_failure("gradients, many heads", failure)
            return
        if understanding.first.error is None:
            failed.append(heads)
    if failed:
        detail = f"right with {intent.wiring.heads} heads, and wrong with {failed[0]}"
        session.add_failure("many heads", detail)


def _with_more_heads(session: CheckSession) -> Iterator[tuple[int, Subject]]:
    """Yield the subject with more heads, as far as their number is not the caller's and it can be built."""
    subject = session.subject
    name = subject.arguments.get("heads", "")
    if any(vocabulary.size(key) == "heads" for key in subject.init) or name in subject.init:
        return
    for sizes in _SIZES:
        if subject.module is None and name in subject.extra:
            yield sizes["heads"], subject.replaced(extra=subject.extra | {name: sizes["heads"]})
        elif subject.cls is not None and subject.step is None:
            try:
                module = build(subject.cls, subject.init, sizes)
                other = adapt(module, {}, session.options.get("true_means"), subject.call)
            except CheckError:
                continue
            other.device = subject.device
            yield sizes["heads"], other.replaced(layout=subject.layout)
