"""The edges of a mask: rows that may look at nothing, NaN where nobody looks, finite numbers added, T ≠ S."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.checker.catalogue import mistake
from regard.checker.oracle.oracle import apart, truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT, Answer, AttentionVariant
from regard.checker.probes.output import brought
from regard.checker.session import CheckSession
from regard.checker.understand import TOLERANCE, Intent


def probe_masking(exam: CheckSession) -> None:
    """What only shows at the edges; most of it PyTorch does too, and then it is a caution."""
    intent = exam.right
    if intent is None:
        return
    if "mask" in exam.subject.arguments or "padding" in exam.subject.arguments:
        _empty_rows(exam, intent)
        _strange_padding(exam)
    if "mask" in exam.subject.arguments or "bias" in exam.subject.arguments:
        _bias(exam, intent)
    if "causal" in exam.subject.arguments and exam.module is None and exam.options.get("causal") is not False:
        _alignment(exam, intent)


def _empty_rows(exam: CheckSession, intent: Intent) -> None:
    if "mask" not in exam.subject.arguments:
        return
    question = brought(exam, exam.cases.masked("empty rows", seed=50))
    assert question.mask is not None
    mask = question.mask.clone()
    mask[1] = False
    question = replace(question, mask=mask)
    reply = exam.subject.ask(question.to(exam.understood.dtype))
    if reply.answer is None:
        exam.left_out("empty rows", f"a query that may look at nothing raised {reply.trouble}")
        return
    expected = truth(intent.read(question), intent.wiring)
    error = apart(reply.answer, expected)
    assert expected.free is not None
    rows = reply.answer.output[expected.free.expand_as(reply.answer.output)]
    if not error < TOLERANCE:
        exam.failed("empty rows", f"one row that may look at nothing moves the others by {error:.1g}")
    elif bool(rows.isnan().any()):
        exam.found("empty rows", "NaN", "empty-row-nan", "A query that may look at nothing gives NaN.")
    else:
        uniform = replace(RIGHT, fill=-1e9).answer(intent.read(question), intent.wiring).output
        same = apart(reply.answer, Answer(uniform)) < TOLERANCE
        exam.passed("empty rows", "a uniform mean of what may not be seen" if same else "no NaN")


def _strange_padding(exam: CheckSession) -> None:
    """NaN in a key and value that nobody may look at must not reach the output."""
    subject = exam.subject
    question = brought(exam, exam.cases.padded("NaN in padding", seed=51))
    if question.padding is None or subject.form in ("TD", "TC"):
        return
    spoiled = _spoiled(question)
    calm, reply = (subject.ask(q.to(exam.understood.dtype)) for q in (question, spoiled))
    if calm.answer is None or reply.answer is None:
        return
    real = question.padding if question.own else torch.ones(question.q.shape[0], question.q.shape[-2]).bool()
    heads = real[:, None, :, None] if question.q.ndim == 4 else real[:, :, None]
    rows = reply.answer.output[heads.expand_as(reply.answer.output)]
    if bool(rows.isfinite().all()):
        exam.passed("NaN in padding", "it reaches no real token")
    elif bool(calm.answer.output[heads.expand_as(calm.answer.output)].isfinite().all()):
        exam.found(
            "NaN in padding",
            "it reaches real tokens",
            "nan-in-padding",
            "NaN in a padded position, which nobody may look at, makes real tokens' outputs NaN.",
        )


def _spoiled(question: Question) -> Question:
    assert question.padding is not None
    hidden = ~question.padding
    where = hidden[:, None, :, None] if question.k.ndim == 4 else hidden[:, :, None]

    def spoil(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(where.expand_as(x), torch.nan)

    if question.own:
        return question.mapped(spoil)
    v = spoil(question.v)
    return replace(question, k=v if question.k is question.v else spoil(question.k), v=v)


def _bias(exam: CheckSession, intent: Intent) -> None:
    """Finite numbers added to the scores: code that takes them must add them after the scale."""
    question = brought(exam, exam.cases.biased(seed=52))
    if exam.subject.mask_form.rank == 4 and question.bias is not None and exam.module is not None:
        B, T, S = question.q.shape[0], *question.bias.shape
        question = replace(question, bias=question.bias.expand(B, 1, T, S))
    reply = exam.subject.ask(_typed(question, exam.understood.dtype))
    if reply.answer is None:
        return
    asked = intent.read(question)
    if apart(reply.answer, RIGHT.answer(asked, intent.wiring)) < TOLERANCE:
        exam.passed("float mask", "added after the scale")
        return
    scaled: AttentionVariant = replace(RIGHT, masking="scaled")
    left = apart(reply.answer, scaled.answer(asked, intent.wiring))
    if left < TOLERANCE:
        what = mistake("mask-scaled-too").what
        exam.found(
            "float mask",
            "scaled with the scores",
            "mask-scaled-too",
            f"Your output equals attention {what}, to {max(left, 1e-16):.0e}.",
            left,
        )


def _typed(question: Question, dtype: torch.dtype) -> Question:
    question = question.to(dtype)
    return replace(question, bias=None if question.bias is None else question.bias.to(dtype))


def _alignment(exam: CheckSession, intent: Intent) -> None:
    """More keys than queries and a causal mask: a function cannot know of a cache, so this is a caution."""
    question = replace(exam.cases.plain("causal, T < S", T=3, S=7, seed=53), flag=True)
    reply = exam.subject.ask(question.to(exam.understood.dtype))
    if reply.answer is None:
        exam.left_out("causal, T < S", f"{question.shapes()} raised {reply.trouble}")
        return
    asked = intent.read(question)
    if apart(reply.answer, truth(asked, intent.wiring)) < TOLERANCE:
        exam.passed("causal, T < S", "queries stand at the end of the keys, as with a cache")
        return
    for name in ("top-left-causal", "square-mask-sliced-by-columns"):
        recipe = replace(RIGHT, **mistake(name).changes[0])
        left = apart(reply.answer, recipe.answer(asked, intent.wiring))
        if left < TOLERANCE:
            exam.found(
                "causal, T < S",
                "not what a cache needs",
                name,
                f"With 3 queries and 7 keys your output equals attention {mistake(name).what}, to "
                f"{left:.0e}.",
                left,
                caution=name == "top-left-causal",
            )
            return
    exam.failed(
        "causal, T < S",
        f"3 queries and 7 keys: off by {apart(reply.answer, truth(asked, intent.wiring)):.1g}",
    )
