"""Lesson 5: a head, and the learner's own check of heads, which is tried on right heads and on wrong ones."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from regard.checker.catalogue import get_mistake
from regard.learn.judges.common.first_run import OutputShape, first_run
from regard.learn.judges.common.guesses import guess_task
from regard.learn.judges.common.inputs import draw
from regard.learn.judges.common.verdicts import (
    attend,
    check_attention,
    drops_weights,
    example_picture,
    named_mistake,
    seeking_keys,
    seeking_queries,
)
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial, WeightPicture
from regard.learn.wrong_ways import WrongWay, define, wrong_ways
from regard.stages.example import WV, X, with_weights

INIT: dict[str, Any] = {"d_model": 24, "head_dim": 8, "max_seq_len": 16, "dropout": 0.1}
CHECK = "check_against_pytorch"
BUFFER = 'self.register_buffer("causal_mask", visible, persistent=False)'
TRIAL_SIZES: dict[str, Any] = {"d_model": 17, "head_dim": 16, "max_seq_len": 512, "dropout": 0.5}
# What a check must reject, the plainest first, as edits of a right head: the ways of its table that are
# mistakes of the catalogue. The others are a right head in which PyTorch attends, and two of other numbers.
WAYS = {way.mistake or way.said: way for way in wrong_ways("head", "Head")}
FUSED, LOWERED, REVERSED = "fused", "lowered", "reversed"
WRONG = tuple(name for name in WAYS if name not in (FUSED, LOWERED, REVERSED))


def trial_head(name: str = "", **sizes: int) -> nn.Module:
    """Return a head on which a learner's check is tried: right, or with the edit of this name."""
    way = WAYS.get(name, WrongWay("", ""))
    head: nn.Module = define("head", "Head", way.right, way.wrong)(**TRIAL_SIZES | sizes)
    return head


def judge_head(thing: Any, module: ModuleType) -> Outcome:
    """Run the head once, then check it."""
    out = OutputShape((2, 6, 8), "(B, T, head_dim)")
    weights = OutputShape((2, 6, 6), "(B, T, T)")
    _check_buffer(thing)
    first_run("Head", thing, INIT, (torch.randn(2, 6, 24),), out, weights)
    done = "a causal head of its own width, with a mask that moves with it and dropout on its weights."
    outcome = check_attention("Head", thing, done, lesson="head", init=INIT, causal=True)
    has_dropped = drops_weights(thing, INIT, torch.randn(2, 6, 24))
    if outcome.mistake == "dropout-on-scores" and has_dropped:
        said = (
            "after dropout your weights are divided by their sum again. Dropout has already enlarged those "
            "that it keeps, by 1 / (1 − p): a row sums to 1 on average, and not each time"
        )
        raise NotDoneError(said, hint="nothing after weights = self.dropout(weights)")
    if outcome.status != "done":
        return outcome
    # The checker accepts dropout wherever it is right on average; the lesson asks for it on the weights.
    if not has_dropped:
        raise named_mistake("dropout-on-values")
    return replace(outcome, picture=_picture(thing))


def _check_buffer(thing: Any) -> None:
    try:
        if "causal_mask" not in dict(thing(**INIT).named_parameters()):
            return
    except Exception:
        return  # any error of the learner's class; it is built again, and the error explained
    said = "`causal_mask` is a parameter: an optimiser changes parameters, and state_dict saves them"
    raise NotDoneError(said, hint=BUFFER)


def _picture(thing: Any) -> WeightPicture:
    """The weights of the learner's head on the running example, in eval mode and in training."""
    # fork_rng: the learner's random state stays as it was.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        head = thing(3, 2, len(X), 0.3)
        with_weights(head, W_q=seeking_queries(), W_k=seeking_keys(0, 1), W_v=WV)
        weights = [attend(head.train(mode), X[None])[1][0] for mode in (False, True)]
    return example_picture(["your weights", "in training, dropout 0.3"], weights)


