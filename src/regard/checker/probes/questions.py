"""The questions about the output: sizes, and the options that the code takes, and its reference if any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from regard.checker.oracle.question import Question
from regard.checker.probes.kernels import kernel_questions, optional_kernel_questions
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.call_tensors import arguments_of
from regard.checker.subject.subject import SEQUENCES


def output_questions(session: CheckSession) -> tuple[list[Question], list[Question]]:
    """Return the questions that the code must answer, and those that it may refuse."""
    cases, subject, names = session.cases, session.compared, session.arguments
    kernel, reference, causal = subject.kernel_layout, session.reference, session.options.get("causal")
    right = session.understanding.right_intent
    # The positions of queries beside keys of another number are a convention.
    positions = right is not None and (right.causal or right.wiring.rotate is not None)
    single_length = subject.inputs == "x" or positions
    # A scale or a mask of one constant size is right in one of two sizes only.
    needed = [cases.plain(), cases.plain(B=3, T=5, D=6, H=2, seed=3)]
    optional: list[Question] = []
    if "causal" in names and causal is None:
        needed.append(replace(cases.plain("causal", seed=4), flag=True))
    flag: dict[str, Any] = {"flag": True} if "causal" in names and causal is not False else {}
    if "window" in names and "window" not in cases.always:
        ahead = 0 if subject.window_is_bounded else None
        needed.append(replace(cases.plain("window", seed=6), window=3, ahead=ahead, **flag))
    if "softcap" in names and session.module is None and "softcap" not in cases.always:
        needed.append(replace(cases.plain("softcap", seed=7), softcap=2.0, **flag))
    attends = kernel is None or not kernel.makes_mask
    if subject.layout in ("BHTD", "BTHD") and attends:
        optional.append(cases.plain("grouped heads", G=2, seed=8))
        optional.append(cases.plain("many heads", B=1, H=9, seed=16))
    kernels = kernel_questions(session, flag)
    if reference is not None:
        theirs = {question.name for question in kernel_questions(reference.session, flag)}
        kernels = [question for question in kernels if question.name in theirs]
    needed += kernels
    optional += optional_kernel_questions(session, flag) if "sinks" in names else []
    if not single_length and (kernel is None or not kernel.square):
        optional.append(cases.plain("cross-attention", T=4, S=7, seed=9))
    if subject.inputs == "qkv" and subject.layout not in SEQUENCES and attends:
        optional.append(cases.plain("value width", E=13, seed=10))
    # Kernels are asked about 150 tokens instead: see `kernel_questions`.
    if reference is None and cases.fixed_length is None and kernel is None:
        optional.append(cases.longer())
    elif reference is not None:
        needed += _options_of_both(session, flag)
        optional += _refusable_options(session, reference, flag)
    return needed, optional


def _options_of_both(session: CheckSession, flag: dict[str, Any]) -> Iterator[Question]:
    """Yield further sizes, and the options whose meaning a reference settles, so that they must agree."""
    cases, names = session.cases, session.arguments
    yield cases.plain(B=1, T=1, seed=2)
    yield cases.plain(B=1, T=16, H=3, D=32, seed=1)
    if cases.max_length is None:
        yield cases.plain(B=2, T=65, H=1, D=16, seed=5)
    if "window" in names and "window" not in cases.always:
        yield replace(cases.plain("window", seed=6), window=1, **flag)
    if "scale" in names:
        yield replace(cases.plain("scale", seed=13), scale=0.2)
    if "mask" in names:
        yield cases.masked(seed=11)
    if "padding" in names:
        yield cases.padded(seed=12)
    if "bias" in names:
        yield cases.biased(seed=14)


def _refusable_options(
    session: CheckSession, reference: Reference, flag: dict[str, Any]
) -> Iterator[Question]:
    """Yield the options that the code may refuse though the reference takes them."""
    cases, names = session.cases, session.arguments
    if "mask" in names:
        question = cases.masked("empty rows", seed=50)
        assert question.mask is not None
        mask = question.mask.clone()
        mask[1] = False
        yield replace(question, mask=mask)
        # Without a batch axis there is no item to be padded.
        if "padding" not in names and session.subject.layout not in ("TD", "TC"):
            yield cases.padded(seed=12)
    if flag and session.subject.inputs != "x":
        yield replace(cases.plain("causal, T < S", T=3, S=7, seed=15), **flag)
    # Every switch and every number whose name and default both signatures share.
    own, theirs = (arguments_of(s.subject.target) for s in (session, reference.session))
    known = {*session.subject.arguments.values(), *session.subject.init}
    for name, parameter in own.items():
        default = parameter.default
        if name in known or name not in theirs or theirs[name].default != default:
            continue
        # NaN as a default is unequal to itself, and no other number comes of it.
        if isinstance(default, bool | float) and default == default:
            # Between 0 and 1 where the default is, as rates must be, and never the default itself.
            value = (
                not default if isinstance(default, bool) else default / 2 + (0.25 if default != 0.5 else 0)
            )
            yield replace(cases.plain(f"{name}={value:g}", seed=16), extra={name: value})
