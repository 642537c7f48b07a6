"""Edge cases of masks: empty rows, extreme scores, NaN in hidden keys, finite numbers added, T ≠ S."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from regard.checker.oracle.oracle import TOLERANCE, Intent, describe_difference, relative_error
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.answers import ask, record_wrong
from regard.checker.probes.gradients import NO_GRADIENT, bias_gradient_failure
from regard.checker.probes.numbers import check_extreme, extreme_size
from regard.checker.session import CheckSession


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
    clean, reply = (
        session.compared.run(q.to(session.dtype)) for q in (question, _with_nan_padding(question))
    )
    if clean.answer is None or reply.answer is None:
        return
    rows, clean_rows = (x.output for x in (reply.answer, clean.answer))
    if question.is_self_attention:  # only the rows of tokens count
        padded = question.padded_keys
        assert padded is not None
        rows, clean_rows = (x.masked_fill(padded, 0.0) for x in (rows, clean_rows))
    if bool(rows.isfinite().all()):
        session.add_pass("NaN in padding", "it reaches no token")
    elif bool(clean_rows.isfinite().all()):
        session.find("nan-in-padding", "NaN in padding", distance=math.inf)


def _with_nan_padding(question: Question) -> Question:
    """Return the question with NaN in its padded positions."""
    padded = question.padded_keys
    assert padded is not None

    def spoil(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(padded, torch.nan)

    if question.is_self_attention:
        return question.map_inputs(spoil)
    v = spoil(question.v)
    return replace(question, k=v if question.k is question.v else spoil(question.k), v=v)


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
    """Check a causal mask with more keys than queries, as a cache needs it.

    The top-left alignment is only a warning, since a function cannot know whether there is a cache.
    """
    question = replace(session.cases.plain("causal, T < S", T=3, S=7, seed=53), flag=True)
    passed = "queries align with the end of the keys, as a cache needs"
    asked = ask(session, question, intent, passed=passed, refused=f"{question.shapes()} raised")
    if not asked.agrees:
        record_wrong(session, asked, intent, "with 3 queries and 7 keys", warning="top-left-causal")
