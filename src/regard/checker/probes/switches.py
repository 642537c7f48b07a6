"""Switches of a class: arguments of its constructor whose default leaves another attention alone.

`use_flash=True` and `sliding_window=None` are switches, and so are `layer_idx=0`, `head_dim=None` and
`layer_type="full_attention"`. Each is turned alone, and wrong only if its meaning is known, and its numbers
are those of a mistake or break a promise. What cannot be turned, or is not understood then, is listed as not
tried.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from regard.checker.catalogue import CATALOGUE, THEMES
from regard.checker.interpretation.cases import head_width
from regard.checker.probes.rebuilt import check_output, rebuild
from regard.checker.session import COMPARE, CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.construct import SIZES
from regard.checker.subject.source import compared_strings
from regard.checker.subject.vocabulary import arguments_of, parameters_of

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
# Words for the kind of attention that an argument of text chooses: `attn_type`, `layer_type`, `mask_mode`.
_KIND = re.compile(r"attn|attention|mask|window|layer_?(type|kind)|implementation|backend", re.I)
# Scales and positions may differ from layer to layer (GPT-2's `scale_attn_by_inverse_layer_idx`, SmolLM3's
# layers without rotary positions).
_OF_LAYERS = [mistake.name for mistake in THEMES["mask"]]
# Kinds of layers that see fewer keys: of a causal one, all earlier.
_LOCAL = re.compile(r"sliding|local|window|chunk|strided", re.I)


@dataclass(frozen=True)
class Switch:
    """Other values of arguments of a constructor: of one, or of several that belong together."""

    arguments: dict[str, Any]  # None where no other value can be guessed
    mistakes: Collection[str] = ()  # that make it wrong; none if its meaning is not known
    sizes: dict[str, Any] = field(default_factory=dict)  # changes to the guessed ones that go with it
    is_layer: bool = False  # whether it is another layer of the same model
    is_optional: bool = True  # whether it is off by default, so that it is named if it cannot be turned

    @property
    def name(self) -> str:
        """The name of its first argument."""
        return next(iter(self.arguments))


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
    untried, tried, unknown = [], 0, 0
    right: list[Switch] = []  # with which, each alone, it is right
    for switch in sorted(_switches(session), key=lambda switch: not switch.mistakes):  # known ones first
        left = tried < _MOST and unknown < _MOST_UNKNOWN and subject.step is None
        inner = _rebuild(session, switch) if left and None not in switch.arguments.values() else ""
        if isinstance(inner, str):
            untried += [switch.name] if switch.is_optional else []
            continue
        tried += 1
        unknown += inner.right_intent is None
        check = f"option {switch.name}"
        _try(session, inner, check, switch)
        if session.has_passed(check) and not session.has_failed(check):
            right.append(switch)
    if untried:
        session.add_untried(_named("option", untried), f"set it: --with {untried[0]}=…")
    if len(right) > 1:  # `causal=True` may be wrong only where `use_flash=False`
        together = _join(right)
        inner = _rebuild(session, together)
        if isinstance(inner, str):
            session.add_untried("options together", inner)
        else:
            _try(session, inner, "options together", together)


def _join(switches: list[Switch]) -> Switch:
    """Return several switches as one."""
    arguments: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    for switch in switches:
        arguments |= switch.arguments
        sizes |= switch.sizes
    mistakes = set(CATALOGUE).intersection(*(switch.mistakes for switch in switches))
    return Switch(arguments, mistakes, sizes, is_layer=all(switch.is_layer for switch in switches))


def _rebuild(session: CheckSession, switch: Switch) -> CheckSession | str:
    """Return a session on the class with a switch turned; a sentence if it cannot be run so."""
    flagged, intent = "causal" in session.subject.arguments, session.right_intent
    stays_causal = switch.is_layer and not flagged and intent is not None and intent.causal
    return rebuild(session, switch.arguments, switch.sizes, True if stays_causal else None)


def _try(session: CheckSession, inner: CheckSession, check: str, switch: Switch) -> None:
    """Check the class as built with a switch turned."""
    intent = session.right_intent
    assert intent is not None
    shown = ", ".join(f"{name}={value}" for name, value in switch.arguments.items())
    if inner.right_intent is None and not switch.mistakes:
        session.add_untried(check, f"with {shown} it is no attention that the check knows; {COMPARE}")
        return
    if inner.right_intent is None:
        turns_causal = any(vocabulary.size(name) == "causal" for name in switch.arguments)
        # Single mistakes only, in the likeliest interpretations: of one causality, if it is not turned.
        inner.brief, understood = True, inner.understanding
        meant = [i for i in understood.intents if turns_causal or i.causal == intent.causal]
        understood.intents = meant[:12]
    check_output(session, inner, check, shown, switch.mistakes)


def _switches(session: CheckSession) -> Iterator[Switch]:
    """Yield the switches of a class that the caller has not set."""
    assert session.subject.cls is not None
    parameters = parameters_of(session.subject.cls)
    widths = []
    for name, parameter in parameters.items():
        meaning, default = vocabulary.size(name), parameter.default
        if name in session.subject.init:
            continue
        if meaning == "layer" and not isinstance(default, str | tuple):
            number = default + 1 if type(default) is int else 1
            yield Switch({name: number}, _OF_LAYERS, is_layer=True)
        elif meaning == "head_width":
            widths.append(name)
        elif isinstance(default, str):
            yield from _choices(session, name, default)
        elif _is_switch(name, parameter):
            yield Switch({name: _turned(name, parameter)}, _possible_mistakes(name))
    assert session.right_intent is not None
    wiring = session.right_intent.wiring
    own = head_width(wiring, session.cases.plain())  # 0 if it is not known
    # A head that is narrower than the model already shows what is taken from the model's width.
    if widths and own * wiring.heads in (0, session.cases.width):
        wide = 2 * (own or SIZES["head_width"])
        sizes = {"head_width": wide, "temperature": wide**0.5}  # a temperature is the root of this width
        optional = any(parameters[name].default is None for name in widths)
        yield Switch(dict.fromkeys(widths, wide), CATALOGUE, sizes, is_optional=optional)


def _choices(session: CheckSession, name: str, default: str) -> Iterator[Switch]:
    """Yield the other values of an argument of text, as far as the code compares it with them."""
    others = [text for text in compared_strings(session.source, name) if text != default]
    if not others and _KIND.search(name):
        yield Switch({name: None})
    for text in others:
        if _SAME_NUMBERS.search(text.lower()) and _SAME_NUMBERS.search(default.lower()):
            yield Switch({name: text}, CATALOGUE)
        elif _KIND.search(name):
            is_layer = "layer" in name or _LOCAL.search(text) is not None
            yield Switch({name: text}, _OF_LAYERS if is_layer else (), is_layer=is_layer)


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
