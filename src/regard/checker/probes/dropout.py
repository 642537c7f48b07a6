"""Dropout: off in eval, on in training, on the weights, scaled by 1/(1 − p).

Where it acts is read off the numbers. With few keys the output is a known combination of few values, so the
weights that were really used follow from it by least squares, whatever drew them.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from regard.checker.oracle.oracle import truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT
from regard.checker.session import CheckSession
from regard.checker.subject import vocabulary
from regard.checker.subject.subject import copied
from regard.checker.understand import Intent

P = 0.5
_AFTER = re.compile(r"resid|proj|out(?!$)|hidden", re.I)  # dropout of the layer's output, a thing of its own


def probe_dropout(exam: CheckSession) -> None:
    """Dropout in eval and in training."""
    if exam.module is None:
        _function_is_steady(exam)
        return
    groups = dropouts(exam.module)
    places = [place for group in groups.values() for place in group]
    question = exam.cases.plain("dropout", B=2, T=3, seed=60).to(exam.understood.dtype)
    if _random(exam, question, _with_dropout(exam, places, P, training=False)):
        exam.found(
            "eval is deterministic",
            "two calls in eval mode differ",
            "dropout-in-eval",
            "In eval mode the same input gives two different outputs.",
        )
    else:
        exam.passed("eval is deterministic")
    if not places:
        return
    acting = {
        name: group
        for name, group in groups.items()
        if _random(exam, question, _with_dropout(exam, group, P, training=True))
    }
    if not acting:
        exam.found(
            "dropout in training",
            "two calls in training mode agree",
            "dropout-never-acts",
            f"With `{'`, `'.join(groups)}` at {P} training gives the same output as eval, every time.",
        )
    elif exam.right is None:
        exam.left_out(
            "dropout in training", "the output is not known to be right, so its weights cannot be read off"
        )
    else:
        _judge(exam, exam.right, question, acting)


def _function_is_steady(exam: CheckSession) -> None:
    question = exam.cases.plain("deterministic", seed=60).to(exam.understood.dtype)
    outputs = [exam.subject.ask(question, dropout=True).answer for _ in range(2)]
    if outputs[0] is None or outputs[1] is None:
        return
    if torch.equal(outputs[0].output.nan_to_num(), outputs[1].output.nan_to_num()):
        exam.passed("deterministic")
    else:
        exam.found(
            "deterministic",
            "two calls differ",
            "dropout-in-eval",
            "The same input gives two different outputs, though no dropout was asked for.",
        )


def dropouts(module: nn.Module) -> dict[str, list[str]]:
    """A module's dropouts, layers and numbers of that name; those of a list of heads go together."""
    found = [path for path, part in module.named_modules() if isinstance(part, nn.Dropout)]
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            number = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < 1
            if number and vocabulary.size(name) == "dropout" and not isinstance(part, nn.Dropout):
                found.append(f"{path}.{name}".lstrip("."))
    groups: dict[str, list[str]] = {}
    for place in found:
        groups.setdefault(re.sub(r"\d+", "*", place), []).append(place)
    return groups


def _with_dropout(exam: CheckSession, places: list[str], p: float, *, training: bool) -> nn.Module:
    """A copy of the module with these dropouts at p and the others at 0."""
    own = exam.subject.at(exam.understood.dtype)
    assert own is not None
    module = copied(own)
    parts = dict(module.named_modules())
    for place in (place for group in dropouts(own).values() for place in group):
        value = p if place in places else 0.0
        if isinstance(parts.get(place), nn.Dropout):
            parts[place].p = value
        else:
            owner, _, name = place.rpartition(".")
            setattr(parts[owner], name, value)
    return module.train(training)


def _random(exam: CheckSession, question: Question, module: nn.Module) -> bool:
    """Whether several calls with the same input differ."""
    outputs = []
    for seed in range(3):
        torch.manual_seed(seed)
        reply = exam.subject.ask(question, module=module, dropout=True)
        if reply.answer is None:
            return False
        outputs.append(reply.answer.output.detach())
    return any(not torch.equal(outputs[0].nan_to_num(7.0), other.nan_to_num(7.0)) for other in outputs[1:])


def _judge(exam: CheckSession, intent: Intent, question: Question, acting: dict[str, list[str]]) -> None:
    """Where does each dropout act?"""
    where = {name: _where(exam, intent, question, group) for name, group in acting.items()}
    on_weights = [place for place, act in where.items() if act == "weights"]
    for place, act in where.items():
        if act in ("dropout-on-scores", "dropout-not-rescaled"):
            exam.found("dropout in training", act.replace("-", " "), act, _EVIDENCE[act].format(place=place))
            return
    late = [place for place, act in where.items() if act == "dropout-on-output" and not _AFTER.search(place)]
    if late and not on_weights:
        act = "dropout-on-output"
        exam.found("dropout in training", act.replace("-", " "), act, _EVIDENCE[act].format(place=late[0]))
    elif on_weights:
        exam.passed("dropout in training", f"`{on_weights[0]}` acts on the weights, scaled by 1/(1 − p)")
    elif all(act == "dropout-on-output" for act in where.values()):
        exam.passed("dropout in training", f"`{next(iter(acting))}` acts on the output of the layer")
    else:
        exam.left_out(
            "dropout in training", f"where `{next(iter(acting))}` acts could not be read off the output"
        )


