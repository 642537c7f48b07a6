"""What speaks for and against softmax attention: its own words, its weights, a bent output.

Code whose numbers no interpretation and no mistake explains may be another mechanism: linear, differential or
gated attention. Its weights are measured: with the scores held fixed, an output is linear in the values, and
the factor of each value is its weight.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.session import CheckSession
from regard.checker.subject.inside import intercept
from regard.checker.subject.subject import CallHook
from regard.support.torch_internals import DisableTorchFunction

_SLACK = 1e-6


def against_softmax(session: CheckSession) -> str:
    """Return what was measured that softmax attention cannot do, as a phrase; "" if nothing was."""
    found = []
    if session.subject.inputs == "qkv" and session.module is None:
        found = _judge_weights(session)
    elif session.module is not None and (heard := intercept(session.subject, session.cases.plain())):
        found = [heard[1].problem] if heard[1].problem else []
    if not found and session.subject.inputs == "x":
        found = _same_tokens(session)
    return ", and ".join(found)


_FORMULA = re.compile(r"scaled[ _-]*dot[ _-]*product|\bsdpa\b|softmax\s*\(\s*q\s*(@|\*|·|k)", re.I)
# A text with one of these words compares the formula with another kind of attention, its own.
_ANOTHER_KIND = re.compile(
    r"linear|kernel|feature|approx|sigmoid|relu|gat(ed?|ing)\b|differen|cosine|local|window|sparse|relative|bias"
    r"|random|rank|nystr|perform|hash|lsh|pool|landmark|latent|sink|talking|conv|variant|instead|without",
    re.I,
)


def declares_softmax(session: CheckSession) -> bool:
    """Return whether the code's name or docstring promises plain scaled dot-product attention."""
    target = session.subject.target
    things = (type(target), type(target).forward) if isinstance(target, nn.Module) else (target,)
    words = " ".join([session.subject.name, *(thing.__doc__ or "" for thing in things)])
    return _FORMULA.search(words) is not None and _ANOTHER_KIND.search(words) is None


def computes_weights(session: CheckSession) -> bool:
    """Return whether the weights of softmax attention appear among the code's intermediate results.

    The numbers are compared in sorted order, so that the order of axes does not matter.
    """
    question = session.cases.plain()
    expected = []
    for intent in session.understanding.intents[:48]:
        with contextlib.suppress(RuntimeError, ValueError, IndexError):  # widths that do not fit
            weights = CORRECT.answer(intent.apply(question), intent.wiring).weights
            expected += [] if weights is None else [weights.detach().flatten().sort().values]
    sizes = {wanted.numel() for wanted in expected}
    for _, result in function_calls(session, question):
        if result is None or result.numel() not in sizes:
            continue
        own = result.double().flatten().sort().values
        if any(own.shape == w.shape and bool((own - w).abs().max() < 1e-6) for w in expected):
            return True
    return False