def judge_check(function: Any, module: ModuleType) -> Outcome:
    """Try the learner's check on right heads, which it must accept, and on wrong ones."""
    if not callable(function):
        raise NotDoneError(f"expected a function, got {function!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _try_check(function)


def _try_check(function: Any) -> Outcome:
    answers = {mistake: _accepts(function, trial_head(mistake).eval()) for mistake in ("", *WRONG)}
    narrow = _accepts(function, trial_head(d_model=40, head_dim=8).eval())
    if all(answer is None for answer in answers.values()):
        said = "it returns None for every head, right or wrong"
        raise NotDoneError(said, hint="return True or False; the last line begins with return")
    if answers[""] is False or (
        narrow is False and _accepts(function, trial_head(FUSED, d_model=40, head_dim=8).eval())
    ):
        _reject(function, [mistake for mistake in WRONG if answers[mistake]])
    if len(set(answers.values())) == 1:
        said = "it accepts every head, right or wrong, so it tells you nothing"
        raise NotDoneError(said, hint="compare out with PyTorch's output for the same q, k and v")
    for mistake in WRONG:
        if answers[mistake] is not False:
            entry = get_mistake(mistake)
            said = f"It accepts a head {entry.what}, which is wrong."
            raise NotDoneError(said, hint=_hint_for_accepted(mistake))
    if _accepts(function, trial_head(LOWERED).eval()) is not False:
        said = "It accepts a head whose outputs are all too small: a difference below 0 is a difference, too."
        raise NotDoneError(said, hint="(out - expected).abs().max() <= 1e-6, or torch.allclose")
    if _accepts(function, trial_head(REVERSED).eval()) is not False:
        said = "It accepts a head whose numbers stand in the opposite order: in a mean, differences cancel."
        raise NotDoneError(said, hint="(out - expected).abs().max() <= 1e-6, or torch.allclose")
    if any(_accepts(function, trial_head().train()) is False for _ in range(3)):
        said = (
            "It rejects a right head that is in training mode: there, dropout changes its output at random."
        )
        raise NotDoneError(said, hint="head.eval() before out = head(x)")
    if narrow is False:
        said = (
            "It accepts a right head of width 16 and rejects one of width 8: something is fixed to one width."
        )
        raise NotDoneError(said, hint="take the widths from head.W_q, not as numbers")
    said = f"it accepts right heads, in training mode too, and rejects {len(WRONG)} wrong ones."
    return Outcome(CHECK, "done", said)


def _accepts(function: Any, head: nn.Module) -> bool | None:
    """Whether the check accepts a head; None if it returns nothing. An AssertionError rejects it."""
    try:
        answer = function(head)
    except AssertionError:
        return False
    if isinstance(answer, Tensor) and answer.numel() != 1:
        raise ValueError(f"expected True or False from {CHECK}, got a tensor {tuple(answer.shape)}")
    return None if answer is None else bool(answer)


def _reject(function: Any, accepted: list[str]) -> NoReturn:
    """Raise what is said of a check that rejects a right head; `accepted` are mistakes that it accepts."""
    if "scaled-twice" in accepted:
        said = "It rejects a right head and accepts one that scales twice: so your reference scales twice."
        hint = "F.scaled_dot_product_attention divides by √head_dim itself: give it q, k and v as they are"
        raise NotDoneError(said, "scaled-twice", hint)
    if "no-mask" in accepted:
        said = (
            "It rejects a right head and accepts one without the causal mask: so your reference has no mask."
        )
        raise NotDoneError(said, "no-mask", "F.scaled_dot_product_attention(q, k, v, is_causal=True)")
    if accepted:
        entry = get_mistake(accepted[0])
        said = f"It rejects a right head and accepts one {entry.what}: so your reference makes that mistake."
        raise NotDoneError(said, entry.name, entry.fix)
    if _accepts(function, trial_head(FUSED).eval()):
        said = (
            "It rejects a right head because the last digits differ: PyTorch adds in another order, so two "
            "right results agree to about 1e-7 and not bit for bit."
        )
        raise NotDoneError(said, hint="torch.allclose(out, expected, atol=1e-6)")
    raise NotDoneError("It rejects every head, the right ones too.", hint=USUAL_SUSPECTS)


USUAL_SUSPECTS = (
    "the usual suspects: dropout is on, q is scaled before PyTorch scales it, is_causal is missing, two of "
    "q, k and v are exchanged, or out and expected come from different x"
)


def _hint_for_accepted(mistake: str) -> str:
    if mistake == "scale-from-model-width":
        return "the outputs of that head are wrong by about 0.01 only: is your tolerance far above 1e-6?"
    if mistake == "dropout-in-eval":
        return "compare the head's own output, out, with PyTorch's"
    return "compare every number of out with PyTorch's output for the same q, k and v, to 1e-6"


TASKS = (
    Task(
        "Head",
        judge_head,
        trials=tuple(Trial((draw(2, 6, 24),), INIT, training=mode) for mode in (False, True)),
    ),
    Task(
        CHECK,
        judge_check,
        summaries=frozenset({USUAL_SUSPECTS}),
        trials=(
            Trial((trial_head().train(),)),
            *(Trial((trial_head(mistake).eval(),)) for mistake in ("", *WRONG[:-1], LOWERED, REVERSED)),
        ),
    ),
    guess_task("head", "row_sum_after_dropout"),
)
