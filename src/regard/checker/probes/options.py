"""What no other probe asks of a call's options: a scale, masks (B, T, S), and every two options at once."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.checker.interpretation.cases import head_width
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    describe_agreement,
)
from regard.checker.probes.answers import ask, record_wrong
from regard.checker.session import CheckSession, ComparedAnswer
from regard.checker.subject.call_tensors import SEQUENCES, parameters_of
from regard.checker.subject.source import prose_of

_SCALE = 0.7  # unlike 1/√D of every width


@dataclass(frozen=True)
class CallOption:
    """An option that the code takes: the name of its argument, and the fields of a question that use it."""

    argument: str
    fields: dict[str, Any]


def probe_options(session: CheckSession) -> None:
    """Check a scale, masks (B, T, S), and every two options together, if each alone is right."""
    intent = session.right_intent
    if intent is None:
        return
    scaled = _find_scale(session, intent) or intent
    _mask_of_each_item(session, intent)
    options = _right_options(session)
    pairs = [p for p in itertools.combinations(options, 2) if _can_be_combined(session, options, *p)]
    agreeing = [f"{a} with {b}" for a, b in pairs if _agrees(session, (intent, scaled), options, a, b)]
    if agreeing:
        session.add_pass("options in pairs", ", ".join(agreeing))


def _find_scale(session: CheckSession, intent: Intent) -> Intent | None:
    """Check that a scale argument is used; returns the interpretation under the scale of `_SCALE`, if known.

    It may multiply the scores or divide them, in place of 1/√D or beside it.
    """
    subject, name = session.compared, session.compared.arguments.get("scale")
    # In a module's forward pass `scale` may be that of LoRA, which does nothing without it (diffusers).
    if name is None or name in subject.extra or subject.layout in SEQUENCES:
        return None
    parameter = parameters_of(subject.target).get(name)
    if parameter is not None and isinstance(parameter.default, bool | str | tuple):
        return None  # a switch, or the name of a kind of scale
    plain = session.cases.plain("scale", seed=70)
    question = replace(plain, scale=_SCALE)
    reply = session.compared.run(question.to(session.dtype))
    if reply.answer is None:
        session.add_skip("scale", f"`{name}={_SCALE}` raised {reply.error_line}")
        return None
    own = intent.wiring.scale or head_width(intent.wiring, plain) ** -0.5
    # The last one is for an argument that is a width, by whose root the scores are divided.
    for scale in (_SCALE, 1 / _SCALE, own * _SCALE, own / _SCALE, _SCALE**-0.5):
        scaled = replace(intent, wiring=replace(intent.wiring, scale=scale))
        if scaled.error(question, reply.answer) < TOLERANCE:
            ask(session, question, scaled, passed=f"`{name}={_SCALE}` gives a scale of {scale:.3g}")
            return scaled
    error = intent.error(question, reply.answer)
    if not error < TOLERANCE:
        how = f"what `{name}` does to the scores is not known: compare with your own slow version, oracle="
        session.add_untried("scale", how)
    elif _says(session, _UNUSED, name):
        session.notes.append(f"{name} is not used, as its text says")
    else:
        used = replace(intent, wiring=replace(intent.wiring, scale=_SCALE))
        distance = used.error(question, reply.answer) / TOLERANCE
        words: dict[str, Any] = {"argument": name, "value": _SCALE, "agreement": describe_agreement(error)}
        session.find("scale-ignored", "scale", error, distance=distance, **words)
    return None


def _mask_of_each_item(session: CheckSession, intent: Intent) -> None:
    """Check masks (B, T, S), and masks (B, H, T, S) of functions on heads, unless it refuses them."""
    subject, cases = session.compared, session.cases
    form = subject.mask_form
    passed = session.has_passed("mask")
    on_heads = subject.layout in ("BHTD", "BTHD", "TBHD")
    if not (on_heads or subject.layout == "BTC") or not passed or form.rank not in (2, 4):
        return
    plain = session.with_explicit_mask(cases.plain(B=3, seed=71))  # B is not H: no mask of heads fits
    H = plain.q.shape[1] if on_heads else 1
    masks = [cases.masked(seed=72 + i).mask for i in range(3 * H)]
    each = torch.stack([mask for mask in masks if mask is not None])
    each = each.view(3, H, *each.shape[1:])  # (B, H, T, S)
    for shape, rank, mask in (("(B, T, S)", 3, each[:, :1]), ("(B, H, T, S)", 4, each)):
        if rank == 4 and H == 1:
            continue
        question = replace(plain, name=f"mask {shape}", mask=mask)
        asked = ask(session, question, intent, subject.replaced(mask_form=replace(form, rank=rank)))
        if not asked.agrees:
            record_wrong(session, asked, intent, f"given `{subject.arguments['mask']}` {shape}")


def _right_options(session: CheckSession) -> dict[str, CallOption]:
    """Return the options that are right alone, by the name of their check."""
    subject, cases, names = session.compared, session.cases, session.compared.arguments
    mask = names.get("mask", "")
    bounded = "window" in names and subject.window_is_bounded
    options = {
        "causal": CallOption(names.get("causal", ""), {"flag": True}),
        "mask": CallOption(mask, {"mask": cases.masked(seed=11).mask}),
        "padding": CallOption(names.get("padding", mask), {"padding": cases.padded(seed=12).padding}),
        "float mask": CallOption(names.get("bias", mask), {"bias": cases.biased(seed=52).bias}),
        "window": CallOption(names.get("window", ""), {"window": 3, "ahead": 0 if bounded else None}),
        "softcap": CallOption(names.get("softcap", ""), {"softcap": 2.0}),
        "scale": CallOption(names.get("scale", ""), {"scale": _SCALE}),
    }
    passed = {check.name for check in session.checks if check.status == "passed"}
    if "mask" in passed and "padding" not in names:  # it is a mask of the same argument
        passed.discard("padding")
    return {name: option for name, option in options.items() if name in passed and option.argument}


# What was asked together already, when each was asked alone.
_ASKED = ({"causal", "window"}, {"causal", "softcap"})
_IN_MASK, _MASKS = {"causal", "window"}, {"mask", "padding", "float mask"}


def _can_be_combined(session: CheckSession, options: dict[str, CallOption], first: str, second: str) -> bool:
    """Return whether two options are arguments of their own, and mean something together."""
    pair = {first, second}
    arguments = {options[first].argument, options[second].argument}
    if len(arguments) == 1 or pair in _ASKED:
        return False
    if "position_bias" in arguments:  # T5's first layer returns it with the mask in it, for the others
        return not pair & {"mask", "padding", "causal"}
    kernel = session.subject.kernel_layout
    if session.subject.is_transformers or (kernel is not None and kernel.kind == "interface"):
        # Transformers' models put causality and the window into the mask that they pass.
        return not (pair & _IN_MASK and pair & _MASKS)
    return True


def _agrees(
    session: CheckSession,
    intents: tuple[Intent, Intent],
    options: dict[str, CallOption],
    first: str,
    second: str,
) -> bool:
    """Return whether two options together do what both say; a mistake is recorded.

    `intents` are the interpretations without and with a scale.
    """
    fields = options[first].fields | options[second].fields
    if "window" in (first, second) and "causal" in options:
        fields = {"flag": True} | fields  # as it was asked alone
    plain = session.with_explicit_mask(session.cases.plain(f"{first} and {second}", seed=74))
    question = replace(plain, **fields)
    intent = intents["scale" in fields]
    asked = session.compare(question, intent)
    if (answer := asked.answer) is None:
        session.add_skip(question.name, f"it does not take both: {asked.error_line}")
        return False
    if asked.agrees:
        return True
    for kept, dropped in ((first, second), (second, first)):
        without = replace(question, **{field: getattr(plain, field) for field in options[dropped].fields})
        same = intents[kept == "scale"].error(without, answer)
        if same < TOLERANCE:
            _record_dropped(session, asked, options[kept], options[dropped], same)
            return False
    if not {first, second} & {"causal", "mask", "padding", "window"}:
        order = "both have an effect, and in which order they are applied is a convention"
        session.add_skip(question.name, order)
        return False
    together = f"with `{options[first].argument}` and `{options[second].argument}` together"
    record_wrong(session, asked, intent, together)
    return False


def _record_dropped(
    session: CheckSession, asked: ComparedAnswer, kept: CallOption, dropped: CallOption, same: float
) -> None:
    """Record an option that another one switches off, as a mistake unless the author's text says so."""
    if _says(session, _PRECEDENCE, kept.argument, dropped.argument):
        session.notes.append(
            f"{dropped.argument} is ignored where {kept.argument} is given, as its text says"
        )
        return
    session.add_mistake(
        asked.question.name,
        f"`{kept.argument}` switches `{dropped.argument}` off",
        "option-dropped",
        f"Given `{kept.argument}` and `{dropped.argument}`, your output equals attention with "
        f"`{kept.argument}` alone, {describe_agreement(same)}.",
        same,
        distance=asked.distance,
    )


