"""Dropout at the rate that was set: the code is built with two rates, and what it drops is measured."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.interpretation.intent import TOLERANCE, Intent
from regard.checker.oracle.oracle import relative_error
from regard.checker.oracle.question import Question
from regard.checker.probes.dropout_comparison.dropout_effect import (
    OUTPUT_DROPOUT,
    Draw,
    DropoutEffect,
    dropouts,
    infer_effect,
    is_near,
    read_value,
    set_value,
    training_run,
)
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import copy_module, in_dtype
from regard.checker.subject.construction.construct import SIZES, build, constructor_arguments

# Rates for the code's own parameter: neither is 0.5, F.dropout's default, and they do not add up to 1.
RATES = (0.2, 0.6)
# So many draws tell that more than RATES[0] + 0.2 is dropped, with a false alarm in 9e-8 (Hoeffding's bound),
# even if each draw drops everything or nothing, as stochastic depth does.
_DRAWS, _EXCESS = 200, 0.2


class RateParameter(NamedTuple):
    """A parameter that sets the rate of dropout, and ways to run the code with it at each of `RATES`."""

    name: str
    whole: list[Draw]  # the code as it is built; empty if the parameter may be meant for other code
    parts: list[list[Draw]]  # each dropout that the parameter sets, alone


def check_rate(session: CheckSession, question: Question) -> bool:
    """Check that dropout follows the parameter that sets its rate; returns whether it does not."""
    low, high = RATES
    for name, whole, parts in _parameters(session, question):
        if whole and _ignores_rate(*whole):
            evidence = (
                f"In training `{name}={low}` and `{name}={high}` give the same outputs for the same random "
                "numbers: what it drops, it drops at another rate."
            )
            session.add_mistake(_RATE, "not the one that was set", "dropout-rate-ignored", evidence)
            return True
        intent = session.right_intent
        if intent is not None and (
            evidence := next(filter(None, _inversions(session, intent, question, parts)), "")
        ):
            evidence = (
                f"With `{name}={low}` {evidence}: the rate is taken as the probability to keep a number."
            )
            session.add_mistake(_RATE, "the reverse of what was set", "dropout-rate-inverted", evidence)
            return True
    return False


_RATE = "dropout rate"


def _inversions(
    session: CheckSession, intent: Intent, question: Question, parts: list[list[Draw]]
) -> Iterator[str]:
    """Yield for each dropout what shows that its rate is that of keeping; "" if nothing does."""
    low, high = RATES
    for draws in parts:
        effect = infer_effect(session, intent, question, draws[0])
        if effect.factor is None or effect.place == "dropout-not-rescaled":
            yield ""
        elif is_near(effect.factor, 1 / low):
            other = infer_effect(session, intent, question, draws[1]).factor
            inverted = other is not None and is_near(other, 1 / high)
            yield f"what is kept is scaled by {effect.factor:.3g} = 1/{low}" if inverted else ""
        else:
            dropped = _fraction_dropped(session, intent, question, draws[0], effect)
            yield f"{dropped:.0%} of the numbers are dropped" if dropped > low + _EXCESS else ""


def _parameters(session: CheckSession, question: Question) -> Iterator[RateParameter]:
    """Yield the parameters of a function or a class that set the rate of dropout."""
    subject = session.subject
    if session.module is None:
        name = rate_argument(session)
        if not name:
            return
        draws = [function_draw(session, question, name, rate) for rate in RATES]
        yield RateParameter(name, draws, [draws])
        return
    if subject.cls is None:
        return
    try:
        arguments = constructor_arguments(subject.cls, subject.init, SIZES)
    except CheckError:
        return
    rated = {n: value for n, value in arguments.items() if vocabulary.size(n) in ("dropout", "keep")}
    names = [n for n, value in rated.items() if _is_number(value)]
    for name in names or [""]:  # without one, a configuration may hold them
        others = {n: _as_value(n, 0.0) for n in names if n != name}
        zero, low, high = (
            _rebuilt(session, question, rate, others | ({name: _as_value(name, rate)} if name else {}))
            for rate in (0.0, *RATES)
        )
        if zero is None or low is None or high is None or dropouts(low) != dropouts(high):
            continue
        is_own = re.search("drop|keep", name) and not OUTPUT_DROPOUT.search(name)
        whole = [training_run(session, question, side) for side in (low, high)] if is_own else []
        yield RateParameter(name or "dropout", whole, list(_parts(session, question, zero, low, high)))


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _as_value(name: str, rate: float) -> float:
    """Return what a parameter of this name should be for a rate: `keep_prob` is the other probability."""
    return 1 - rate if vocabulary.size(name) == "keep" else rate


def rate_argument(session: CheckSession) -> str:
    """Return the argument of a function that sets the rate of dropout; "" if none does, or the caller did."""
    name = session.subject.arguments.get("dropout", "")
    return name if "drop" in name and session.subject.call.get(name) is None else ""


def function_draw(session: CheckSession, question: Question, name: str, value: Any) -> Draw:
    """Return a way to run a function in training, with its argument for dropout at a value."""
    subject = session.subject
    # F.dropout(x, p, training) drops nothing unless that is True.
    training = {subject.arguments["training"]: True} if "training" in subject.arguments else {}
    function = subject.replaced(extra=subject.extra | training | {name: value})

    def draw(seed: int) -> Tensor | None:
        torch.manual_seed(seed)
        answer = function.run(question, dropout=True).answer
        return None if answer is None else answer.output.detach()

    return draw


def _parts(
    session: CheckSession, question: Question, zero: nn.Module, low: nn.Module, high: nn.Module
) -> Iterator[list[Draw]]:
    """Yield ways to run modules of two rates with one of their dropouts alone.

    The others are as in the module of rate 0, whatever their numbers mean: some code stores 1 − rate. Those
    that no parameter sets are off.
    """
    groups = dropouts(low)
    places = [place for group in groups.values() for place in group]
    followed = {place for place in places if read_value(low, place) != read_value(high, place)}
    for group in [group for group in groups.values() if followed & set(group)] or [places]:
        sides = [copy_module(low), copy_module(high)]
        for side, place in itertools.product(sides, places):
            if place not in group:
                set_value(side, place, read_value(zero, place) if place in followed else 0.0)
        yield [training_run(session, question, side) for side in sides]


def _rebuilt(
    session: CheckSession, question: Question, rate: float, arguments: dict[str, float]
) -> nn.Module | None:
    """Return the class's module with the same weights, with dropout at a rate, in training mode.

    None if the class cannot be built with these arguments, or if its output in eval is another then.
    """
    subject = session.subject
    own = subject.module_as(session.dtype)
    assert subject.cls is not None
    assert own is not None
    try:
        module = build(subject.cls, subject.init | arguments, {"dropout": rate, "keep": 1 - rate})
        in_dtype(module, session.dtype).load_state_dict(own.state_dict())
    except (CheckError, RuntimeError):  # it takes no such rate, or has other weights then
        return None
    before, after = (subject.run(question, module=copy_module(m).eval()).answer for m in (own, module))
    same = before is not None and after is not None and relative_error(before, after) < TOLERANCE
    return module.train() if same else None


def _ignores_rate(low: Draw, high: Draw) -> bool:
    """Return whether two rates give the same outputs for the same random numbers, which are not all alike.

    Where a draw drops all or nothing without scaling the rest, it is the same at both rates by chance in
    0.6 of the seeds; 30 of them agree in 2 of 10 million checks.
    """
    first = low(0)
    if first is None:
        return False
    varies = False
    for seed in range(30):
        a, b = low(seed), high(seed)
        # Dropout on masked scores gives NaN, which is unequal to itself.
        if a is None or b is None or not torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)):
            return False
        varies = varies or not torch.equal(a.nan_to_num(7.0), first.nan_to_num(7.0))
    return varies


def _fraction_dropped(
    session: CheckSession, intent: Intent, question: Question, draw: Draw, effect: DropoutEffect
) -> float:
    """Return the fraction of numbers that dropout at `RATES[0]` drops; from many draws if it seems large."""
    if effect.dropped < RATES[0] + _EXCESS / 2:
        return effect.dropped
    many = infer_effect(session, intent, question, draw, draws=_DRAWS)
    return many.dropped if many.factor is not None else 0.0
