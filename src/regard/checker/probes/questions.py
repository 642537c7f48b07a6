"""The questions about the output: sizes, the options that the code and its reference take, kernels' own.

Kernels are asked about lengths that differ, pages, split keys, sink logits, wide windows and many blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.oracle import TOLERANCE, Observation
from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.call_tensors import SEQUENCES
from regard.checker.subject.source import block_sizes
from regard.checker.subject.vocabulary import arguments_of


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
    if subject.layout not in SEQUENCES and subject.head_width is None and attends:
        optional.append(cases.plain("wide heads", B=1, H=2, T=5, D=128, seed=17))
    kernels = kernel_questions(session, flag)
    if reference is not None:
        theirs = {question.name for question in kernel_questions(reference.session, flag)}
        kernels = [question for question in kernels if question.name in theirs]
    needed += kernels
    if "sinks" in names and session.module is None:
        grouped = cases.plain("sink logits, grouped heads", G=2, seed=61)
        optional.append(replace(grouped, sinks=_sink_logits(4), **flag))
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
    rows = {
        "scale": replace(cases.plain("scale", seed=13), scale=0.2),
        "mask": cases.masked(seed=11),
        "padding": cases.padded(seed=12),
        "bias": cases.biased(seed=14),
    }
    yield from (question for name, question in rows.items() if name in names)


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
        aligned = replace(cases.plain("causal, T < S", T=3, S=7, seed=15), **flag)
        yield aligned
        if "window" in names and "window" not in cases.always:
            yield replace(aligned, name="window, T < S", window=5)
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


# Neither sorted nor equal on both sides: lengths in another order, or of the other side, show.
_LENGTHS = ((5, 3, 6), (7, 3, 11))  # queries and keys of three items
_TOLD = {"lengths", "query starts", "key starts"}  # arguments that tell a kernel the lengths


def kernel_questions(session: CheckSession, flag: dict[str, Any]) -> list[Question]:
    """Return the questions that a kernel with these arguments must answer.

    `flag` is {"flag": True} if it has a causal argument.
    """
    if session.module is not None or session.subject.inputs != "qkv":
        return []
    questions = [*_ragged(session, flag), *_options(session, flag)]
    kernel = session.subject.kernel_layout
    if kernel is not None and kernel.kind == "mask interface":  # it is told where the queries start
        questions.append(replace(session.cases.plain("causal, T < S", T=3, S=7, seed=67), flag=True))
    if asks_many_tokens(session):
        # 150 tokens hold two whole blocks of up to 70 and a part of a third.
        name = "several blocks" if 0 < largest_block(session) <= 70 else "150 tokens"
        questions.append(replace(session.cases.plain(name, B=1, H=1, T=150, D=16, seed=60), **flag))
    return questions


def asks_many_tokens(session: CheckSession) -> bool:
    """Return whether 150 tokens are among the questions about the output: of kernels, and code with blocks.

    Any other code may have a window, or another scale, from some length on; `long_text` asks it.
    """
    kernel, is_split = session.subject.kernel_layout, session.subject.layout in ("BHTD", "BTHD")
    works_in_blocks = 0 < largest_block(session) <= 70 if kernel is None else not kernel.makes_mask
    return session.module is None and is_split and works_in_blocks


def largest_block(session: CheckSession) -> int:
    """Return the largest size of blocks that the code names; 0 if it names none."""
    return max(block_sizes(session.subject), default=0)


def _sink_logits(H: int) -> torch.Tensor:
    return torch.randn(H, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def _ragged(session: CheckSession, flag: dict[str, Any]) -> list[Question]:
    """Return questions whose items have lengths of their own."""
    kernel, cases = session.subject.kernel_layout, session.cases
    if kernel is None or not kernel.ragged:
        return []
    if not kernel.names.keys() & _TOLD:
        session.add_skip("lengths that differ", "none of its arguments is known to hold the lengths")
        return []
    # A kernel may take only multiples of its block.
    queries, keys = (tuple(-(-n // cases.multiple) * cases.multiple for n in side) for side in _LENGTHS)
    if kernel.square or not kernel.ragged_queries:
        queries = keys if kernel.square else (1 if kernel.one_query else min(keys),) * len(keys)
    plain = cases.plain("lengths that differ", B=len(keys), T=max(queries), S=max(keys), seed=62)
    questions = [replace(plain, lengths=(queries, keys))]
    if flag:
        questions.append(replace(questions[0], **flag))
    if kernel.kind == "paged or not":
        contiguous = cases.plain("without pages", B=3, T=max(queries), S=max(keys), seed=63)
        questions.append(replace(contiguous, page=None))
        # A kernel may use the cap in one of the two ways only.
        if "softcap" in session.subject.arguments:
            questions.append(replace(contiguous, page=None, softcap=2.0, name="softcap, without pages"))
    return questions


def _options(session: CheckSession, flag: dict[str, Any]) -> list[Question]:
    """Return questions about options that only kernels have."""
    arguments, cases = session.subject.arguments, session.cases
    questions = []
    if "splits" in arguments:
        questions.append(replace(cases.plain("split keys", T=5, S=11, seed=64), splits=3))
    if "sinks" in arguments:
        questions.append(replace(cases.plain("sink logits", seed=65), sinks=_sink_logits(4), **flag))
    # Where the default is causal, (4, 0), the interpretation is causal too, and a right side is not in it.
    pair = session.subject.takes_window_pair and not session.subject.window_is_bounded
    if pair or "right window" in arguments:
        sides = cases.plain("window to both sides", T=9, seed=66)
        questions.append(replace(sides, window=3, ahead=2, flag=False if flag else None))
    return questions


def lengths_convention(
    session: CheckSession, observations: list[Observation], wrong: dict[str, float]
) -> str:
    """Return a sentence if a kernel on a cache is right under another convention of its lengths; else ""."""
    kernel = session.subject.kernel_layout
    if kernel is None or "lengths" not in kernel.names or wrong.keys() != {"lengths that differ"}:
        return ""
    name = kernel.names["lengths"]
    ragged = [_one_query(o.question) for o in observations if o.question.name in wrong]

    def before_the_new(question: Question) -> Question:
        queries, keys = question.all_lengths()
        return replace(question, lengths=(queries, tuple(n - 1 for n in keys)))

    def at_the_end(question: Question) -> Question:
        lengths = question.all_lengths()[1]

        def move(x: Tensor) -> Tensor:
            return torch.stack([item.roll(x.shape[-2] - n, -2) for item, n in zip(x, lengths, strict=True)])

        return replace(question, k=move(question.k), v=move(question.v))

    conventions = (
        (before_the_new, f"`{name}` counts the keys before the new one", f"subtracts this from `{name}`"),
        (at_the_end, "the keys of a text are the last ones of its cache", "moves them there"),
    )
    for convention, meaning, change in conventions:
        # The right answers are those of the questions as they were.
        asked = [session.compared.run(convention(question).to(session.dtype)) for question in ragged]
        answers = [
            Observation(q, r.answer) for q, r in zip(ragged, asked, strict=True) if r.answer is not None
        ]
        if len(answers) == len(ragged) and all(session.error(answer) < TOLERANCE for answer in answers):
            return f"it is right if {meaning}, which only you know: if so, check a function that {change}"
    return ""


def _one_query(question: Question) -> Question:
    """Return a question on lengths that differ for the last query of every item alone."""
    queries, keys = question.all_lengths()
    last = torch.stack([item[..., n - 1 : n, :] for item, n in zip(question.q, queries, strict=True)])
    return replace(question, q=last, lengths=((1,) * len(keys), keys))
