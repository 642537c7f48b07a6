"""Dropout: inactive in eval, active in training, on the weights, scaled by 1/(1 − p)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    describe_difference,
    relative_difference,
    relative_error,
)
from regard.checker.oracle.question import Question
from regard.checker.probes.behaviour import change_part
from regard.checker.probes.dropout_effect import (
    OUTPUT_DROPOUT,
    UNSCALED,
    Draw,
    P,
    as_number,
    check_rate,
    draw_outputs,
    dropouts,
    function_draw,
    infer_effect,
    is_near,
    number_of,
    rate_argument,
    training_run,
)
from regard.checker.probes.gradients import GRADIENT_TOLERANCE, derivative_error, output_gradients
from regard.checker.session import CheckSession
from regard.checker.subject.call_tensors import copy_module
from regard.checker.subject.subject import CallMonitor, Reply
from regard.support.torch_internals import BatchNorm

_PLACE = "dropout in training"


def probe_dropout(session: CheckSession) -> None:
    """Check dropout in eval mode and in training mode."""
    if session.module is None:
        _check_function(session)
        return
    groups = dropouts(session.module)
    places = [place for group in groups.values() for place in group]
    # Few keys, so that the output determines the weights: see `dropout_effect`.
    question = session.cases.plain("dropout", B=2, T=3, seed=60).to(session.dtype)
    if difference := _variation(session, question, _with_dropout(session, places, P, training=False)):
        session.find("dropout-in-eval", "eval is deterministic", distance=difference / TOLERANCE)
    else:
        session.add_pass("eval is deterministic")
    _check_training(session, places)
    _check_gradients(session, places)
    if check_rate(session, question) or not places:
        return
    acting = {
        name: group
        for name, group in groups.items()
        if _variation(session, question, _with_dropout(session, group, P, training=True))
    }
    if not acting:
        session.find("dropout-never-acts", _PLACE, distance=UNSCALED, places="`, `".join(groups))
    elif session.right_intent is None:
        session.add_skip(_PLACE, "its place can be inferred only where the output is the oracle's")
    else:
        draws = {
            name: training_run(session.compared, question, _with_dropout(session, group, P, training=True))
            for name, group in acting.items()
        }
        _check_place(session, session.right_intent, question, draws)


def _check_training(session: CheckSession, places: list[str]) -> None:
    """Check that training mode gives the output of eval mode, on every question whose output is right.

    Dropout is disabled, once with the rates that the module has, and once with a rate that a branch for
    dropout would see.
    """
    assert session.module is not None
    # PyTorch has no public name for the base class of BatchNorm1d, 2d and 3d and SyncBatchNorm.
    if any(isinstance(part, BatchNorm) for part in session.module.modules()):
        return  # it is meant to differ
    plain = session.cases.plain("training", seed=61)
    own = session.subject.runnable(session.dtype)
    assert own is not None
    error = _training_error(session, plain, own)
    if error is not None and not error < TOLERANCE:
        session.add_failure("training mode", f"without dropout, the output {describe_difference(error)}")
        return
    modules = [own] + ([_with_dropout(session, places, _SMALL, training=True)] if places else [])
    for module in modules:
        error = _training_error(session, plain, module)
        if error is not None and not error < TOLERANCE:
            continue  # what it does at a rate of dropout is judged by the place of the dropout
        for name, question in session.right_questions.items():
            if error is None:  # it is random by means of its own
                failure = _leak_in_training(session, question, places)
            else:
                found = _training_error(session, question, module) or 0.0
                failure = "" if found < TOLERANCE else f"the output {describe_difference(found)}"
            if failure:
                session.add_failure("training mode", f"{name}: right in eval mode, but in training {failure}")
                return
    if error is not None:
        session.add_pass("training mode", "without dropout, the same output as in eval mode")


# So low that hardly ever all keys of a query are dropped before the softmax, as DropKey does.
_SMALL = 0.01


def _training_error(session: CheckSession, question: Question, module: nn.Module) -> float | None:
    """Return how far the output in training, without dropout, is from that in eval; None if it is random."""
    question = question.to(session.dtype)
    before = session.subject.run(question, module=copy_module(module).eval()).answer
    first, second = (
        session.subject.run(question, module=copy_module(module).train()).answer for _ in range(2)
    )
    if before is None or first is None or second is None:
        return None
    # A row without a visible key may be NaN, which is unequal to itself.
    if not torch.equal(first.output.nan_to_num(7.0), second.output.nan_to_num(7.0)):
        return None
    return relative_error(first, before._replace(free=_free_rows(session, question)))


def _free_rows(session: CheckSession, question: Question) -> Tensor | None:
    """Return the rows (…, T, 1) without a right output: those without a visible key, and of padding."""
    free, padded = None, question.padded_rows
    if session.right_intent is not None and session.compared is session.subject:
        free = session.right_intent.answer(question).free
    return free if padded is None else padded if free is None else free | padded


def _leak_in_training(session: CheckSession, question: Question, places: list[str]) -> str:
    """Return which keys have an influence on the output in training, with dropout, and not in eval."""
    question = question.to(session.dtype)

    def changed_rows(token: int, seed: int | None) -> Tensor | None:
        outputs = []
        for asked in (question, question.map_keys(partial(change_part, axis=-2, part=token))):
            torch.manual_seed(seed or 0)
            module = _with_dropout(session, places, _SMALL, training=seed is not None)
            answer = session.subject.run(asked, module=module, dropout=True).answer
            if answer is None:
                return None
            outputs.append(answer.output.detach())
        return (outputs[0] - outputs[1]).abs().nan_to_num(1.0).amax(-1) > 1e-6

    # A causal mask and padding on the right hide the last key, padding on the left the first.
    for token in (0, question.k.shape[-2] - 1):
        before, *after = (changed_rows(token, seed) for seed in (None, 1, 2))
        if before is None or any(rows is None for rows in after):
            return ""
        if bool(torch.stack([rows for rows in after if rows is not None]).all(0)[~before].any()):
            return f"rows from which key {token} is hidden change with it"
    return ""


def _check_gradients(session: CheckSession, places: list[str]) -> None:
    """Compare gradients in training, with dropout, with differences of outputs for the same random numbers.

    They must be right in eval, and the same in training without dropout: then a backward pass that was
    written by hand has forgotten which numbers the forward pass has dropped.
    """
    if not session.has_passed("gradients"):
        return
    if failure := _training_gradient_failure(session, places):
        session.add_failure("gradients in training", failure)
        return
    # Differences of outputs in float32 are too coarse to accuse a gradient.
    if session.dtype != torch.float64:
        return
    question = session.cases.plain("gradients in training", seed=62)

    def run(question: Question, p: float = P) -> Reply:
        torch.manual_seed(0)
        module = _with_dropout(session, places, p, training=True)
        return session.subject.run(question, module=module, dropout=p > 0)

    outputs = [reply.answer.output for reply in (run(question), run(question)) if reply.answer is not None]
    if len(outputs) < 2 or not torch.equal(*outputs):
        return  # it is random by other means
    measured = derivative_error(run, question)
    if isinstance(measured, str):
        return
    if measured[1]:
        session.add_pass("gradients in training", f"with dropout, to {measured[0]:.0e}")
        return
    plain = derivative_error(partial(run, p=0.0), question)
    if isinstance(plain, str) or not plain[1]:
        return  # in training it stops gradients on purpose, or is not smooth
    session.add_failure(
        "gradients in training",
        f"with dropout they differ from the differences of outputs by {measured[0]:.1g}, though they are "
        "right without: the backward pass must know what the forward pass has dropped",
    )


def _training_gradient_failure(session: CheckSession, places: list[str]) -> str:
    """Return which gradient in training, without dropout, is another than in eval; "" if none is.

    A gradient that is only scaled may be meant: CogView and GLM-130B shrink those of their embeddings, by
    `x * a + x.detach() * (1 - a)`.
    """
    question = session.cases.plain("gradients in training", seed=63).to(session.dtype)
    sides: list[dict[str, Tensor]] = []
    outputs: list[Tensor] = []
    for training in (False, True):
        module = _with_dropout(session, places, 0.0, training=training)
        tracked = question.map_inputs(lambda x: x.clone().requires_grad_())
        inputs = {"the values": tracked.v, "the keys": tracked.k, "the queries": tracked.q}
        # In self-attention the three are one tensor, which has one gradient.
        inputs = {name: x for name, x in inputs.items() if x is not tracked.q or name == "the queries"}
        named = {f"`{name}`": x for name, x in module.named_parameters() if x.requires_grad}
        answer = session.subject.run(tracked, module=module).answer
        with CallMonitor(dropout=False):  # torch.utils.checkpoint runs the code again in the backward pass
            gradients = "" if answer is None else output_gradients(answer.output, inputs | named)
        if answer is None or isinstance(gradients, str):
            return f"the backward pass fails: {gradients}" if training and gradients and outputs else ""
        outputs.append(answer.output.detach())
        sides.append(gradients)
    if not relative_difference(outputs[1], outputs[0]) < TOLERANCE:
        return ""  # it is random, or was found wrong already
    largest = max(float(x.abs().max()) for x in sides[0].values())
    for name, want in reversed(sides[0].items()):
        got, size = sides[1][name], float(want.abs().max())
        if size < GRADIENT_TOLERANCE * largest:
            continue  # that of a key's bias is 0 but for rounding
        factor = (got * want).sum() / (want * want).sum()
        if not float(got.abs().max()) > GRADIENT_TOLERANCE * size:
            return f"the gradient of {name} is 0, and in eval mode it is not"
        if not float(factor) > 0 or relative_difference(got, factor * want) > GRADIENT_TOLERANCE:
            error = describe_difference(relative_difference(got, want))
            return f"the gradient of {name} {error}, from that in eval mode, though the output is the same"
    return ""


def _check_function(session: CheckSession) -> None:
    """Check that a function gives the same output twice, and that it drops at the rate of its argument."""
    question = session.cases.plain("deterministic", B=2, T=3, seed=60).to(session.dtype)
    first, second = (session.subject.run(question, dropout=True).answer for _ in range(2))
    if first is None or second is None:
        return
    if difference := relative_error(first, second):
        session.find("dropout-in-eval", "deterministic", distance=difference / TOLERANCE)
        return
    session.add_pass("deterministic")
    if "dropout" not in session.subject.arguments or check_rate(session, question):
        return
    if not (name := rate_argument(session)):
        return
    # The Annotated Transformer's `attention(query, key, value, mask, dropout)` takes a layer.
    draws = (function_draw(session, question, name, value) for value in (P, nn.Dropout(P)))
    draw = next((draw for draw in draws if draw(0) is not None), None)
    check = f"argument {name}"
    if draw is None:
        session.add_untried(check, f"`{name}={P}` raises an error; try it yourself")
    elif session.right_intent is None:
        session.add_skip(check, "its place can be inferred only where the output is the oracle's")
    elif all(torch.equal(output, draw_outputs(draw, [0])[0]) for output in draw_outputs(draw, range(1, 4))):
        session.add_untried(check, f"nothing is dropped at `{name}={P}`")
    else:
        _check_place(session, session.right_intent, question, {name: draw})


def _with_dropout(session: CheckSession, places: list[str], p: float, *, training: bool) -> nn.Module:
    """Return a copy of the module with these dropouts at p and the others at 0."""
    own = session.subject.module_as(session.dtype)
    assert own is not None
    module = copy_module(own)
    for place in (place for group in dropouts(own).values() for place in group):
        setattr(*number_of(module, place), as_number(place, p if place in places else 0.0))
    return module.train(training)


def _variation(session: CheckSession, question: Question, module: nn.Module) -> float:
    """Return the largest relative difference between several calls with the same input."""
    outputs = draw_outputs(training_run(session.subject, question, module), range(3))
    return max((relative_difference(outputs[0], other) for other in outputs[1:]), default=0.0)


def _check_place(session: CheckSession, intent: Intent, question: Question, draws: dict[str, Draw]) -> None:
    """Check where each dropout acts: it should be on the weights, or on the layer's output by its name."""
    effects = {name: infer_effect(intent, question, draw) for name, draw in draws.items()}
    # Weights that are not rescaled have the factor 1, which is no reason to doubt where the dropout acts.
    where = {
        name: "unknown" if effect.factor and not is_near(effect.factor, 1 / (1 - P)) else effect.place
        for name, effect in effects.items()
    } | {name: effect.place for name, effect in effects.items() if effect.place == "dropout-not-rescaled"}
    on_weights = [place for place, act in where.items() if act == "weights"]
    for place, act in where.items():
        if act in ("dropout-on-scores", "dropout-not-rescaled"):
            session.find(act, _PLACE, distance=effects[place].distance, place=place)
            return
    late = [
        place
        for place, act in where.items()
        if act == "dropout-on-output" and not OUTPUT_DROPOUT.search(place)
    ]
    # Beside dropout on the weights, one on the output is the usual residual dropout, whatever its name.
    if late and not on_weights:
        session.find("dropout-on-output", _PLACE, place=late[0])
    elif "keys" in where.values():
        place = next(place for place, act in where.items() if act == "keys")
        session.add_pass(_PLACE, f"`{place}` hides keys before the softmax, as DropKey does")
    elif on_weights:
        session.add_pass(_PLACE, f"`{on_weights[0]}` acts on the weights, scaled by 1/(1 − p)")
    elif all(act in ("dropout-on-output", "after the projection") for act in where.values()):
        session.add_pass(_PLACE, f"`{next(iter(draws))}` acts on the output of the layer")
    else:
        session.add_skip(_PLACE, f"where `{next(iter(draws))}` acts could not be inferred from the output")
