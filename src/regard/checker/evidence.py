"""What speaks against softmax attention: weights below 0, rows that do not sum to 1, a bent output.

Code whose numbers no interpretation and no mistake explains may be another mechanism: linear, differential or
gated attention. Its weights are measured: with the scores held fixed, an output is linear in the values, and
the factor of each value is its weight.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.session import CheckSession
from regard.checker.subject.observe import ObservedSubject

_SLACK = 1e-6


def against_softmax(session: CheckSession) -> str:
    """Return what was measured that softmax attention cannot do, as a phrase; "" if nothing was."""
    observed = session.understanding.observed
    compared = session.compared if observed is None else observed.compared
    if isinstance(compared, ObservedSubject):
        found = _judge(*_observed_weights(session, compared))
    elif session.subject.inputs == "qkv" and session.module is None:
        found = _judge(*_function_weights(session))
    else:
        found = []
    if not found and session.subject.inputs == "x":
        found = _same_tokens(session)
    return ", and ".join(found)


def _judge(weights: Tensor | None, linear: bool) -> list[str]:
    """Return phrases for what weights (…, T, S) cannot be if they come from a softmax."""
    found = []
    if not linear:
        found.append("its output is not linear in the values")
    elif weights is not None and bool(weights.isfinite().all()):
        lowest, sums = float(weights.min()), weights.sum(-1)
        if lowest < -_SLACK:
            found.append(f"its weights are as low as {lowest:.2g}")
        if float((sums - 1).abs().max()) > 1e-4:
            low, high = float(sums.min()), float(sums.max())
            found.append(f"its rows of weights sum to between {low:.2g} and {high:.2g}, not to 1")
    return found


def _observed_weights(session: CheckSession, subject: ObservedSubject) -> tuple[Tensor | None, bool]:
    """Return the weights (channels, T, S) of a module whose values are changed token by token."""
    question = session.cases.plain(B=1, seed=95).to(session.dtype)
    try:
        base = subject.merged_with_values(question, None, 0.0)
        columns = [subject.merged_with_values(question, s, 1.0) - base for s in range(question.k.shape[-2])]
        twice = subject.merged_with_values(question, 0, 2.0) - base
    except RuntimeError:
        return None, True
    linear = torch.allclose(twice, 2 * columns[0], rtol=1e-4, atol=1e-5 * float(base.abs().max()))
    return torch.stack(columns, -1).transpose(0, 1), linear  # from (T, channels, S)


def _function_weights(session: CheckSession) -> tuple[Tensor | None, bool]:
    """Return the weights (B, H, T, S) of a function: values that are unit vectors give them directly."""
    question = session.cases.plain(T=5, S=5, seed=95).to(session.dtype)
    S, E = question.v.shape[-2:]
    if E < S:
        return None, True
    units = torch.eye(S, E, dtype=question.dtype).expand_as(question.v).contiguous()
    replies = [session.subject.run(replace(question, v=factor * units)) for factor in (1.0, 2.0)]
    if any(reply.answer is None for reply in replies):
        return None, True
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
