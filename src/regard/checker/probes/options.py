"""What the options of a call do: masks, numbers added to the scores, a scale, and every two at once.

Of masks the edge cases are asked: rows without a key, extreme scores, NaN in hidden keys, T ≠ S. An answer is
right, and its gradients with it, or wrong, and the mistake that gives its numbers is named.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.checker.diagnose import diagnose
from regard.checker.interpretation.cases import head_width
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    describe_agreement,
    describe_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.gradients import NO_GRADIENT, bias_gradient_failure, gradient_failure
from regard.checker.probes.numbers import check_extreme, extreme_size
from regard.checker.probes.wrong_output import describe_failure
from regard.checker.session import CheckSession, ComparedAnswer
from regard.checker.subject.call_tensors import SEQUENCES
from regard.checker.subject.source import prose_of
from regard.checker.subject.subject import Subject
from regard.checker.subject.vocabulary import parameters_of


def ask(
    session: CheckSession,
    question: Question,
    intent: Intent,
    subject: Subject | None = None,
    *,
    passed: str = "",
    refused: str = "",
) -> ComparedAnswer:
    """Ask the code, or `subject`, a question; record that its answer and gradients are right, if they are.

    `passed` is the detail of the pass; `refused` begins that of a skip if there is no answer.
    """
    asked = session.compare(question, intent, subject)
    if asked.answer is None and refused:
        session.add_skip(question.name, f"{refused} {asked.error_line}")
    if asked.agrees:
        session.add_pass(question.name, passed)
        if failure := gradient_failure(session, subject or session.compared, question, intent):
            session.add_failure(f"gradients, {question.name}", failure)
    return asked


def record_wrong(
    session: CheckSession,
    asked: ComparedAnswer,
    intent: Intent,
    given: str,
    only: str = "",
    warning: str = "",
) -> bool:
    """Record a wrong answer with the mistake that gives it, or else with its first wrong number.

    `given` says what was asked. If it is not the mistake `only`, nothing is recorded; `warning` only warns
    here. Returns whether something was recorded.
    """
    question, answer = asked.question, asked.answer
    if answer is None:
        return False
    matches = diagnose([Observation(question, answer)], [intent], session.source)
    if only and not any(match.names == (only,) for match in matches):
        return False
    name = matches[0].names[0] if matches else ""
    status = "warning" if name and name == warning else "failed"
    session.add_check(question.name, status, f"{given}, the output {describe_difference(asked.error)}", name)
    for match in matches[:1]:
        session.add_match(replace(match, detail=given), asked.distance, warning=name == warning)
    if not matches and not session.example:
        session.example = describe_failure(question, answer.output, intent.answer(question).output)
    return True


def probe_masks(session: CheckSession) -> None:
    """Check the edge cases of masks. Most failures are warnings, since PyTorch's attention does the same."""
    intent = session.right_intent
    unknown = any(check.name == "mask" and check.status in ("skipped", "untried") for check in session.checks)
    if intent is None or unknown:  # without the convention of its masks there is nothing to say
        return
    if "mask" in session.subject.arguments or "padding" in session.subject.arguments:
        _empty_rows(session, intent)
        _extreme_scores(session, intent)
        if session.subject.mask_form.kind != "lowest":  # Transformers' padding holds tokens, never NaN
            _nan_in_padding(session)
    if "mask" in session.subject.arguments or "bias" in session.subject.arguments:
        _bias(session, intent)
    if (
        "causal" in session.subject.arguments
        and session.module is None
        and session.options.get("causal") is not False
    ):
        _alignment(session, intent)


