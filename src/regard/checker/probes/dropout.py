"""Dropout: inactive in eval, active in training, on the weights, scaled by 1/(1 − p).

Where it acts is inferred from the numbers. With few keys the output is a combination of few known values, so
the weights that were used follow from it by least squares, whatever the random draw was.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from regard.checker.intent import TOLERANCE, Intent
from regard.checker.oracle.oracle import (
    describe_difference,
    expected_answer,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.subject import copy_module

P = 0.5
RATIO_TOLERANCE = 1e-3  # for the ratio of a weight in training to the same weight in eval
_UNSCALED = (1 / (1 - P) - 1) / RATIO_TOLERANCE  # the distance of a kept weight that is not scaled
_OUTPUT_DROPOUT = re.compile(r"resid|proj|out(?!$)|hidden", re.I)  # names of dropout meant for the output


def probe_dropout(session: CheckSession) -> None:
    """Check dropout in eval mode and in training mode."""
    if session.module is None:
        _check_function(session)
        return
    groups = dropouts(session.module)
    places = [place for group in groups.values() for place in group]
    question = session.cases.plain("dropout", B=2, T=3, seed=60).to(session.dtype)
    if difference := _variation(session, question, _with_dropout(session, places, P, training=False)):
        session.add_mistake(
            "eval is deterministic",
            "two calls in eval mode differ",
            "dropout-in-eval",
            "In eval mode the same input gives two different outputs.",
            distance=difference / TOLERANCE,
        )
    else:
        session.add_pass("eval is deterministic")
    _check_training(session)
    if not places:
        return
    acting = {
        name: group
        for name, group in groups.items()
        if _variation(session, question, _with_dropout(session, group, P, training=True))
    }
    if not acting:
        session.add_mistake(
            "dropout in training",
            "two calls in training mode agree",
            "dropout-never-acts",
            f"With `{'`, `'.join(groups)}` at {P} training gives the same output as eval, every time.",
            distance=_UNSCALED,
        )
    elif session.right_intent is None:
        session.add_skip(
            "dropout in training", "its place can be inferred only where the output is the oracle's"
        )
    else:
        _check_place(session, session.right_intent, question, acting)


def _check_training(session: CheckSession) -> None:
    """Check that training mode, with dropout disabled, gives the same output as eval mode."""
    assert session.module is not None
    if any(isinstance(part, _BatchNorm) for part in session.module.modules()):
        return  # it is meant to differ
    question = session.cases.plain("training", seed=61).to(session.dtype)
    plain, own = session.subject.run(question).answer, session.subject.runnable(session.dtype)
    assert own is not None
    training = [session.subject.run(question, module=copy_module(own).train()).answer for _ in range(2)]
    first, second = training
    if plain is None or first is None or second is None:
        return
    if not torch.equal(first.output.nan_to_num(7.0), second.output.nan_to_num(7.0)):
        return  # it is random by means of its own
    error = relative_difference(first.output.detach(), plain.output.detach())
    if error < TOLERANCE:
        session.add_pass("training mode", "without dropout, the same output as in eval mode")
    else:
        session.add_failure("training mode", f"without dropout, the output {describe_difference(error)}")


def _check_function(session: CheckSession) -> None:
    """Check that a function gives the same output twice."""
    question = session.cases.plain("deterministic", seed=60).to(session.dtype)
    outputs = [session.subject.run(question, dropout=True).answer for _ in range(2)]
    if outputs[0] is None or outputs[1] is None:
        return
    difference = relative_error(outputs[0], outputs[1])
    if not difference:
        session.add_pass("deterministic")
    else:
        session.add_mistake(
            "deterministic",
            "two calls differ",
            "dropout-in-eval",
            "The same input gives two different outputs, although no dropout was requested.",
            distance=difference / TOLERANCE,
        )


def dropouts(module: nn.Module) -> dict[str, list[str]]:
    """Find a module's dropouts: layers, and numbers of that name. Those of a list of heads form one group."""
    places = [path for path, part in module.named_modules() if isinstance(part, nn.Dropout)]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            number = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < 1
            if number and vocabulary.size(name) == "dropout" and not isinstance(part, nn.Dropout):
                places.append(f"{path}.{name}".lstrip("."))
    groups: dict[str, list[str]] = {}
    for place in places:
        groups.setdefault(re.sub(r"\d+", "*", place), []).append(place)
    return groups


def _with_dropout(session: CheckSession, places: list[str], p: float, *, training: bool) -> nn.Module:
    """Return a copy of the module with these dropouts at p and the others at 0."""
    own = session.subject.module_as(session.dtype)
    assert own is not None
    module = copy_module(own)
    parts = dict(module.named_modules())
    for place in (place for group in dropouts(own).values() for place in group):
        value = p if place in places else 0.0
        if isinstance(parts.get(place), nn.Dropout):
            parts[place].p = value
        else:
            owner, _, name = place.rpartition(".")
            setattr(parts[owner], name, value)
    return module.train(training)


def _variation(session: CheckSession, question: Question, module: nn.Module) -> float:
    """Return the largest relative difference between several calls with the same input."""
    outputs = []
    for seed in range(3):
        torch.manual_seed(seed)
        reply = session.subject.run(question, module=copy_module(module), dropout=True)
        if reply.answer is None:
            return 0.0
        outputs.append(reply.answer.output.detach())
    return max(relative_difference(outputs[0], other) for other in outputs[1:])


