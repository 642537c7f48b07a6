"""Sizes that the interface offers and the other probes leave alone: grouped heads, and blocks of tokens.

Blocks are made small and unequal, so that a short text has several of them, and a mistake that equal blocks
hide shows. What the code offers and this file cannot set is listed as not tried.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

from torch.overrides import TorchFunctionMode

from regard.checker.diagnose import diagnose
from regard.checker.errors import CheckError
from regard.checker.intent import TOLERANCE, Intent, Observation
from regard.checker.oracle.oracle import describe_difference, expected_answer, relative_error
from regard.checker.oracle.question import Question
from regard.checker.probes.kernels import largest_block
from regard.checker.probes.numbers import gradient_failure, probe_gradients
from regard.checker.probes.output import probe_output
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt
from regard.checker.subject.subject import Subject, arguments_of
from regard.checker.understand import understand

# What has no part in the numbers of attention, or is tried by other probes.
_NO_SWITCH = re.compile(
    r"bias|drop|device|dtype|batch_first|eps|init|idx|index|name|return|output|need|verbose|debug|training"
    r"|inplace|scale|backend|fused|config|layer|dim|width|size",
    re.I,
)
# Br and Bc are FlashAttention's own names.
_BLOCK = re.compile(r"(^|_)(blocks?|buckets?|chunks?|tiles?)(_|$)|(^|_)block[mnqk]$|^b[rc]$", re.I)
# Pairs of sizes, the first of which a kernel takes; many take powers of two only.
_BLOCKS = ((8, 12), (8, 16), (16, 32), (32, 64))


def probe_other_sizes(session: CheckSession) -> None:
    """Check grouped heads and several blocks, where parameters of the code set their number or size."""
    if session.right_intent is None:
        return
    _probe_blocks(session)
    _probe_grouped_heads(session)
    _list_options(session)


def _list_options(session: CheckSession) -> None:
    """List what the code offers and no question has switched on: `qk_norm=False`, `segment_ids=None`.

    Modules of Transformers have dozens of such arguments, which their models set.
    """
    subject = session.subject
    if subject.is_transformers or subject.kernel_layout is not None:
        return
    switches = {} if subject.cls is None or subject.module is None else _parameters(subject.cls)
    names = [name for name in _switched_off(switches) if name not in subject.init]
    names += [name for name in _switched_on(switches) if name not in subject.init]
    if names:
        session.add_untried(_named("option", names), f"set it: --with {names[0]}=…")
    passed = {*subject.arguments.values(), *subject.extra, *subject.call, *subject.positional}
    call = subject.target if subject.module is None else subject.module.forward
    names = [name for name in _switched_off(dict(arguments_of(call))) if name not in passed]
    if names:
        session.add_untried(_named("argument", names), f"pass it: --call {names[0]}=…")
    if "start" in subject.arguments and all(check.name != "cache" for check in session.checks):
        session.add_untried("cache", f"`{subject.arguments['start']}` says that it has one: pass cached=")


def _switched_off(parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the parameters that switch something on, and are off by default."""
    return [
        name
        for name, parameter in parameters.items()
        if (parameter.default is None or parameter.default is False)
        and vocabulary.size(name) in (None, "window", "causal", "softcap")
        and not _NO_SWITCH.search(name)
    ]


