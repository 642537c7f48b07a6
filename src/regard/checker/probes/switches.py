"""Switches: what a class offers and its defaults leave alone, `use_flash=True` or `sliding_window=None`.

The class is built with each switch turned, one at a time. Turned, it may be another kind of attention: it is
wrong only if the meaning of the switch is known, and its numbers are those of a mistake or break a promise.
What cannot be turned, or is not understood then, is listed as not tried.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.probes.output_comparison.failure import COMPARE
from regard.checker.probes.rebuilt import check_output, constructor_parameters, rebuild
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import arguments_of
from regard.checker.subject.construction.construct import SIZES

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
    arguments = [
        name for name, p in arguments_of(call).items() if _is_switch(name, p) and p.default is not True
    ]
    names = [name for name in arguments if name not in passed]
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
    parameters = constructor_parameters(subject.cls)
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
        _narrow(inner, causal=None if turns_causal else intent.causal)
    check_output(session, inner, check, shown, mistakes)


def _narrow(inner: CheckSession, *, causal: bool | None) -> None:
    """Look for single mistakes only, in the likeliest interpretations: of the same causality, if not None."""
    inner.brief = True
    understood = inner.understanding
    understood.intents = [i for i in understood.intents if causal is None or i.causal == causal][:12]


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