def _check_place(
    session: CheckSession, intent: Intent, question: Question, acting: dict[str, list[str]]
) -> None:
    """Check where each dropout acts: it should be on the weights, or on the layer's output by its name."""
    distances = {name: _infer_place(session, intent, question, group) for name, group in acting.items()}
    where = {name: act for name, (act, _) in distances.items()}
    on_weights = [place for place, act in where.items() if act == "weights"]
    for place, act in where.items():
        if act in ("dropout-on-scores", "dropout-not-rescaled"):
            evidence, distance = _EVIDENCE[act].format(place=place), distances[place][1]
            session.add_mistake(
                "dropout in training", act.replace("-", " "), act, evidence, distance=distance
            )
            return
    late = [
        place
        for place, act in where.items()
        if act == "dropout-on-output" and not _OUTPUT_DROPOUT.search(place)
    ]
    if late and not on_weights:
        act = "dropout-on-output"
        session.add_mistake(
            "dropout in training", act.replace("-", " "), act, _EVIDENCE[act].format(place=late[0])
        )
    elif on_weights:
        session.add_pass("dropout in training", f"`{on_weights[0]}` acts on the weights, scaled by 1/(1 − p)")
    elif all(act in ("dropout-on-output", "after the projection") for act in where.values()):
        session.add_pass("dropout in training", f"`{next(iter(acting))}` acts on the output of the layer")
    else:
        session.add_skip(
            "dropout in training", f"where `{next(iter(acting))}` acts could not be inferred from the output"
        )


_EVIDENCE = {
    "dropout-on-scores": "With `{place}` at 0.5 the weights in training change but still sum to 1 "
    "(or are NaN), so it acts on the scores.",
    "dropout-not-rescaled": "With `{place}` at 0.5 the weights in training are 0 or the same as in eval, "
    "never twice as large.",
    "dropout-on-output": "With `{place}` at 0.5 numbers of the output are 0 or twice as large as in eval, "
    "so it acts on the output.",
}


def _infer_place(
    session: CheckSession, intent: Intent, question: Question, places: list[str]
) -> tuple[str, float | None]:
    """Return where dropout acts: "weights", "after the projection", the name of a mistake, or "unknown".

    With it comes how far the weights are from those that dropout may leave, in tolerances.
    """
    module = _with_dropout(session, places, P, training=True)
    outputs = []
    for seed in range(6):
        torch.manual_seed(seed)
        reply = session.subject.run(question, module=copy_module(module), dropout=True)
        if reply.answer is None:
            return "unknown", None
        outputs.append(reply.answer.output.detach().double())
    eval_answer = expected_answer(intent.apply(question), intent.wiring)
    assert eval_answer.weights is not None
    if outputs[0].shape != eval_answer.output.shape:  # the oracle knows only a part of the module
        return "unknown", None
    if any(bool(output.isnan().any()) for output in outputs):
        return "dropout-on-scores", math.inf
    ratios = torch.stack([output / eval_answer.output for output in outputs])
    if _consists_of(ratios, (0.0, 1 / (1 - P))):
        place = "dropout-on-output" if intent.wiring.out is None else "after the projection"
        return place, None
    solved = [_solve_weights(output, question, intent) for output in outputs]
    if any(weights is None for weights in solved):
        return "dropout-on-output" if _before_projection(outputs, question, intent) else "unknown", None
    used = torch.stack([weights for weights in solved if weights is not None])  # (draws, B, H, T, S)
    visible = eval_answer.weights > 1e-6
    ratios = (used / eval_answer.weights.clamp_min(1e-12))[visible.expand_as(used)]
    if _consists_of(ratios, (0.0, 1 / (1 - P))):
        return "weights", None
    if _consists_of(ratios, (0.0, 1.0)):
        return "dropout-not-rescaled", _UNSCALED
    from_right = torch.minimum(ratios.abs(), (ratios - 1 / (1 - P)).abs()).max()
    sums_to_one = bool(((used.sum(-1) - 1).abs() < RATIO_TOLERANCE).all())
    return "dropout-on-scores" if sums_to_one else "unknown", float(from_right) / RATIO_TOLERANCE


def _consists_of(ratios: Tensor, values: tuple[float, ...]) -> bool:
    """Return whether every number is one of the values, and each of them occurs."""
    near = [(ratios - value).abs() < RATIO_TOLERANCE for value in values]
    return bool(torch.stack(near).any(0).all()) and all(bool(n.any()) for n in near)


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
        if columns.shape[1] > columns.shape[2]:
            return None
        solved: Tensor = torch.linalg.lstsq(columns.mT, output.mT).solution  # (B, H·S, T)
        if float((columns.mT @ solved - output.mT).abs().max()) > 1e-4:
            return None
        return solved.view(B, H, S, -1).transpose(-2, -1)
    weights: Tensor = torch.linalg.lstsq(v.mT, output.mT).solution  # (B, H, S, T)
    return weights.mT if float((v.mT @ weights - output.mT).abs().max()) < 1e-4 else None


def _before_projection(outputs: list[Tensor], question: Question, intent: Intent) -> bool:
    """Return whether dropout acted on the merged heads, before the output projection."""
    wiring = intent.wiring
    if wiring.out is None or wiring.out.weight.shape[0] != wiring.out.weight.shape[1]:
        return False
    with torch.no_grad():
        eval_answer = CORRECT.answer(intent.apply(question).to(torch.float64), wiring)
        bias = 0.0 if wiring.out.bias is None else wiring.out.bias.double()
        inverse = torch.linalg.pinv(wiring.out.weight.double())
        merged = (eval_answer.output - bias) @ inverse
        ratios = torch.stack([((output - bias) @ inverse) / merged for output in outputs])
    return _consists_of(ratios, (0.0, 1 / (1 - P)))