def function_calls(session: CheckSession, question: Question) -> list[tuple[str, Tensor | None]]:
    """Return which functions of PyTorch the code calls, each with its result; None if that is no numbers."""
    results: list[tuple[str, Tensor | None]] = []

    def keep(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        with DisableTorchFunction():
            numbers = isinstance(result, Tensor) and result.is_floating_point()
            # The code may go on to write into it.
            results.append((name, result.detach().clone() if numbers else None))
        return result

    with CallHook(keep):
        session.subject.run(question.to(session.dtype))
    return results


def watch_scores(session: CheckSession) -> tuple[bool, bool]:
    """Return whether a module forms scores of every query and key, and whether it takes their softmax."""
    question = session.cases.plain()
    T, S = question.q.shape[-2], question.k.shape[-2]
    calls = function_calls(session, question)
    # scaled_dot_product_attention and multi_head_attention_forward keep their scores to themselves.
    fused = any("attention" in name for name, _ in calls)
    sizes = [(name, () if result is None else tuple(result.shape)) for name, result in calls]
    both = [name for name, x in sizes if (x.count(T) >= 2 if T == S else {T, S} <= set(x))]
    return fused or bool(both), fused or any("softmax" in name for name in both)


_BENT = "its output is not linear in the values"
_NEGATIVE = "its weights are as low as"
_NOT_EXPONENTIAL = "the logarithms of its weights do not grow in proportion to the queries"


def excludes_softmax(evidence: str) -> bool:
    """Return whether no softmax of scores, with whatever mistake around it, gives what was measured."""
    return any(words in evidence for words in (_BENT, _NEGATIVE, _NOT_EXPONENTIAL))


def _judge_weights(session: CheckSession) -> list[str]:
    """Return phrases for what a function's weights cannot be if they come from a softmax of q · k."""
    measured = [_function_weights(session, factor) for factor in (1.0, 2.0, 3.0)]
    if any(part is None or not bool(part[0].isfinite().all()) for part in measured):
        return []  # NaN says nothing of the weights
    weights, linear = [part[0] for part in measured if part], all(part[1] for part in measured if part)
    if not linear:
        return [_BENT]
    found = []
    lowest, sums = float(weights[0].min()), weights[0].sum(-1)
    if lowest < -_SLACK:
        found.append(f"{_NEGATIVE} {lowest:.2g}")
    if not float((sums - 1).abs().max()) < 1e-4:
        low, high = float(sums.min()), float(sums.max())
        found.append(f"its rows of weights sum to between {low:.2g} and {high:.2g}, not to 1")
    if lowest >= -_SLACK and not _exponential(weights):
        found.append(_NOT_EXPONENTIAL)
    return found


def _exponential(weights: list[Tensor]) -> bool:
    """Return whether log-weights for 1, 2 and 3 times the queries lie on a line, as q · k + bias does."""
    # The logarithm of a weight near 0 has no digits left.
    visible = torch.stack(weights).amin(0) > 1e-9
    logs = [torch.where(visible, w, 1.0).log() for w in weights]
    # Relative to one visible key of the row, so that the normalisation drops out.
    first = visible.to(torch.int8).argmax(-1, keepdim=True)
    once, twice, thrice = (x - x.gather(-1, first) for x in logs)
    bend = torch.where(visible & visible.any(-1, keepdim=True), thrice - 2 * twice + once, 0.0)
    return float(bend.abs().max()) < 1e-3 * max(1.0, float(thrice.abs().max()))


def _function_weights(session: CheckSession, factor: float) -> tuple[Tensor, bool] | None:
    """Return the weights (B, H, T, S), from values that are unit vectors, and whether it is linear in these.

    `factor` multiplies the queries.
    """
    question = session.cases.plain(T=5, S=5, seed=95).to(session.dtype)
    S, E = question.v.shape[-2:]
    # A unit vector for each key needs as many channels as keys.
    if E < S:
        return None
    units = torch.eye(S, E, dtype=question.dtype).expand_as(question.v).contiguous()
    asked = replace(question, q=factor * question.q)
    replies = [session.subject.run(replace(asked, v=size * units)) for size in (1.0, 2.0)]
    if any(reply.answer is None for reply in replies):
        return None
    once, twice = (reply.answer.output.detach() for reply in replies if reply.answer is not None)
    return once[..., :S], torch.allclose(twice, 2 * once, rtol=1e-4, atol=1e-6)


def _same_tokens(session: CheckSession) -> list[str]:
    """Compare a sequence of equal tokens with one of them: an average of equal values is that value."""
    question = session.cases.plain(B=1, seed=96).to(session.dtype)
    same = question.map_inputs(lambda x: x[..., :1, :].expand_as(x).contiguous())
    one = question.map_inputs(lambda x: x[..., :1, :].contiguous())
    several, alone = session.subject.run(same).answer, session.subject.run(one).answer
    if several is None or alone is None:
        return []
    output, expected = several.output.detach(), alone.output.detach()
    difference = float((output - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not difference > 1e-4:
        return []
    return [f"equal tokens give another output than one of them alone (by {difference:.0%})"]