_EVIDENCE = {
    "dropout-on-scores": "With `{place}` at 0.5 the weights in training change but still sum to 1 "
    "(or are NaN): it acts on the scores.",
    "dropout-not-rescaled": "With `{place}` at 0.5 the weights in training are 0 or what they are in eval, "
    "never twice that.",
    "dropout-on-output": "With `{place}` at 0.5 numbers of the output are 0 or twice what they are in eval: "
    "it acts on the output.",
}


def _where(exam: CheckSession, intent: Intent, question: Question, places: list[str]) -> str:
    module = _with_dropout(exam, places, P, training=True)
    outputs = []
    for seed in range(6):
        torch.manual_seed(seed)
        reply = exam.subject.ask(question, module=module, dropout=True)
        if reply.answer is None:
            return "unknown"
        outputs.append(reply.answer.output.detach().double())
    calm = truth(intent.read(question), intent.wiring)
    assert calm.weights is not None
    if any(bool(output.isnan().any()) for output in outputs):
        return "dropout-on-scores"
    ratios = torch.stack([output / calm.output for output in outputs])
    if _among(ratios, (0.0, 1 / (1 - P))):
        return "dropout-on-output"
    shares = [_weights_behind(output, question, intent) for output in outputs]
    if any(share is None for share in shares):
        return "dropout-on-output" if _before_projection(outputs, question, intent) else "unknown"
    used = torch.stack([share for share in shares if share is not None])  # (draws, B, H, T, S)
    seen = calm.weights > 1e-6
    ratios = (used / calm.weights.clamp_min(1e-12))[seen.expand_as(used)]
    if _among(ratios, (0.0, 1 / (1 - P))):
        return "weights"
    if _among(ratios, (0.0, 1.0)):
        return "dropout-not-rescaled"
    return "dropout-on-scores" if bool(((used.sum(-1) - 1).abs() < 1e-3).all()) else "unknown"


def _among(ratios: Tensor, values: tuple[float, ...]) -> bool:
    """Whether every number is one of the values, and each of them occurs."""
    near = [(ratios - value).abs() < 1e-3 for value in values]
    return bool(torch.stack(near).any(0).all()) and all(bool(n.any()) for n in near)


def _weights_behind(output: Tensor, question: Question, intent: Intent) -> Tensor | None:
    """The weights (B, H, T, S) that give this output, by least squares; None if no weights do."""
    wiring = intent.wiring
    _, _, v = wiring.project(question.to(torch.float64))
    v = v.detach().repeat_interleave(wiring.heads // v.shape[1], 1)  # (B, H, S, E)
    B, H, S, E = v.shape
    if wiring.splits:
        apart = torch.zeros(B, H, S, H, E, dtype=torch.float64)
        for h in range(H):
            apart[:, h, :, h] = v[:, h]
        columns = apart.reshape(B, H * S, H * E)  # each weight's own contribution to the merged heads
        if wiring.out is not None:
            columns = columns @ wiring.out.weight.detach().double()
            output = output if wiring.out.bias is None else output - wiring.out.bias.detach().double()
        if columns.shape[1] > columns.shape[2]:
            return None
        solved: Tensor = torch.linalg.lstsq(columns.mT, output.mT).solution  # (B, H·S, T)
        if float((columns.mT @ solved - output.mT).abs().max()) > 1e-4:
            return None
        return solved.view(B, H, S, -1).transpose(-2, -1)
    shares: Tensor = torch.linalg.lstsq(v.mT, output.mT).solution
    return shares.mT if float((v.mT @ shares - output.mT).abs().max()) < 1e-4 else None


def _before_projection(outputs: list[Tensor], question: Question, intent: Intent) -> bool:
    """Whether dropout acted on the merged heads, before the output projection."""
    wiring = intent.wiring
    if wiring.out is None or wiring.out.weight.shape[0] != wiring.out.weight.shape[1]:
        return False
    with torch.no_grad():
        calm = RIGHT.answer(intent.read(question).to(torch.float64), wiring)
        bias = 0.0 if wiring.out.bias is None else wiring.out.bias.double()
        back = torch.linalg.pinv(wiring.out.weight.double())
        merged = (calm.output - bias) @ back
        ratios = torch.stack([((output - bias) @ back) / merged for output in outputs])
    return _among(ratios, (0.0, 1 / (1 - P)))
