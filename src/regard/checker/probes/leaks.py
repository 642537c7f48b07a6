"""Who depends on whom: later tokens, other items of the batch, padding. None of this needs an oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession


def probe_causality(exam: CheckSession) -> None:
    """No output moves, and no gradient flows, from a later token."""
    subject = exam.subject
    flagged = "causal" in subject.arguments and exam.options.get("causal") is None
    expected = flagged or exam.options.get("causal") or exam.understood.causal
    if not expected or subject.takes == "context":
        return
    question = exam.cases.plain("causality", seed=40)
    question = replace(question, flag=True) if flagged else question
    leak = leaks(exam, question)
    if leak is None:
        exam.left_out("causality", "it did not run, or its output is not finite")
    elif leak:
        exam.failed("causality", f"output {leak[0]} depends on token {leak[1]} ({leak[2]})")
    else:
        exam.passed("causality", "no output moves, and no gradient flows, from a later token")


def leaks(exam: CheckSession, question: Question) -> tuple[int, int, str] | tuple[()] | None:
    """The first output that depends on a later token: its position, the token's, and how it was seen."""
    question = question.to(exam.understood.dtype)
    T = question.q.shape[-2]
    if T < 2:
        return None
    asked = question.mapped(lambda x: x.clone().requires_grad_())
    reply = exam.subject.ask(asked)
    if reply.answer is None or not bool(reply.answer.output.isfinite().all()):
        return None
    output = reply.answer.output
    for at in range(T - 1):
        again = exam.subject.ask(question.mapped(partial(_moved, start=at + 1)))
        if again.answer is None:
            return None
        before, after = _rows(output, at), _rows(again.answer.output, at)
        if not torch.allclose(before, after, rtol=1e-6, atol=1e-7):
            return _position(before, after), at + 1, "its value moves"
        if output.requires_grad:
            inputs = list({id(x): x for x in (asked.q, asked.k, asked.v)}.values())
            gradients = torch.autograd.grad(before.sum(), inputs, retain_graph=True, allow_unused=True)
            if any(g is not None and float(g[..., at + 1 :, :].abs().max()) > 1e-12 for g in gradients):
                return at, at + 1, "a gradient flows"
    return ()


def _moved(x: Tensor, start: int) -> Tensor:
    moved = x.clone()
    moved[..., start:, :] = moved[..., start:, :] * -1.5 + 1.0
    return moved


def _rows(output: Tensor, at: int) -> Tensor:
    return output[..., : at + 1, :]


def _position(before: Tensor, after: Tensor) -> int:
    return int((before - after).abs().amax(-1).flatten(0, -2).amax(0).gt(1e-7).nonzero()[0])


def probe_batch(exam: CheckSession) -> None:
    """An item's output must be the same whoever stands beside it."""
    if exam.subject.form in ("TD", "TC"):
        exam.left_out("batch", "it takes one sequence at a time")
        return
    question = exam.cases.plain("batch", B=3, seed=41).to(exam.understood.dtype)
    together = exam.subject.ask(question)
    if together.answer is None:
        exam.failed("batch", f"a batch of 3 raised {together.trouble}")
        return
    worst = 0.0
    for item in range(3):
        alone = exam.subject.ask(question.mapped(partial(torch.narrow, dim=0, start=item, length=1)))
        if alone.answer is None:
            exam.failed("batch", f"one item alone raised {alone.trouble}")
            return
        mine, single = together.answer.output[item], alone.answer.output[0]
        if bool((mine.isfinite() != single.isfinite()).any()):
            worst = float("inf")
        else:
            worst = max(worst, float((mine - single).nan_to_num().abs().max()))
    if worst < 1e-4:
        exam.passed("batch", "items do not depend on each other")
    else:
        moved = "becomes NaN" if worst == float("inf") else f"moves by {worst:.2g}"
        exam.mixed = f"The output of one sequence {moved} when others join its batch."
        exam.failed("batch", exam.mixed)
