"""Questions for kernels: lengths that differ, pages, split keys, sink logits, wide windows, many blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession
from regard.checker.subject.construction.source import block_sizes

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


def optional_kernel_questions(session: CheckSession, flag: dict[str, Any]) -> list[Question]:
    """Return the questions that a kernel may refuse: sink logits of grouped heads."""
    if session.module is not None or "sinks" not in session.subject.arguments:
        return []
    grouped = session.cases.plain("sink logits, grouped heads", G=2, seed=61)
    return [replace(grouped, sinks=_sink_logits(4), **flag)]


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
