"""What dropout does to the numbers of a module in training: where it acts, how it scales, and how often.

With few keys the output is a combination of few known values, so the weights that were used follow from it by
least squares, whatever the random draw was. The rate is measured on code that is built with two rates.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.oracle.oracle import TOLERANCE, Intent, relative_error
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import copy_module, in_dtype
from regard.checker.subject.construct import SIZES, build, constructor_arguments
from regard.checker.subject.subject import Subject

# At 0.5 a few draws show numbers that are dropped and kept. `dropout_rate` tries unequal probabilities.
P = 0.5
RATIO_TOLERANCE = 1e-3  # for the ratio of a weight in training to the same weight in eval
UNSCALED = (1 / (1 - P) - 1) / RATIO_TOLERANCE  # the distance of a kept weight that is not scaled
# Names of dropout meant for the output: `out_drop`, not `dropout_p`.
OUTPUT_DROPOUT = re.compile(r"resid|proj|(?<!drop)(?<!drop_)out(?!$)|hidden", re.I)

Draw = Callable[[int], Tensor | None]  # from a seed to an output in training mode; None if the code fails


class DropoutEffect(NamedTuple):
    """What dropout did to the numbers in training.

    `place` is "weights", "after the projection", "keys" (before the softmax, as DropKey does), the name of a
    mistake, or "unknown". `distance` says how far the weights are from those that dropout may leave, in
    tolerances.
    """

    place: str
    distance: float | None = None
    factor: float | None = None  # of the numbers that are kept, by those in eval
    dropped: float = 0.0  # the fraction of numbers that are 0


def dropouts(module: nn.Module) -> dict[str, list[str]]:
    """Find a module's dropouts: layers, and numbers of that name. Those of a list of heads form one group."""
    places = [path for path, part in module.named_modules() if isinstance(part, nn.Dropout)]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            # True is an int, too, but `dropout=True` is a switch and no rate.
            number = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value <= 1
            meant = {"dropout": value != 1, "keep": value != 0}.get(vocabulary.size(name) or "", False)
            if number and meant and not isinstance(part, nn.Dropout):
                places.append(f"{path}.{name}".lstrip("."))
    groups: dict[str, list[str]] = {}
    for place in places:
        groups.setdefault(re.sub(r"\d+", "*", place), []).append(place)
    return groups


def number_of(module: nn.Module, place: str) -> tuple[nn.Module, str]:
    """Return the module and the attribute that hold a dropout's number."""
    part = dict(module.named_modules()).get(place)
    if isinstance(part, nn.Dropout):
        return part, "p"
    owner, _, name = place.rpartition(".")
    return module.get_submodule(owner), name


def as_number(name: str, rate: float) -> float:
    """Return what a number of this name should be for a rate: `keep_prob` is the other probability."""
    return 1 - rate if vocabulary.size(name.rpartition(".")[2]) == "keep" else rate


def training_run(subject: Subject, question: Question, module: nn.Module | None = None) -> Draw:
    """Return a way to run a function, or a module in its state, with dropout and random numbers of a seed."""

    def draw(seed: int) -> Tensor | None:
        torch.manual_seed(seed)
        own = None if module is None else copy_module(module)
        answer = subject.run(question, module=own, dropout=True).answer
        return None if answer is None else answer.output.detach()

    return draw


def draw_outputs(draw: Draw, seeds: Iterable[int]) -> list[Tensor]:
    """Return the outputs of several seeds; [] if one of them fails."""
    outputs = [draw(seed) for seed in seeds]
    return [] if any(output is None for output in outputs) else [x for x in outputs if x is not None]


def infer_effect(intent: Intent, question: Question, draw: Draw, draws: int = 6) -> DropoutEffect:
    """Return what dropout did to the numbers in several draws."""
    outputs = [output.double() for output in draw_outputs(draw, range(draws))]
    eval_answer = intent.answer(question)
    assert eval_answer.weights is not None
    # Where the shapes differ, the oracle knows only a part of the module.
    if not outputs or outputs[0].shape != eval_answer.output.shape:
        return DropoutEffect("unknown")
    # What is dropped behind the part of a module that is compared leaves that part as it is.
    if all(relative_error(Answer(output), eval_answer) < TOLERANCE for output in outputs):
        return DropoutEffect("after the projection")
    # What dropout drops it multiplies by 0, and 0 · −inf is NaN: hidden keys have scores of −inf.
    if any(bool(output.isnan().any()) for output in outputs):
        return DropoutEffect("dropout-on-scores", math.inf)
    ratios = torch.stack([output / eval_answer.output for output in outputs])
    if (factor := _kept_factor(ratios)) is not None:
        place = "dropout-on-output" if intent.wiring.out is None else "after the projection"
        return DropoutEffect(place, None, factor, _zeros(ratios))
    solved = [_solve_weights(output, question, intent) for output in outputs]
    if any(weights is None for weights in solved):
        factor = _before_projection(outputs, question, intent)
        return DropoutEffect("unknown" if factor is None else "dropout-on-output", None, factor)
    used = torch.stack([weights for weights in solved if weights is not None])  # (draws, B, H, T, S)
    # The ratio of two weights near 0 consists of rounding errors.
    visible = eval_answer.weights > 1e-6
    by_row = used / eval_answer.weights.clamp_min(1e-12)
    ratios = by_row[visible.expand_as(used)]
    if (factor := _kept_factor(ratios)) is not None:
        rescaled = not is_near(factor, 1.0)
        place, distance = ("weights", None) if rescaled else ("dropout-not-rescaled", UNSCALED)
        return DropoutEffect(place, distance, factor, _zeros(ratios))
    sums_to_one = bool(((used.sum(-1) - 1).abs() < RATIO_TOLERANCE).all())
    if sums_to_one and _drops_keys(by_row, used, visible):
        return DropoutEffect("keys")
    from_right = torch.minimum(ratios.abs(), (ratios - 1 / (1 - P)).abs()).max()
    return DropoutEffect(
        "dropout-on-scores" if sums_to_one else "unknown", float(from_right) / RATIO_TOLERANCE
    )