def _empty_rows(session: CheckSession, intent: Intent) -> None:
    """Check that a row without a visible key neither gives NaN nor changes other rows."""
    if "mask" not in session.subject.arguments or session.compared.mask_form.rank == 1:
        return  # a mask (B, S) of tokens leaves every query one
    question = session.with_explicit_mask(session.cases.masked("empty rows", seed=50))
    assert question.mask is not None
    mask = question.mask.clone()
    mask[1] = False
    question = replace(question, mask=mask)
    asked, expected = session.compare(question, intent), intent.answer(question)
    if asked.answer is None:
        session.add_skip("empty rows", f"a query without a visible key raised {asked.error_line}")
        return
    assert expected.free is not None
    rows = asked.answer.output[expected.free.expand_as(asked.answer.output)]
    if not asked.agrees:
        detail = f"with a row without a visible key, another {describe_difference(asked.error)}"
        session.add_failure("empty rows", detail)
    elif bool(rows.isnan().any()):
        session.find("empty-row-nan", "empty rows", distance=math.inf)
    else:
        # With a finite number for −inf, the scores of a row without a visible key are equal.
        uniform = replace(CORRECT, fill=-1e9).answer(intent.apply(question), intent.wiring).output
        same = relative_error(asked.answer, Answer(uniform)) < TOLERANCE
        session.add_pass("empty rows", "the mean over hidden keys" if same else "no NaN")


def _extreme_scores(session: CheckSession, intent: Intent) -> None:
    """Check that hidden keys stay hidden where scores are in the hundreds: every query sees one key only."""
    arguments, form = session.subject.arguments, session.subject.mask_form
    plain = session.cases.plain("mask, extreme scores", seed=54, size=extreme_size(session))
    plain = session.with_explicit_mask(plain)
    B, T, S = plain.q.shape[0], plain.q.shape[-2], plain.k.shape[-2]
    visible = torch.arange(S) == 0
    questions = []
    if "mask" in arguments and form.rank != 1:
        questions.append(replace(plain, mask=visible.repeat(T, 1)))
    if "padding" in arguments or form.rank == 1:
        questions.append(replace(plain, padding=visible.repeat(B, 1), name="padding, extreme scores"))
    for question in questions:
        if check_extreme(session, question, intent) is None:
            session.add_pass(question.name)


def _nan_in_padding(session: CheckSession) -> None:
    """Check that NaN in hidden keys and values does not reach the output."""
    subject = session.subject
    question = session.with_explicit_mask(session.cases.padded("NaN in padding", seed=51))
    if question.padding is None or subject.layout in ("TD", "TC"):
        return
    padded = question.padded_keys
    assert padded is not None
    spoiled = question.map_keys(lambda x: x.masked_fill(padded, torch.nan))
    clean, reply = (session.compared.run(q.to(session.dtype)) for q in (question, spoiled))
    if clean.answer is None or reply.answer is None:
        return
    rows, clean_rows = (x.output for x in (reply.answer, clean.answer))
    if question.is_self_attention:  # only the rows of tokens count
        rows, clean_rows = (x.masked_fill(padded, 0.0) for x in (rows, clean_rows))
    if bool(rows.isfinite().all()):
        session.add_pass("NaN in padding", "it reaches no token")
    elif bool(clean_rows.isfinite().all()):
        session.find("nan-in-padding", "NaN in padding", distance=math.inf)


def _bias(session: CheckSession, intent: Intent) -> None:
    """Check that finite numbers in a mask, if the code takes them, are added after the scale."""
    question = session.with_explicit_mask(session.cases.biased(seed=52))
    if session.subject.mask_form.rank == 4 and question.bias is not None and session.module is not None:
        B, T, S = question.q.shape[0], *question.bias.shape
        question = replace(question, bias=question.bias.expand(B, 1, T, S))
    asked = ask(session, question, intent, passed="added after the scale")
    if asked.agrees:
        names = session.subject.arguments
        name = names.get("bias", names.get("mask", ""))
        failure = bias_gradient_failure(session, question, intent)
        if failure == NO_GRADIENT and "bias" not in names:  # few masks are trained, and biases are
            session.add_untried(f"gradient of {name}", failure)
        elif failure:
            session.add_failure(f"gradient of {name}", failure)
        return
    if asked.answer is None or record_wrong(session, asked, intent, "given numbers", "mask-scaled-too"):
        return
    detail = f"with finite numbers in it, the output {describe_difference(asked.error)}"
    if "bias" in session.subject.arguments:  # which says that it is added
        session.add_failure("float mask", detail)
        return
    visible = session.cases.masked(seed=52).mask
    assert question.bias is not None
    assert visible is not None
    bias = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    # Right as a mask that is added, and not as one of 1 and 0.
    if session.compare(replace(question, bias=bias.expand(question.bias.shape)), intent).agrees:
        how = f"0 and −inf in a float mask are taken as added, and {detail}: say if it should add them"
        session.add_untried("float mask", how)
    else:
        session.add_skip("float mask", f"{detail}: they are not simply added to the scores")


