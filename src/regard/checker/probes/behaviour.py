"""Mistakes that show in what the code does beside its reference: what it sees, and how it rounds.

They have a name although no formula of the attention is known. Which outputs change with which inputs tells
what a mask or a grouping does. An intervention changes one step of the code while it runs, until its output
agrees with the reference's: the change that repairs it names the mistake of a scale or an axis.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.checker.diagnose import minimise_scale
from regard.checker.interpretation.understand import NEARLY_RIGHT
from regard.checker.oracle.oracle import Observation, relative_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.subject import CallHook

HEAD_AXIS, TOKEN_AXIS = -3, -2  # of (B, H, T, D)


def dependence(session: CheckSession, question: Question, axis: int = TOKEN_AXIS) -> Tensor | None:
    """Return which outputs depend on which tokens of the keys: boolean (T, S); or on which heads, (H, G).

    In self-attention a token is also a query, so the diagonal is always True. None if the code fails.
    """
    question = question.to(session.dtype)
    with torch.no_grad():
        before = session.subject.run(question).answer
        columns = []
        for index in range(question.k.shape[axis]):
            changed_keys = question.map_keys(partial(change_part, axis=axis, part=index))
            after = session.subject.run(changed_keys).answer
            if before is None or after is None:
                return None
            # A number that becomes NaN depends on the token, too, and NaN > 1e-9 is False.
            changed = (after.output - before.output).abs().nan_to_num(1.0) > 1e-9
            columns.append(changed.movedim(axis, 0).flatten(1).any(1))
    return torch.stack(columns, 1)


def change_part(x: Tensor, axis: int, part: int | slice) -> Tensor:
    """Return a copy of a tensor with other numbers in a part of one of its axes."""
    changed = x.clone()
    # A norm before the projections would undo a positive factor or a shift alone, but not the sign.
    changed.movedim(axis, 0)[part].mul_(-1.5).add_(1.0)
    return changed


def name_difference(question: Question, got: Tensor, want: Tensor) -> str | None:
    """Return the mistake by which rows see the keys `got` instead of `want`, both (T, S), or None."""
    T, S = want.shape
    extra, missing = got & ~want, want & ~got
    every = torch.ones(T, S, dtype=torch.bool)
    own = _diagonal(every, S - T)  # each query's own position
    if not bool((extra | missing).any()):
        return None
    if question.padding is not None and bool((extra & ~question.padding.all(0)).any()):
        return "padded-keys-leak"
    if question.window is not None:
        edges = [_diagonal(every, offset) for offset in range(-T, S - T)]
        if any(torch.equal(extra | missing, edge) for edge in edges):
            return "window-off-by-one"
        if bool(extra.any()) and not bool((extra & every.triu(S - T + 1)).any()):
            return "window-dropped"
    if torch.equal(missing, own) and not bool(extra.any()):
        return "missing-diagonal"
    if torch.equal(extra, _diagonal(every, S - T + 1)) and not bool(missing.any()):
        return "one-token-ahead"
    # In self-attention an output depends on its own token by its query, whatever the mask hides.
    if question.mask is not None and torch.equal(got | own, ~want | own):
        return "inverted-mask"
    if T == S and torch.equal(got, want.mT):
        return "transposed-mask"
    if T < S and torch.equal(got, want & every.tril()):
        return "top-left-causal"
    return "no-mask" if not bool(missing.any()) and (T == S or bool(got.all())) else None


def _diagonal(every: Tensor, offset: int) -> Tensor:
    return every.tril(offset).triu(offset)


_AXES = {-2: "softmax-over-queries", 1: "softmax-over-heads", 0: "softmax-over-batch"}


def intervene_in_softmax(factor: float = 1.0, axes: set[int] | None = None) -> CallHook:
    """Return a hook that multiplies what softmax is given while the code runs.

    With `axes` it also moves the axis to the last one; the set then holds the axes over which softmax was
    taken, counted from the end where they are the last two.
    """

    def call(name: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if name == "softmax":
            scores, *rest = args
            axis = int(kwargs.pop("dim", rest.pop(0) if rest else -1))
            if axes is not None:
                axes.add(axis - scores.ndim if axis >= scores.ndim - 2 else axis)
            args = (scores * factor, axis if axes is None else -1, *rest)
        elif name == "scaled_dot_product_attention" and args:
            if axes is not None:
                axes.add(-1)
            # The scores are inside; scaled queries scale them.
            args = (args[0] * factor, *args[1:])
        return func(*args, **kwargs)

    return CallHook(call)


def name_by_intervention(
    session: CheckSession, reference: Reference, question: Question
) -> tuple[str, str] | None:
    """Return the mistake whose repair makes the code agree with its reference, and the evidence; or None.

    The code's softmax is changed until its output agrees, on this question and on one of another size.
    """
    other = with_options(session.cases.plain(B=3, T=5, D=6, H=2, seed=3), question)
    # The reference answers before, since it must not be changed.
    expected = [(q, answer) for q in (question, other) if (answer := reference.answer(q)) is not None]
    tolerance = session.tolerance

    def error(index: int, factor: float = 1.0, axes: set[int] | None = None) -> float:
        asked, wanted = expected[min(index, len(expected) - 1)]
        with intervene_in_softmax(factor, axes):
            answer = session.subject.run(asked.to(session.dtype)).answer
        return float("inf") if answer is None else relative_error(answer, wanted)

    axes: set[int] = set()
    repaired = max(error(index, axes=axes) for index in (0, 1))
    if not axes:
        return None
    for axis in axes & _AXES.keys():
        if repaired < tolerance:
            return _AXES[axis], f"With softmax over the keys, not over axis {axis}, it equals your reference."
    factors = []  # by which the code's scores are the reference's, if that is all that differs
    for index in (0, 1):
        repair = minimise_scale(partial(error, index))
        if repair is None or not error(index, repair) < tolerance:
            return None
        factors.append(1 / repair)
    squares = [max(factor, 1 / factor) ** 2 for factor in factors]
    width = round(squares[0])
    exact = abs(squares[0] - width) < 1e-2
    # Without the widths of heads, the square of a factor that is a whole number is taken for one.
    by_width = exact and width >= 4
    if other.q.ndim == 4:
        widths = (question.q.shape[-1], other.q.shape[-1])
        by_width = all(abs(s / D - 1) < 1e-3 for s, D in zip(squares, widths, strict=True))
    name = ("no-scale" if factors[0] > 1 else "scaled-twice") if by_width else "constant-scale"
    shown = ("" if factors[0] > 1 else "1/") + f"√{width}" if exact else f"{factors[0]:.4g}"
    return name, f"Its scores are {shown} times your reference's; but for that the outputs are equal."


# The fields of a question that the same question of another size has, too.
OPTIONS = ("flag", "window", "ahead", "softcap", "scale", "extra")


def with_options(question: Question, other: Question) -> Question:
    """Return a question with the options of another one."""
    return replace(question, **{name: getattr(other, name) for name in OPTIONS})


def name_by_behaviour(session: CheckSession, reference: Reference, wrong: list[Observation]) -> None:
    """Name the mistakes behind answers that differ from the reference's."""
    for observation in wrong:
        question = observation.question
        if question.name == "empty rows":
            expected = reference.answer(question)
            assert expected is not None
            # The row without a visible key is the second one.
            got, wanted = (x.output[..., 1, :] for x in (observation.answer, expected))
            if bool(got.isnan().any()) and bool(wanted.isfinite().all()):
                evidence = f"A query without a visible key gives NaN; in {reference.name} it gives numbers."
                session.add_diagnosis("empty-row-nan", evidence)
            continue
        if question.extra or question.scale is not None or session.mixed:
            continue
        name_visibility(session, reference, question)
        if question.q.ndim == 4 and question.k.shape[1] < question.q.shape[1]:
            _name_groups(session, reference, question)
    if session.diagnoses or session.mixed:
        return
    if found := name_by_intervention(session, reference, wrong[0].question):
        session.add_diagnosis(*found)
    worst = max(session.error(observation) for observation in wrong)
    if worst < NEARLY_RIGHT and not session.diagnoses and _jumps(session, reference):
        evidence = (
            f"The output agrees with {reference.name} only to {worst:.0e}, and tiny changes of the inputs "
            "do not change it smoothly: it is rounded on the way."
        )
        session.add_diagnosis("precision-lost", evidence, worst)