# An argument may be there for the sake of a common signature, and say so.
_UNUSED = re.compile(r"\b(unused|not used|never used|ignored|no effect|compatib\w+|deprecated)\b", re.I)
# "is_causal: ignored if a mask is given", "the mask takes precedence", "if both are given, the mask is used".
_PRECEDENCE = re.compile(
    r"\bignor(?:e|ed|es|ing)\b|\boverrid|\boverrul|\bprecedence\b|\bpriority\b|\binstead\b|\breplac(?:es|ed)\b"
    r"|\bexclusive\b|\bno effect\b|\bhint\b|\bunless\b|\bwins?\b|\bsupersed|\bdisregard"
    r"|\bswitch(?:ed|es)? off\b|\b(?:only|used|appl\w+)\b.*\b(?:no|not|none|without)\b|\bif both\b"
    r"|\balready (?:contain|includ|hold)",
    re.I,
)
_WORDS = re.compile(r"causal|mask|padd?|len|bias|window|cap|scal", re.I)


def _says(session: CheckSession, phrase: re.Pattern[str], *arguments: str) -> bool:
    """Return whether a docstring or comment has such a phrase in a sentence that speaks of an argument."""
    words = [word.lower() for argument in arguments for word in (argument, *_WORDS.findall(argument))]
    sentences = [s.lower() for s in re.split(r"\.\s", prose_of(session.source)) if phrase.search(s)]
    return any(word in sentence for sentence in sentences for word in words)