def _alignment(session: CheckSession, intent: Intent) -> None:
    """Check a causal mask, and a window with it, with more keys than queries, as a cache needs them.

    The top-left alignment is only a warning, since a function cannot know whether there is a cache, unless
    its own window aligns with the last keys: then the two contradict each other.
    """
    # A kernel may take only multiples of its block, and must still get more keys than queries.
    plain = session.cases.plain("causal, T < S", T=6, S=9 + session.cases.multiple, seed=53)
    T, S = plain.q.shape[-2], plain.k.shape[-2]
    if T == S:  # a kernel that takes one length for both
        return
    given, passed = (
        f"with {T} queries and {S} keys",
        "queries align with the end of the keys, as a cache needs",
    )
    question = replace(plain, flag=True)
    asked = ask(session, question, intent, passed=passed, refused=f"{question.shapes()} raised")
    mistake, contradicts = "" if asked.agrees else "top-left-causal", False
    if asked.answer is not None and session.has_passed("window"):
        n = S - T + 1  # so wide that every query sees a key, wherever the causal mask and the window align
        ahead = 0 if session.compared.window_is_bounded else None
        question = replace(question, name="window, T < S", window=n, ahead=ahead)
        windowed = ask(session, question, intent, passed=passed)
        both = f"{given} in a window of {n}" + ", which aligns with the last keys" * bool(mistake)
        contradicts = not windowed.agrees and record_wrong(session, windowed, intent, both, mistake)
    if not asked.agrees and not contradicts:
        record_wrong(session, asked, intent, given, warning=mistake)


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
    usual = f"its own scale of {own:.3g}" if intent.wiring.scale else "1/√D"
    meanings = {
        f"multiplies the scores, in place of {usual}": _SCALE,
        f"divides the scores, in place of {usual}": 1 / _SCALE,
        f"multiplies the scores, beside {usual}": own * _SCALE,
        f"divides the scores, beside {usual}": own / _SCALE,
        "is a width, by whose root the scores are divided": _SCALE**-0.5,
    }
    for meaning, scale in meanings.items():
        scaled = replace(intent, wiring=replace(intent.wiring, scale=scale))
        if scaled.error(question, reply.answer) < TOLERANCE:
            ask(session, question, scaled, passed=f"`{name}={_SCALE}` gives a scale of {scale:.3g}")
            session.notes.append(f"{name}: {meaning}")
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
            _record_dropped(session, asked, options[kept].argument, options[dropped].argument, same)
            return False
    if not {first, second} & {"causal", "mask", "padding", "window"}:
        order = "both have an effect, and in which order they are applied is a convention"
        session.add_skip(question.name, order)
        return False
    together = f"with `{options[first].argument}` and `{options[second].argument}` together"
    record_wrong(session, asked, intent, together)
    return False


def _record_dropped(
    session: CheckSession, asked: ComparedAnswer, kept: str, dropped: str, same: float
) -> None:
    """Record an option that another one switches off, as a mistake unless the author's text says so."""
    if _says(session, _PRECEDENCE, kept, dropped):
        session.notes.append(f"{dropped} is ignored where {kept} is given, as its text says")
        return
    name, detail, agreement = (
        asked.question.name,
        f"`{kept}` switches `{dropped}` off",
        describe_agreement(same),
    )
    evidence = (
        f"Given `{kept}` and `{dropped}`, your output equals attention with `{kept}` alone, {agreement}."
    )
    session.add_mistake(name, detail, "option-dropped", evidence, same, distance=asked.distance)


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