def is_near(a: float, b: float) -> bool:
    return abs(a - b) < RATIO_TOLERANCE


def _zeros(ratios: Tensor) -> float:
    return float((ratios.abs() < RATIO_TOLERANCE).double().mean())


def _kept_factor(ratios: Tensor) -> float | None:
    """Return the factor of the numbers that are kept, if some are 0 and all others have one factor."""
    kept = ratios[ratios.abs() >= RATIO_TOLERANCE]
    if not 0 < kept.numel() < ratios.numel() or float(kept.max() - kept.min()) > RATIO_TOLERANCE:
        return None
    return float(kept.mean())


def _drops_keys(ratios: Tensor, used: Tensor, visible: Tensor) -> bool:
    """Return whether each row has the weights of eval but for zeros and a factor: keys were hidden.

    A row whose keys were all hidden, by a finite number, may hold the weights of eval or equal ones.
    """
    kept = (used > RATIO_TOLERANCE) & visible
    if not bool((visible & ~kept).any()):
        return False

    def spread(x: Tensor) -> Tensor:
        return x.masked_fill(~kept, -torch.inf).amax(-1) - x.masked_fill(~kept, torch.inf).amin(-1)

    return bool(((spread(ratios) < RATIO_TOLERANCE * 10) | (spread(used) < RATIO_TOLERANCE)).all())


