"""What dropout does to the numbers of a module in training: where it acts, and by which factor it scales.

With few keys the output is a combination of few known values, so the weights that were used follow from it by
least squares, whatever the random draw was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.interpretation.intent import Intent
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import copy_module

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


def _owner(module: nn.Module, place: str) -> tuple[nn.Module, str]:
    """Return the module and the attribute that hold a dropout's number."""
    part = dict(module.named_modules()).get(place)
    if isinstance(part, nn.Dropout):
        return part, "p"
    owner, _, name = place.rpartition(".")
    return module.get_submodule(owner), name


def set_value(module: nn.Module, place: str, value: float) -> None:
    setattr(*_owner(module, place), value)


def read_value(module: nn.Module, place: str) -> float:
    return float(getattr(*_owner(module, place)))


def training_run(session: CheckSession, question: Question, module: nn.Module) -> Draw:
    """Return a function that runs a module with dropout enabled and random numbers of a seed."""

    def draw(seed: int) -> Tensor | None:
        torch.manual_seed(seed)
        reply = session.subject.run(question, module=copy_module(module), dropout=True)
        return None if reply.answer is None else reply.answer.output.detach()

    return draw


def draw_outputs(draw: Draw, seeds: Iterable[int]) -> list[Tensor]:
    """Return the outputs of several seeds; [] if one of them fails."""
    outputs = [draw(seed) for seed in seeds]
    return [] if any(output is None for output in outputs) else [x for x in outputs if x is not None]


def infer_effect(
    session: CheckSession, intent: Intent, question: Question, draw: Draw, draws: int = 6
) -> DropoutEffect:
    """Return what dropout did to the numbers in several draws."""
    outputs = [output.double() for output in draw_outputs(draw, range(draws))]
    eval_answer = intent.answer(question)
    assert eval_answer.weights is not None
    # Where the shapes differ, the oracle knows only a part of the module.
    if not outputs or outputs[0].shape != eval_answer.output.shape:
        return DropoutEffect("unknown")
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