def name_visibility(session: CheckSession, reference: Reference, question: Question) -> None:
    """Name the mistake by which outputs see other tokens than the reference's, if there is one."""
    got, want = (dependence(s, question) for s in (session, reference.session))
    if got is None or want is None or not (name := name_difference(question, got, want)):
        return
    row, token = (int(i) for i in (got != want).nonzero()[0])
    seen = bool(got[row, token])
    verb, other = ("depends", "does not") if seen else ("does not depend", "does")
    evidence = f"In “{question.name}” output {row} {verb} on token {token}; your reference's {other}."
    session.add_diagnosis(name, evidence)


def _name_groups(session: CheckSession, reference: Reference, question: Question) -> None:
    got, want = (dependence(s, question, HEAD_AXIS) for s in (session, reference.session))
    if got is None or want is None or torch.equal(got, want):
        return
    H, G = got.shape
    tiled, interleaved = torch.eye(G, dtype=torch.bool).repeat(H // G, 1), torch.arange(H) // (H // G)
    if torch.equal(got, tiled) and torch.equal(want, interleaved[:, None] == torch.arange(G)):
        evidence = "Query head 1 reads key/value head 1; your reference's reads head 0."
        session.add_diagnosis("grouped-heads-tiled", evidence)


def _jumps(session: CheckSession, reference: Reference) -> bool:
    """Return whether tiny changes of the inputs change the output by steps, unlike the reference's."""
    if session.dtype != torch.float64:
        return False
    question = session.cases.plain(seed=17)
    # Less than a step of float32, 1.2e-7: an output that was rounded on the way stays or jumps.
    near = question.map_inputs(lambda x: x * (1 + 1e-7))
    changes = []
    for side in (session, reference.session):
        before, after = (side.subject.run(q.to(side.dtype)).answer for q in (question, near))
        if before is None or after is None:
            return False
        changes.append((after.output - before.output).detach().double())
    return relative_difference(*changes) > 0.5
