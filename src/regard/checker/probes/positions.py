"""Rotary positions without an effect: cosines and sines that are used, and an output that is the same without.

A rotation by one angle for all queries and keys of a head cancels in their products, so the output alone is
that of attention without positions. Cosines that are a little wrong do not cancel: that shows their use.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.checker.intent import TOLERANCE
from regard.checker.oracle.oracle import relative_difference
from regard.checker.session import CheckSession
from regard.checker.subject.subject import copy_module

_TABLE = re.compile(r"(^|_)(cos|cosine|freqs?|freqs_cis|rope|rotary|pos_cis)(_|$)", re.I)


def probe_positions(session: CheckSession) -> None:
    """Check that rotary positions change the output, if the module computes or holds cosines."""
    intent = session.right_intent
    if session.module is None or intent is None or intent.wiring.rotate is not None:
        return
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
        if getattr(func, "__name__", "") in ("cos", "polar") and isinstance(result, Tensor):
            return torch.complex(1.1 * result.real, result.imag) if result.is_complex() else 1.1 * result
        return result
