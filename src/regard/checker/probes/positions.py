"""Positions: rotary ones that have no effect, and biases by distance with other slopes than ALiBi's.

A rotation by one angle for all queries and keys of a head cancels in their products, so the output alone is
that of attention without positions. Cosines that are a little wrong do not cancel: that shows their use.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.attention.masks.named_masks import alibi_slopes
from regard.checker.interpretation.intent import TOLERANCE, Intent
from regard.checker.oracle.oracle import relative_difference
from regard.checker.session import CheckSession
from regard.checker.subject.call_tensors import copy_module
from regard.checker.subject.roles_of_parts.observe import ObservedWiring

_TABLE = re.compile(r"(^|_)(cos|cosine|freqs?|freqs_cis|rope|rotary|pos_cis)(_|$)", re.I)

_SLOPE_TOLERANCE = 1e-3  # relative


def probe_positions(session: CheckSession) -> None:
    """Check that rotary positions have an effect, and that a bias by distance has the slopes of ALiBi."""
    intent = session.right_intent
    if session.module is None or intent is None:
        return
    if intent.wiring.bias is not None:
        _check_slopes(session, intent)
    # Observed queries and keys have their positions already.
    elif intent.wiring.rotate is None and not isinstance(intent.wiring, ObservedWiring):
        _check_effect(session)


def _check_slopes(session: CheckSession, intent: Intent) -> None:
    """Compare slopes that the module holds, unless they are learned, with those of ALiBi."""
    assert session.module is not None
    assert intent.wiring.bias is not None
    learned = [path for path, _ in session.module.named_parameters()]
    if any(f"`{path}`" in feature for path in learned for feature in intent.features):
        return
    if not re.search("alibi|slope", " ".join([session.source, *intent.features]), re.I):
        return  # a bias by distance that does not claim to be ALiBi
    H = intent.wiring.heads
    slopes = -intent.wiring.bias(H, 2, 2)[:, 1, 0].double()
    usual = torch.tensor(alibi_slopes(H), dtype=torch.float64)
    # Where H is no power of two, ALiBi takes some slopes of the next one; much code does without that.
    geometric = 2.0 ** (-8.0 * torch.arange(1, H + 1, dtype=torch.float64) / H)
    # Which head has which slope is free.
    differences = [
        relative_difference(slopes.sort().values, right.sort().values) for right in (usual, geometric)
    ]
    if min(differences) < _SLOPE_TOLERANCE:
        return
    shown = ", ".join(f"{slope:.3g}" for slope in slopes[:4])
    session.add_mistake(
        "slopes",
        f"they begin {shown}",
        "alibi-slopes",
        f"Your bias by distance has the slopes {shown} …; those of ALiBi for {H} heads begin "
        f"{', '.join(f'{slope:.3g}' for slope in usual[:4])}.",
        distance=min(differences) / _SLOPE_TOLERANCE,
    )


def _check_effect(session: CheckSession) -> None:
    """Check that rotary positions change the output, if the module computes or holds cosines."""
    question = session.cases.plain("positions", seed=85).to(session.dtype)
    module = session.subject.module_as(session.dtype)
    assert module is not None
    plain = session.subject.run(question).answer
    spoiled = copy_module(module)
    with torch.no_grad():
        for path, tensor in spoiled.named_buffers():
            if _TABLE.search(path.rpartition(".")[2]) and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.mul_(1.1)
    with _WrongCosines():
        changed = session.subject.run(question, module=spoiled).answer
    if plain is None or changed is None:
        return
    distance = relative_difference(changed.output, plain.output) / (100 * TOLERANCE)
    if distance > 1:
        session.add_mistake(
            "positions",
            "they have no effect",
            "positions-cancel",
            "It computes rotary positions, and its output equals that of attention without any.",
            distance=distance,
        )


class _WrongCosines(TorchFunctionMode):
    """Makes every cosine a tenth too large."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Llama makes its `freqs_cis` by torch.polar.
        if getattr(func, "__name__", "") in ("cos", "polar") and isinstance(result, Tensor):
            return torch.complex(1.1 * result.real, result.imag) if result.is_complex() else 1.1 * result
        return result
