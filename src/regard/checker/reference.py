"""The caller's own slow version as the oracle, where the checker's own attention has no place.

`check(thing, oracle=reference)` gives both the same inputs, options and weights. This file finds out how both
are called and which weights belong together; the probes then compare with the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from regard.checker.errors import CheckError
from regard.checker.interpretation.cases import Cases, max_length
from regard.checker.interpretation.understand import Understanding, first_form, understand
from regard.checker.oracle.oracle import Observation
from regard.checker.probes.behaviour import HEAD_AXIS, dependence
from regard.checker.reports.report import Report
from regard.checker.session import CheckSession, Reference
from regard.checker.shared_weights import WeightMatch, describe_mismatch, find_matches, forget_copies
from regard.checker.subject.adapt import adapt, add_promises
from regard.checker.subject.call_tensors import spell
from regard.checker.subject.construct import SIZES, constructor_arguments
from regard.checker.subject.subject import Subject
from regard.checker.subject.vocabulary import arguments_of

# The layouts of functions on split heads.
HEADS = ("BHTD", "BTHD", "BTD", "TD")


def name_by_own_check(session: CheckSession, own_check: Callable[[], Report]) -> None:
    """Name the mistakes that the checker's own attention finds, if the two differ for no reason that shows.

    `own_check` checks the code against that attention. It is asked only if the reference is such attention.
    """
    failed = any(check.status == "failed" for check in session.checks)
    if not failed or session.diagnoses or session.reference is None:
        return
    theirs = session.reference.session
    if understand(theirs.subject, dict(theirs.cases.always)).right_intent is None:
        return  # the checker's own attention has not its numbers
    for diagnosis in own_check().diagnoses:
        session.add_diagnosis(diagnosis.name, diagnosis.what, diagnosis.error, warning=diagnosis.warning)


def pair_with_reference(
    thing: Any, reference: Any, init: dict[str, Any], options: dict[str, Any], promises: dict[str, Any]
) -> CheckSession:
    """Return a session of `thing` with its reference, which takes the same inputs and holds the same weights.

    Arguments:
        thing, reference: functions, modules or classes.
        init: arguments of the constructors, or further arguments of the functions.
        options: those of `check`.
        promises: what the caller promised of both, such as `window=3`.
    """

    def adapted(side: Any) -> Subject:
        # A module is built already, so that arguments for a constructor have nowhere to go.
        own = {} if isinstance(side, nn.Module) else init
        call = options.get("call") or {}
        if side is reference:
            # The signature of a class itself is that of its constructor.
            is_module = isinstance(side, type) and hasattr(side, "forward")
            taken = arguments_of(side.forward if is_module else side)
            # An argument that only the code takes would make the reference raise an error.
            call = {name: value for name, value in call.items() if name in taken}
        return adapt(side, add_promises(side, own, promises), options.get("true_means"), call)

    subject = adapted(thing)
    try:
        theirs = adapted(reference)
    except CheckError as error:
        raise CheckError(f"your reference cannot be used: {error}") from error
    subject.device = theirs.device = options.get("device", "cpu")
    same = subject.inputs == theirs.inputs and bool(subject.kernel_layouts) == bool(theirs.kernel_layouts)
    if (subject.layout in HEADS) != (theirs.layout in HEADS) or not same:
        raise CheckError(
            f"{subject.name} takes {', '.join(arguments_of(subject.target))} and your reference "
            f"{theirs.name} takes {', '.join(arguments_of(theirs.target))}: give both the same inputs"
        )
    always = {name: promises[name] for name in ("window", "softcap") if promises[name] is not None}
    # Where both take a causal flag it is always passed, since their defaults may differ.
    if "causal" in subject.arguments and "causal" in theirs.arguments:
        always["flag"] = options.get("causal") is True
    theirs_session = prepare_reference(theirs, subject, always, options)
    wide = replace(theirs_session.cases, multiple=64, powers=True)
    # A kernel may take only lengths and widths of certain multiples.
    for cases in (theirs_session.cases, wide) if theirs.layout in HEADS else (theirs_session.cases,):
        ways = _calls(subject, theirs_session.subject, options)
        calls = [_open_session(call, cases, options) for call in ways]
        if any(call.understanding.first.answer is not None for call in calls):
            break
    if calls[0].cases is wide:
        theirs_session = _open_session(theirs_session.subject, wide, options)
    references = [theirs_session]
    # Code without a flag is always causal or never, so that the reference is asked both ways.
    if "causal" in theirs.arguments and "causal" not in subject.arguments:
        flags = [_with_flag(theirs_session.subject, flag) for flag in (False, True)]
        references = [_open_session(flag, theirs_session.cases, options) for flag in flags]
    matches = list(find_matches(subject.module, theirs_session.module))
    # Roles and order may match the wrong weights. The caller may have made the two modules equal already.
    if not any(match.certain for match in matches):
        matches += _weights_as_given(thing, reference, subject, theirs_session.subject)
    mismatch = "" if matches else describe_mismatch(subject.module, theirs_session.module)
    pairs = [
        (call, Reference(ref, match, call.dtype, mismatch))
        # Modules whose weights find no match are still run, so that the report can name the mismatch.
        for match in matches or [WeightMatch([], certain=False)]
        for ref in references
        for call in calls
    ]
    session = _choose(pairs)
    session.notes.insert(0, f"compared with {theirs.name}, your reference")
    return session


def prepare_reference(
    subject: Subject, other: Subject, always: dict[str, Any], options: dict[str, Any]
) -> CheckSession:
    """Find the shapes, the length and the precision in which the reference runs; it must be deterministic."""
    if subject.kernel_layouts:
        understanding = understand(subject, always)
        subject, cases = understanding.subject, understanding.cases
    elif subject.layout in HEADS:
        subject = _with_layout(subject, always)
        cases = Cases(subject, always=always)
    else:
        subject, cases = first_form(subject, always)
    # Both sides get the same questions, so that the shorter table of positions limits them.
    lengths = [length for length in (cases.max_length, max_length(other)) if length is not None]
    cases = replace(cases, max_length=min(lengths, default=None))
    session = _open_session(subject, cases, options)
    question = session.cases.plain().to(session.dtype)
    first, second = session.understanding.first, subject.run(question)
    if first.answer is None or second.answer is None:
        raise CheckError(
            f"your reference {subject.name} could not be run on {question.shapes()}: {first.error_line}"
        )
    if not bool(first.answer.output.isfinite().all()):
        raise CheckError(f"your reference {subject.name} gives NaN or inf on {question.shapes()}")
    if not torch.equal(first.answer.output, second.answer.output):
        raise CheckError(
            f"your reference {subject.name} gives another output each time: remove its randomness, so that "
            "there is something to compare with"
        )
    return session


def _with_layout(subject: Subject, always: dict[str, Any]) -> Subject:
    """Return a function on heads in the layout in which its heads are independent and its tokens are not."""
    running = []
    for layout in HEADS:
        candidate = subject.replaced(layout=layout)
        session = _open_session(candidate, Cases(candidate, always=always), {})
        question = session.cases.plain()
        if session.understanding.first.answer is None:
            continue
        running.append(candidate)
        heads, tokens = dependence(session, question, HEAD_AXIS), dependence(session, question)
        alone = heads is not None and torch.equal(heads, torch.eye(len(heads), dtype=torch.bool))
        # In a wrong layout heads and tokens change places, so that each token depends on itself alone.
        if alone and tokens is not None and int(tokens.sum()) > len(tokens):
            return candidate
    return running[0] if running else subject


def _open_session(subject: Subject, cases: Cases, options: dict[str, Any]) -> CheckSession:
    """Return a session without interpretations, in the first precision in which the code runs."""
    question = cases.plain()
    # Kernels may take float32 or half precision only. Float64 tells most mistakes apart.
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        first = subject.run(question.to(dtype))
        if first.answer is not None:
            break
    else:
        dtype, first = torch.float64, subject.run(question)
    kernel = subject.kernel_layout
    inputs = [f"inputs {spell(subject.layout) if kernel is None else kernel.description}"]
    return CheckSession(Understanding(subject, subject, cases, [], None, dtype, first, inputs), options)


def _calls(subject: Subject, reference: Subject, options: dict[str, Any]) -> list[Subject]:
    """Return the ways to call the code: like the reference first, then in other layouts and with its flag."""
    if (kernel := reference.kernel_layout) is not None:
        same = [layout for layout in subject.kernel_layouts if layout.kind == kernel.kind]
        return [subject.replaced(kernel_layout=layout) for layout in same or subject.kernel_layouts]
    layouts = [reference.layout]
    if reference.layout in HEADS:
        layouts += [layout for layout in HEADS if layout != reference.layout]
    calls = [subject.replaced(layout=layout) for layout in layouts]
    if "causal" in subject.arguments and "causal" not in reference.arguments:
        flags = [options["causal"]] if options.get("causal") is not None else [False, True]
        calls = [_with_flag(call, flag) for call in calls for flag in flags]
    return calls


def _with_flag(subject: Subject, flag: bool) -> Subject:
    """Return the subject with its causal argument set once and for all."""
    arguments = {meaning: name for meaning, name in subject.arguments.items() if meaning != "causal"}
    return subject.replaced(arguments=arguments, extra=subject.extra | {subject.arguments["causal"]: flag})


def _weights_as_given(thing: Any, reference: Any, subject: Subject, theirs: Subject) -> list[WeightMatch]:
    """Return the match of two modules whose weights the caller has made equal, in whatever form."""
    if not isinstance(thing, nn.Module) or not isinstance(reference, nn.Module):
        return []
    # `adapt` has given both modules new random weights.
    copies = []
    for given, own in ((thing, subject.module), (reference, theirs.module)):
        assert own is not None
        parameters = dict(own.named_parameters())
        copies += [(parameters[name].data, p.detach()) for name, p in given.named_parameters()]
    return [WeightMatch(copies, certain=False, note="both with the weights that they have")]


def _choose(pairs: list[tuple[CheckSession, Reference]]) -> CheckSession:
    """Return the session of the first pair that agrees, or else of the first that runs."""
    for session, reference in pairs:
        _join(session, reference)
        if _agrees(session) or _agrees_with_buffers(session, reference):
            return session
    for session, reference in pairs:
        if session.understanding.first.answer is not None:
            _join(session, reference)
            return session
    session = pairs[0][0]
    first, shapes = session.understanding.first, session.cases.plain().shapes()
    raise CheckError(f"{session.subject.name} could not be run on {shapes}: {first.error_line}")


def _join(session: CheckSession, reference: Reference) -> None:
    """Compare the code of a session with a reference from now on, and give both the same weights."""
    session.reference = reference
    session.notes = [reference.match.note] if reference.match.note else []
    reference.match.apply(session.subject, reference.session.subject)
    _run_first(session)


def _run_first(session: CheckSession) -> None:
    """Run the plain question again, after weights or buffers have changed."""
    forget_copies(session.subject)
    session.understanding.first = session.subject.run(session.cases.plain().to(session.dtype))


def _agrees(session: CheckSession) -> bool:
    """Return whether code and reference agree on the plain question."""
    question, answer = session.cases.plain(), session.understanding.first.answer
    return answer is not None and session.error(Observation(question, answer)) < session.tolerance


def _agrees_with_buffers(session: CheckSession, reference: Reference) -> bool:
    """Return whether the two agree once the buffers are the same too, and say so in the report.

    A buffer that the reference draws at random, such as random features, is shared like a weight. Any other
    that must be copied before the two agree is wrong.
    """
    module, source = session.module, reference.session.module
    if module is None or source is None:
        return False
    theirs = dict(source.named_buffers())
    shared = [
        (name, buffer)
        for name, buffer in module.named_buffers()
        if name in theirs and theirs[name].shape == buffer.shape and not torch.equal(theirs[name], buffer)
    ]
    saved = [(buffer, buffer.clone()) for _, buffer in shared]
    for name, buffer in shared:
        buffer.copy_(theirs[name])
    _run_first(session)
    if not shared or not _agrees(session):
        for buffer, before in saved:
            buffer.copy_(before)
        _run_first(session)
        return False
    names = ", ".join(f"`{name}`" for name, _ in shared)
    if all(name in _random_buffers(reference.session.subject) for name, _ in shared):
        session.notes.append(f"{names}, drawn at random, copied from {reference.name}")
    else:
        session.add_failure("buffers", f"{names}: the two agree only with those of {reference.name}")
    return True


def _random_buffers(subject: Subject) -> set[str]:
    """Return the names of buffers that another instance of the same class does not share."""
    if subject.cls is None or subject.module is None:
        return set()
    with torch.random.fork_rng(devices=[]):
        # `build` constructs every module with the seed 0.
        torch.manual_seed(2)
        other = subject.cls(**constructor_arguments(subject.cls, subject.init, SIZES))
    others = dict(other.named_buffers())
    return {name for name, x in subject.module.named_buffers() if not torch.equal(x, others[name])}
