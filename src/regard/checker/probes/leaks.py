"""Leaks: outputs that depend on later tokens or on other items of the batch. No oracle is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checker.interpretation.cases import described_causality
from regard.checker.oracle.question import Question
from regard.checker.probes.behaviour import change_part, name_visibility
from regard.checker.probes.gradients import run_backward
from regard.checker.session import CheckSession
from regard.checker.subject.source import source_of
from regard.checker.subject.subject import Subject


def probe_causality(session: CheckSession) -> None:
    """Check that no output depends on a later token, by changing tokens and by gradients.

    A docstring that says otherwise than the output leaves the verdict to the caller.
    """
    subject, understanding = session.subject, session.understanding
    stated = session.options.get("causal") is not None or understanding.declared_causal is not None
    described = None if stated else described_causality(subject)
    if described is not None and session.right_intent is not None and understanding.causal != described:
        says, shows = ("causal", "not causal") if described else ("not causal", "causal")
        session.leave_open("docstring-of-another-causality", says=says, shows=shows)
        return
    flagged = "causal" in subject.arguments and session.options.get("causal") is None
    expected = flagged or session.options.get("causal") or session.understanding.causal
    one_query = subject.kernel_layout is not None and subject.kernel_layout.one_query
    question = session.cases.plain("causality", seed=40)
    question = replace(question, flag=True) if flagged else question
    reference = session.reference
    if reference is not None and subject.inputs != "context":
        expected = find_leak(reference.session, question) == ()
        if expected:
            understanding.declared_causal = question.flag is None or bool(session.options.get("causal"))
    if not expected or subject.inputs == "context" or one_query:
        return
    leak = find_leak(session, question)
    if leak is None:
        session.add_skip("causality", "it did not run, or its output is not finite")
    elif leak and described and not flagged:
        session.add_untried(
            "causality",
            f"its docstring says causal, and output {leak[0]} depends on token {leak[1]}: pass causal=True "
            "or --causal if it should not",
        )
    elif leak:
        session.add_failure("causality", f"output {leak[0]} depends on token {leak[1]} ({leak[2]})")
        if reference is not None and not session.mixed:
            name_visibility(session, reference, question)
    else:
        session.add_pass("causality", "no output depends on a later token")


def find_leak(session: CheckSession, question: Question) -> tuple[int, int, str] | tuple[()] | None:
    """Find the first output that depends on a later token.

    Returns its position, the token's and how the dependence shows; () if there is none; None if the code
    failed or its output is not finite.
    """
    question = question.to(session.dtype)
    T = question.q.shape[-2]
    if T < 2:
        return None
    tracked = question.map_inputs(lambda x: x.clone().requires_grad_())
    reply = session.subject.run(tracked)
    if reply.answer is None:  # it has no backward pass
        reply = session.subject.run(question)
    if reply.answer is None or not bool(reply.answer.output.isfinite().all()):
        return None
    output = reply.answer.output
    # A backward pass that fails is for the probe of gradients to report.
    differentiable = output.requires_grad and not any(run_backward(session, question))
    for row in range(T - 1):
        # Change all later tokens: no row up to this one may change.
        later = partial(change_part, axis=-2, part=slice(row + 1, None))
        changed = session.subject.run(question.map_inputs(later))
        if changed.answer is None:
            return None
        before, after = output[..., : row + 1, :], changed.answer.output[..., : row + 1, :]
        if not torch.allclose(before, after, rtol=1e-6, atol=1e-7):
            rows = (before - after).abs().amax(-1).flatten(0, -2).amax(0) > 1e-7
            return int(rows.nonzero()[0]), row + 1, "its value changes"
        # The gradient of these rows by all later tokens must be 0.
        if differentiable:
            inputs = tracked.leaves()
            try:
                gradients = torch.autograd.grad(before.sum(), inputs, retain_graph=True, allow_unused=True)
            except Exception:  # its backward pass runs once for each forward pass
                differentiable = False
                continue
            if any(g is not None and float(g[..., row + 1 :, :].abs().max()) > 1e-12 for g in gradients):
                return row, row + 1, "a gradient flows"
    return ()


# A batch that comes first by its name: `B, T, C = x.shape`.
_BATCH_FIRST = re.compile(
    r"\b(B|b|bs|bsz|bz|batch|batch_size)\s*(,\s*\*?\w+\s*){1,3}=\s*\w+\.(shape|size\(\))"
)


def has_another_batch_axis(subject: Subject, width: int, dtype: torch.dtype) -> bool:
    """Return whether another axis than the first, and not the last, holds independent items.

    fair-esm's RowSelfAttention takes (rows, columns, batch, C) and shares weights between rows.
    """
    if subject.inputs != "x" or subject.layout not in ("BTC", "BHWC") or subject.module is None:
        return False
    if _BATCH_FIRST.search(source_of(subject)):
        return False
    module = subject.module_as(dtype)
    assert module is not None
    draw = torch.Generator().manual_seed(42)
    sizes = (5, 4, 3, width) if subject.layout == "BHWC" else (5, 3, width)
    x = torch.randn(sizes, generator=draw, dtype=torch.float64).to(dtype)

    def run(x: Tensor) -> Tensor | None:
        try:
            with torch.no_grad():
                result = module(x, **subject.extra)
        except Exception:  # it does not take these sizes
            return None
        output = result[0] if isinstance(result, tuple | list) else result
        return output if isinstance(output, Tensor) and output.shape == x.shape else None

    together = run(x)
    if together is None:
        return False
    for axis in range(1, x.ndim - 1):
        alone = [run(x.narrow(axis, i, 1)) for i in range(x.shape[axis])]
        parts = [part for part in alone if part is not None]
        if len(parts) == len(alone) and torch.allclose(
            torch.cat(parts, axis), together, rtol=1e-6, atol=1e-7
        ):
            return True
    return False


_TOKENS = r"(?:T|L|S|t|l|s|seq\w*|tgt_len|src_len|time\w*|tokens?|length)"
_ITEMS = r"(?:B|N|b|n|bsz?|batch\w*)"
_TOKENS_FIRST = re.compile(rf"[(\[]\s*{_TOKENS}\s*[,x×]\s*{_ITEMS}\s*[,x×][^)\]]*[)\]]")
_ITEMS_FIRST = re.compile(rf"[(\[]\s*{_ITEMS}\s*[,x×]\s*{_TOKENS}\s*[,x×][^)\]]*[)\]]")


def _contradicting_shape(subject: Subject) -> str:
    """Return a shape in the docstrings with another order than the code's, "(seq_len, batch, dim)", or "".

    Those of PyTorch's `nn.MultiheadAttention` have both orders, for both values of `batch_first`.
    """
    kind: Any = type(subject.module)
    words = " ".join(thing.__doc__ or "" for thing in (kind, kind.__init__, kind.forward))
    tokens, items = _TOKENS_FIRST.search(words), _ITEMS_FIRST.search(words)
    found = tokens if subject.layout == "BTC" else items
    return found.group() if found and not (tokens and items) else ""


def probe_batch(session: CheckSession) -> None:
    """Check that an item's output does not depend on the other items of the batch.

    A docstring that names another axis as the batch leaves the verdict to the caller.
    """
    is_sequence = session.subject.layout in ("BTC", "TBC") and session.module is not None
    if is_sequence and (shape := _contradicting_shape(session.subject)):
        axis = "second" if session.subject.layout == "BTC" else "first"
        session.leave_open("docstring-of-another-shape", shape=shape, axis=axis)
        return
    if session.subject.layout in ("TD", "TC"):
        session.add_skip("batch", "it takes one sequence at a time")
        return
    if (reference := session.reference) is not None:
        probe_batch(reference.session)
        if reference.session.mixed:
            session.add_skip("batch", f"the items of a batch depend on each other in {reference.name} too")
            return
    question = session.cases.plain("batch", B=3, seed=41).to(session.dtype)
    together = session.subject.run(question)
    if together.answer is None:
        record = session.add_skip if together.is_refusal else session.add_failure
        record("batch", f"a batch of 3 raised {together.error_line}")
        return
    worst = 0.0
    for item, sequence in enumerate(question.items()):
        alone = session.subject.run(sequence)
        if alone.answer is None:
            session.add_failure("batch", f"one item alone raised {alone.error_line}")
            return
        batched, single = together.answer.output[item], alone.answer.output[0]
        if bool((batched.isfinite() != single.isfinite()).any()):
            worst = float("inf")
        else:
            worst = max(worst, float((batched - single).nan_to_num().abs().max()))
    # BLAS may sum in another order for another batch size, which shows where the code needs float32.
    if worst < 1e-4:
        session.add_pass("batch", "items do not depend on each other")
    elif has_another_batch_axis(session.subject, session.cases.width, session.dtype):
        session.leave_open("another-batch-axis")
    else:
        change = "becomes NaN" if worst == float("inf") else f"changes by {worst:.2g}"
        session.mixed = f"The output of one sequence {change} when others join its batch."
        session.add_failure("batch", session.mixed)
