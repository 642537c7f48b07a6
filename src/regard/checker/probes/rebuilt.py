"""The class under test, built again with other arguments: understood anew, and its output checked.

Groups, blocks, heads, switches and lengths are tried so. What the class then computes may be another kind of
attention, which is no mistake: without a known form of attention there is no verdict.

A switch is what a class offers and its defaults leave alone, `use_flash=True` or `sliding_window=None`. Each
is turned alone, and wrong only if its meaning is known, and its numbers are those of a mistake or break a
promise. What cannot be turned, or is not understood then, is listed as not tried.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard.checker.catalogue import CATALOGUE, THEMES, get_mistake
from regard.checker.errors import CheckError
from regard.checker.interpretation.understand import understand
from regard.checker.probes.gradients import gradient_failure, probe_gradients
from regard.checker.probes.inputs import probe_causality
from regard.checker.probes.output import probe_output
from regard.checker.session import COMPARE, CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt
from regard.checker.subject.call_tensors import SEQUENCES
from regard.checker.subject.construct import SIZES
from regard.checker.subject.subject import Subject
from regard.checker.subject.vocabulary import arguments_of, parameters_of


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
    # `adapt` guesses the layout anew, which was found out before.
    return understand_again(session, other.replaced(layout=subject.layout))


def understand_again(session: CheckSession, subject: Subject) -> CheckSession | str:
    """Return a session on the code in another form, with the same promises; a sentence if it does not run."""
    options = session.options
    causal, scale = options.get("causal"), options.get("scale")
    understanding = understand(subject, session.always, causal=causal, scale=scale)
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


_MOST = 6  # switches that are tried
_MOST_UNKNOWN = 2  # of those that are not understood, each of which takes a few seconds
# What has no part in the numbers of attention, or is tried by other probes.
_NO_SWITCH = re.compile(
    r"bias|drop|device|dtype|batch_first|eps|init|idx|index|name|return|output|need|verbose|debug|training"
    r"|inplace|scale|backend|config|layer|dim|width|size",
    re.I,
)
# Switches between ways to compute the same numbers: whatever they change is a mistake.
_SAME_NUMBERS = re.compile(
    r"(^|_)(flash\w*|sdpa|fused|fast(_path)?|einsum|triton|xformers|native|naive|manual|eager|optimi[sz]ed"
    r"|memory_efficient|mem_eff(icient)?|efficient_attention|torch|pytorch|compiled?|online|vectori[sz]ed)(_|\d|$)"
)
# Switches that add something known, with which few mistakes can be made. With normalised queries the scale is
# a convention, so scales are not among them.
_POSITIONS = re.compile(r"rope|rotary|rotat|alibi|(^|_)pos")
_NORMS = re.compile(r"(q|k|query|key)_?(layer|rms|l2)?_?norm")


def probe_switches(session: CheckSession) -> None:
    """Check the class with each of its switches turned, and list what was not tried.

    Modules of Transformers have dozens of such arguments, which their models set.
    """
    subject = session.subject
    if session.right_intent is None or subject.is_transformers or subject.kernel_layout is not None:
        return
    _try_switches(session)
    passed = {*subject.arguments.values(), *subject.extra, *subject.call, *subject.positional}
    call = subject.target if subject.module is None else subject.module.forward
    arguments = [(name, p) for name, p in arguments_of(call).items() if name not in passed]
    names = [name for name, p in arguments if _is_switch(name, p) and p.default is not True]
    if names:
        session.add_untried(_named("argument", names), f"pass it: --call {names[0]}=…")
    # Beam search calls it between two steps (Transformers' `_reorder_cache`), and no forward pass does.
    for name in ("reorder_cache", "_reorder_cache"):
        if subject.module is not None and name in vars(type(subject.module)):
            session.add_untried(f"method {name}", "no check calls it: test it with two beams of your own")
    if "start" in subject.arguments and all(check.name != "cache" for check in session.checks):
        session.add_untried("cache", f"`{subject.arguments['start']}` says that it has one: pass cached=")


def _try_switches(session: CheckSession) -> None:
    subject = session.subject
    if subject.cls is None or subject.module is None:
        return
    parameters = parameters_of(subject.cls)
    switches = [name for name, p in parameters.items() if _is_switch(name, p) and name not in subject.init]
    untried, tried, unknown = [], 0, 0
    right: dict[str, Any] = {}  # the switches with which, each alone, it is right
    for name in sorted(switches, key=lambda name: not _possible_mistakes(name)):  # known ones first
        value = _turned(name, parameters[name])
        left = tried < _MOST and unknown < _MOST_UNKNOWN and subject.step is None
        inner = rebuild(session, {name: value}) if left and value is not None else ""
        if isinstance(inner, str):
            untried.append(name)
            continue
        tried += 1
        unknown += inner.right_intent is None
        _try(session, inner, f"option {name}", {name: value})
        if session.has_passed(f"option {name}"):
            right[name] = value
    if untried:
        session.add_untried(_named("option", untried), f"set it: --with {untried[0]}=…")
    if len(right) > 1:  # `causal=True` may be wrong only where `use_flash=False`
        inner = rebuild(session, right)
        if isinstance(inner, str):
            session.add_untried("options together", inner)
        else:
            _try(session, inner, "options together", right)


def _try(session: CheckSession, inner: CheckSession, check: str, turned: dict[str, Any]) -> None:
    """Check the class as built with some switches turned."""
    intent = session.right_intent
    assert intent is not None
    mistakes = set(CATALOGUE).intersection(*map(_possible_mistakes, turned))
    shown = ", ".join(f"{name}={value}" for name, value in turned.items())
    if inner.right_intent is None and not mistakes:
        session.add_untried(check, f"with {shown} it is no attention that the check knows; {COMPARE}")
        return
    if inner.right_intent is None:
        turns_causal = any(vocabulary.size(name) == "causal" for name in turned)
        # Single mistakes only, in the likeliest interpretations: of one causality, if it is not turned.
        inner.brief, understood = True, inner.understanding
        meant = [i for i in understood.intents if turns_causal or i.causal == intent.causal]
        understood.intents = meant[:12]
    check_output(session, inner, check, shown, mistakes)


def _is_switch(name: str, parameter: inspect.Parameter) -> bool:
    """Return whether a parameter switches something on or off, by its default and its name."""
    meaning, default = vocabulary.size(name), parameter.default
    if meaning is not None:
        return meaning in ("window", "causal", "softcap") and (default is None or default is False)
    return (default is None or isinstance(default, bool)) and not _NO_SWITCH.search(name)


def _turned(name: str, parameter: inspect.Parameter) -> Any:
    """Return the other value of a switch; None if it cannot be guessed."""
    if isinstance(parameter.default, bool):
        return not parameter.default
    meaning = vocabulary.size(name)
    return True if meaning == "causal" else SIZES.get(meaning or "")


def _possible_mistakes(name: str) -> Collection[str]:
    """Return the mistakes that code can make with a switch; none if its meaning is not known.

    `exclude_self=True` is attention that hides the diagonal, and `use_softmax=False` has no softmax.
    """
    if vocabulary.size(name) is not None or _SAME_NUMBERS.search(name):
        return CATALOGUE
    if _POSITIONS.search(name):
        return [m.name for m in THEMES["positions"]]
    return ["one-side-normalised"] if _NORMS.search(name) else ()


def _named(kind: str, names: list[str]) -> str:
    return f"{kind}{'s' * (len(names) > 1)} {', '.join(names)}"