def _switched_on(parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the switches that are on by default, as `use_flash=True`: the code without them is another."""
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is True and vocabulary.size(name) is None and not _NO_SWITCH.search(name)
    ]


def _named(kind: str, names: list[str]) -> str:
    return f"{kind}{'s' * (len(names) > 1)} {', '.join(names)}"


def block_parameters(parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Return the parameters that are sizes of blocks, by their names and defaults: `k_bucket_size=512`."""
    return [
        name
        for name, parameter in parameters.items()
        if _BLOCK.search(name) and vocabulary.size(name) is None and type(parameter.default) is int
    ]


def _probe_blocks(session: CheckSession) -> None:
    """Compare code whose sizes of blocks are parameters with small and unequal blocks."""
    subject, how = session.subject, "pass sizes with several blocks in 40 tokens: --with "
    target = subject.target if subject.module is None else subject.cls
    parameters = {} if target is None else _parameters(target)
    names = [name for name in block_parameters(parameters) if name not in subject.init]
    if not names:
        if subject.layout in ("BHTD", "BTHD") and subject.kernel_layout is None:
            _compare_long_text(session)
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


def _compare_long_text(session: CheckSession) -> None:
    """Compare a function whose source names large blocks on a text of several of them."""
    block, intent = largest_block(session), session.right_intent
    if block <= 70 or intent is None:  # 150 tokens were several blocks
        return
    if block > 1024:
        session.add_untried(
            "several blocks", f"its source names blocks of {block}: check it with smaller ones"
        )
        return
    question = session.cases.plain("several blocks", B=1, H=1, T=2 * block + 22, D=16, seed=60)
    if "causal" in session.subject.arguments and session.options.get("causal") is None:
        question = replace(question, flag=True)
    reply = session.compared.run(question.to(session.dtype))
    if reply.answer is None:
        session.add_untried("several blocks", f"{question.shapes()} raised {reply.error_line}")
        return
    error = _error(question, Observation(question, reply.answer), intent)
    if error < TOLERANCE:
        session.add_pass("several blocks", f"{question.q.shape[-2]} tokens")
        _compare_gradients(session, session.compared, [question])
    else:
        detail = f"with {question.q.shape[-2]} tokens it {describe_difference(error)}"
        session.add_failure("several blocks", detail)


def _parameters(target: Any) -> dict[str, inspect.Parameter]:
    try:
        return (
            dict(inspect.signature(target).parameters) if isinstance(target, type) else arguments_of(target)
        )
    except (TypeError, ValueError):
        return {}


def _compare_blocks(session: CheckSession, changes: dict[str, Any], shown: str) -> bool:
    """Compare a function with other blocks; returns False if it does not take them."""
    subject, intent = session.compared, session.right_intent
    assert intent is not None
    blocked = subject.replaced(extra=subject.extra | changes)
    flagged = "causal" in subject.arguments and session.options.get("causal") is None
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
    worst = max(_error(o.question, o, intent) for o in observations)
    if worst < TOLERANCE:
        session.add_pass("several blocks", shown)
        _compare_gradients(session, blocked, questions)
        return True
    session.add_failure("several blocks", f"with {shown} it {describe_difference(worst)}")
    for match in diagnose(observations, [intent], session.source)[:1]:
        session.add_match(match, worst / TOLERANCE)
    return True


def _compare_gradients(session: CheckSession, subject: Subject, questions: list[Question]) -> None:
    """Compare the gradients of a function with other blocks, or on a longer text."""
    intent = session.right_intent
    assert intent is not None
    failures = (gradient_failure(session, subject, question, intent) for question in questions)
    if failure := next(filter(None, failures), ""):
        session.add_failure("gradients, several blocks", failure)


def _error(question: Question, observation: Observation, intent: Intent) -> float:
    return relative_error(observation.answer, expected_answer(intent.apply(question), intent.wiring))


def _probe_grouped_heads(session: CheckSession) -> None:
    """Check a class with two key/value heads, if a parameter sets their number and none is its default."""
    subject = session.subject
    parameters = {} if subject.cls is None or subject.step is not None else _parameters(subject.cls)
    for name, parameter in parameters.items():
        offered = vocabulary.size(name) == "groups" and parameter.default is None
        if offered and name not in subject.init:
            if not _check_rebuilt(session, {name: 2}, "grouped heads", f"{name}=2"):
                session.add_untried("grouped heads", f"pass --with {name}=…")
            return


def _check_rebuilt(session: CheckSession, changes: dict[str, Any], check: str, shown: str) -> bool:
    """Check the output of the class built with other arguments; returns False if it cannot be run so."""
    subject, options = session.subject, session.options
    assert subject.cls is not None
    try:
        other = adapt(subject.cls, subject.init | changes, options.get("true_means"))
    except CheckError:
        return False
    other.device = subject.device
    understanding = understand(
        other.replaced(layout=subject.layout),
        causal=options.get("causal"),
        heads=None,
        scale=options.get("scale"),
        always=session.always,
    )
    if understanding.first.answer is None:
        return False
    inner = CheckSession(understanding, options)
    if check == "several blocks" and not _takes_more_steps(session, inner):
        session.add_untried(check, f"{shown} made no difference to its steps: switch on what works in blocks")
        return True
    probe_output(inner)
    if inner.right_intent is not None and any(
        c.name == "gradients" for c in session.checks if c.status == "passed"
    ):
        probe_gradients(inner, inner.right_intent)
    failed = [found for found in inner.checks if found.status == "failed"]
    if failed:
        session.add_failure(check, f"with {shown}, {failed[0].name} {failed[0].detail}")
        for diagnosis in inner.diagnoses:
            session.add_diagnosis(
                diagnosis.name, diagnosis.what, diagnosis.error, distance=diagnosis.distance
            )
    elif inner.undecided or understanding.right_intent is None:
        session.add_untried(check, f"with {shown} there was no verdict: {inner.undecided}")
    else:
        session.add_pass(check, shown)
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
