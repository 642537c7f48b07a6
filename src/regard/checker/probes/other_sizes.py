"""Sizes that the interface offers and the other probes leave alone: grouped heads, and blocks of tokens.

Blocks are made small and unequal, so that a short text has several of them, and a mistake that equal blocks
hide shows.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch.overrides import TorchFunctionMode

from regard.checker.diagnose import diagnose
from regard.checker.interpretation.intent import TOLERANCE, Observation
from regard.checker.oracle.oracle import describe_difference
from regard.checker.oracle.question import Question
from regard.checker.probes.long_text import probe_long_text
from regard.checker.probes.number_comparison.gradients import gradient_failure
from regard.checker.probes.rebuilt import check_output, constructor_parameters, rebuild
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.construction.source import BLOCK_NAME
from regard.checker.subject.subject import Subject

# Pairs of sizes, the first of which a kernel takes; many take powers of two only.
_BLOCKS = ((8, 12), (8, 16), (16, 32), (32, 64))


def probe_other_sizes(session: CheckSession) -> None:
    """Check grouped heads and several blocks, where parameters of the code set their number or size."""
    if session.right_intent is None:
        return
    _probe_blocks(session)
    _probe_grouped_heads(session)


def block_parameters(parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the parameters that are sizes of blocks, by their names and defaults: `k_bucket_size=512`."""
    return [
        name
        for name, parameter in parameters.items()
        # Not isinstance: the default of a switch such as `use_blocks=True` is an int, too.
        if BLOCK_NAME.search(name) and vocabulary.size(name) is None and type(parameter.default) is int
    ]


def _probe_blocks(session: CheckSession) -> None:
    """Compare code whose sizes of blocks are parameters with small and unequal blocks."""
    subject, how = session.subject, "pass sizes with several blocks in 40 tokens: --with "
    target = subject.target if subject.module is None else subject.cls
    parameters = {} if target is None else constructor_parameters(target)
    names = [name for name in block_parameters(parameters) if name not in subject.init]
    if not names:
        probe_long_text(session)
        return
    for sizes in _BLOCKS:
        changes = {name: sizes[i % 2] for i, name in enumerate(names)}
        shown = ", ".join(f"{name}={size}" for name, size in changes.items())
        if subject.module is None:
            done = _compare_blocks(session, changes, shown)
        else:
            done = _check_rebuilt(session, changes, "several blocks", shown)
        if done:
            return
    session.add_untried("several blocks", how + " ".join(f"{name}=…" for name in names))


def _compare_blocks(session: CheckSession, changes: dict[str, Any], shown: str) -> bool:
    """Compare a function with other blocks; returns False if it does not take them."""
    subject, intent = session.compared, session.right_intent
    assert intent is not None
    blocked = subject.replaced(extra=subject.extra | changes)
    flagged = "causal" in subject.arguments and session.options.get("causal") is None
    # 70 tokens are several blocks in every pair of sizes, and the last block is not full.
    questions = [session.cases.plain("several blocks", B=1, T=70, seed=seed) for seed in (60, 61)]
    questions = [replace(questions[0], flag=True), questions[1]] if flagged else questions[:1]
    if "mask" in subject.arguments:
        questions.append(session.cases.masked("several blocks", B=1, T=70, seed=62))
    observations = []
    for question in questions:
        answer = blocked.run(question.to(session.dtype)).answer
        if answer is None:
            return False
        observations.append(Observation(question, answer))
    worst = max(intent.error(o.question, o.answer) for o in observations)
    if worst < TOLERANCE:
        session.add_pass("several blocks", shown)
        _compare_gradients(session, blocked, questions)
        return True
    session.add_failure("several blocks", f"with {shown} it {describe_difference(worst)}")
    for match in diagnose(observations, [intent], session.source)[:1]:
        session.add_match(match, worst / TOLERANCE)
    return True


def _compare_gradients(session: CheckSession, subject: Subject, questions: list[Question]) -> None:
    """Compare the gradients of a function with other blocks."""
    intent = session.right_intent
    assert intent is not None
    failures = (gradient_failure(session, subject, question, intent) for question in questions)
    if failure := next(filter(None, failures), ""):
        session.add_failure("gradients, several blocks", failure)


def _probe_grouped_heads(session: CheckSession) -> None:
    """Check a class with two key/value heads, if a parameter sets their number and none is its default."""
    subject = session.subject
    parameters = (
        {} if subject.cls is None or subject.step is not None else constructor_parameters(subject.cls)
    )
    for name, parameter in parameters.items():
        offered = vocabulary.size(name) == "groups" and parameter.default is None
        if offered and name not in subject.init:
            if not _check_rebuilt(session, {name: 2}, "grouped heads", f"{name}=2"):
                session.add_untried("grouped heads", f"pass --with {name}=…")
            return


def _check_rebuilt(session: CheckSession, changes: dict[str, Any], check: str, shown: str) -> bool:
    """Check the output of the class built with other arguments; returns False if it cannot be run so."""
    inner = rebuild(session, changes)
    if isinstance(inner, str):
        return False
    if check == "several blocks" and not _takes_more_steps(session, inner):
        session.add_untried(check, f"{shown} made no difference to its steps: switch on what works in blocks")
    else:
        check_output(session, inner, check, shown)
    return True


def _takes_more_steps(session: CheckSession, inner: CheckSession) -> bool:
    """Return whether a module calls more of PyTorch's functions on a long text with smaller blocks.

    The memory-efficient path of lucidrains' Attention is off by default, and its sizes are then not used.
    """
    counts = []
    for side in (session, inner):
        counter = _CountCalls()
        with counter:
            side.subject.run(side.cases.longer().to(side.dtype))
        counts.append(counter.calls)
    return counts[1] > counts[0]


class _CountCalls(TorchFunctionMode):
    """Counts the calls of PyTorch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))