def _solve_weights(output: Tensor, question: Question, intent: Intent) -> Tensor | None:
    """Solve for the weights (B, H, T, S) that give an output, by least squares; None if no weights do."""
    wiring = intent.wiring
    _, _, v = wiring.project(question.to(torch.float64))
    v = v.detach().repeat_interleave(max(1, wiring.heads // v.shape[1]), 1)  # (B, H, S, E)
    B, H, S, E = v.shape
    if wiring.splits:
        by_head = torch.zeros(B, H, S, H, E, dtype=torch.float64)
        for h in range(H):
            by_head[:, h, :, h] = v[:, h]
        columns = by_head.reshape(B, H * S, H * E)  # each weight's contribution to the merged heads
        if wiring.out is not None:
            columns = columns @ wiring.out.weight.detach().double()
            output = output if wiring.out.bias is None else output - wiring.out.bias.detach().double()
        # With more weights than numbers in the output the equations do not determine them.
        if columns.shape[1] > columns.shape[2]:
            return None
        solved: Tensor = torch.linalg.lstsq(columns.mT, output.mT).solution  # (B, H·S, T)
        # lstsq has a solution for every output. The residual tells whether these weights give it.
        if float((columns.mT @ solved - output.mT).abs().max()) > 1e-4:
            return None
        return solved.view(B, H, S, -1).transpose(-2, -1)
    weights: Tensor = torch.linalg.lstsq(v.mT, output.mT).solution  # (B, H, S, T)
    return weights.mT if float((v.mT @ weights - output.mT).abs().max()) < 1e-4 else None


def _before_projection(outputs: list[Tensor], question: Question, intent: Intent) -> float | None:
    """Return the factor of dropout on the merged heads, before the projection; None if it is not there."""
    wiring = intent.wiring
    # A narrower output would not determine the merged heads.
    if wiring.out is None or wiring.out.weight.shape[0] != wiring.out.weight.shape[1]:
        return None
    with torch.no_grad():
        eval_answer = CORRECT.answer(intent.apply(question).to(torch.float64), wiring)
        bias = 0.0 if wiring.out.bias is None else wiring.out.bias.double()
        inverse = torch.linalg.pinv(wiring.out.weight.double())
        merged = (eval_answer.output - bias) @ inverse
        return _kept_factor(torch.stack([((output - bias) @ inverse) / merged for output in outputs]))


# Rates for the code's own parameter: neither is 0.5, F.dropout's default, and they do not add up to 1.
RATES = (0.2, 0.6)
# So many draws tell that more than RATES[0] + 0.2 is dropped, with a false alarm in 9e-8 (Hoeffding's bound),
# even if each draw drops everything or nothing, as stochastic depth does.
_DRAWS, _EXCESS = 200, 0.2


def check_rate(session: CheckSession, question: Question) -> bool:
    """Check that dropout follows the parameter that sets its rate; returns whether it does not."""
    low, high = RATES
    for name, whole, parts in _parameters(session, question):
        if whole and _ignores_rate(*whole):
            session.find("dropout-rate-ignored", "dropout rate", argument=name, low=low, high=high)
            return True
        what = "" if session.right_intent is None else _inversion(session.right_intent, question, parts)
        if what:
            session.find("dropout-rate-inverted", "dropout rate", argument=name, low=low, what=what)
            return True
    return False


def _inversion(intent: Intent, question: Question, parts: list[list[Draw]]) -> str:
    """Return what shows that the rate of one of the dropouts is that of keeping; "" if nothing does."""
    low, high = RATES
    for draws in parts:
        effect = infer_effect(intent, question, draws[0])
        if effect.factor is None or effect.place == "dropout-not-rescaled":
            continue
        if is_near(effect.factor, 1 / low):
            other = infer_effect(intent, question, draws[1]).factor
            if other is not None and is_near(other, 1 / high):
                return f"what is kept is scaled by {effect.factor:.3g} = 1/{low}"
        elif effect.dropped >= low + _EXCESS / 2:
            many = infer_effect(intent, question, draws[0], draws=_DRAWS)
            if many.factor is not None and many.dropped > low + _EXCESS:
                return f"{many.dropped:.0%} of the numbers are dropped"
    return ""


def _parameters(
    session: CheckSession, question: Question
) -> Iterator[tuple[str, list[Draw], list[list[Draw]]]]:
    """Yield the parameters that set the rate of dropout, each with ways to run the code at each of `RATES`.

    The first are those of the code as it is built, none if the parameter may be meant for other code; then
    come those of each dropout that the parameter sets, alone.
    """
    subject = session.subject
    if name := rate_argument(session) if session.module is None else "":
        draws = [function_draw(session, question, name, rate) for rate in RATES]
        yield name, draws, [draws]
    if subject.cls is None:
        return
    try:
        arguments = constructor_arguments(subject.cls, subject.init, SIZES)
    except CheckError:
        return
    rated = {n: value for n, value in arguments.items() if vocabulary.size(n) in ("dropout", "keep")}
    names = [n for n, value in rated.items() if type(value) in (float, int)]
    for name in names or [""]:  # without one, a configuration may hold them
        zero, low, high = (
            _rebuilt(session, question, rate, {n: as_number(n, rate if n == name else 0.0) for n in names})
            for rate in (0.0, *RATES)
        )
        if zero is None or low is None or high is None or dropouts(low) != dropouts(high):
            continue
        is_own = re.search("drop|keep", name) and not OUTPUT_DROPOUT.search(name)
        whole = [training_run(subject, question, side) for side in (low, high)] if is_own else []
        yield name or "dropout", whole, list(_parts(session, question, zero, low, high))


def rate_argument(session: CheckSession) -> str:
    """Return the argument of a function that sets the rate of dropout; "" if none does, or the caller did."""
    name = session.subject.arguments.get("dropout", "")
    return name if "drop" in name and session.subject.call.get(name) is None else ""


def function_draw(session: CheckSession, question: Question, name: str, value: Any) -> Draw:
    """Return a way to run a function in training, with its argument for dropout at a value."""
    subject = session.subject
    # F.dropout(x, p, training) drops nothing unless that is True.
    training = {subject.arguments["training"]: True} if "training" in subject.arguments else {}
    return training_run(subject.replaced(extra=subject.extra | training | {name: value}), question)


def _parts(
    session: CheckSession, question: Question, zero: nn.Module, low: nn.Module, high: nn.Module
) -> Iterator[list[Draw]]:
    """Yield ways to run modules of two rates with one of their dropouts alone.

    The others are as in the module of rate 0, whatever their numbers mean: some code stores 1 − rate. Those
    that no parameter sets are off.
    """
    groups = dropouts(low)
    places = [place for group in groups.values() for place in group]
    numbers = {place: [getattr(*number_of(side, place)) for side in (zero, low, high)] for place in places}
    followed = {place for place, (_, a, b) in numbers.items() if a != b}
    for group in [group for group in groups.values() if followed & set(group)] or [places]:
        sides = [copy_module(low), copy_module(high)]
        for side, place in itertools.product(sides, places):
            if place not in group:
                setattr(*number_of(side, place), numbers[place][0] if place in followed else 0.0)
        yield [training_run(session.compared, question, side) for side in sides]


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
