"""When a wrong output proves nothing: a mask of its own, an unknown form, unknown projections."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from regard.checker.interpretation.intent import TOLERANCE, Intent, Observation
from regard.checker.interpretation.understand import NEARLY_RIGHT, observe
from regard.checker.probes.dependence import visible_tokens
from regard.checker.probes.output_comparison.failure import COMPARE
from regard.checker.reports.evidence import computes_weights, declares_softmax
from regard.checker.session import CheckSession


def only_masks(wrong: dict[str, float]) -> bool:
    """Return whether all is right but masks, and these not only where the sequence is longer."""
    short = {"mask", "padding"}
    return bool(wrong.keys() & short) and wrong.keys() <= short | {"mask, longer sequence"}


def _check_masks_of_items(session: CheckSession, observations: list[Observation]) -> bool:
    """Find a mask that is right for every sequence alone and wrong for a batch; returns whether it is."""
    for observation in observations:
        items = list(observation.question.items())
        if observation.question.padding is None or len(items) < 2:
            continue
        alone = observe(session.compared, items, session.dtype)
        if len(alone) == len(items) and all(session.error(item) < TOLERANCE for item in alone):
            evidence = "With a mask, every sequence is right alone and wrong in a batch: masks are exchanged."
            session.add_pass("output")
            session.add_mistake("mask", "wrong in a batch", "batch-items-mixed", evidence)
            return True
    return False


def is_undecided(
    session: CheckSession,
    observations: list[Observation],
    wrong: dict[str, float],
    unknown: str,
    evidence: str,
) -> bool:
    """Record why there is no verdict, if no mistake explains a wrong output and there is a doubt."""
    if "output" not in wrong:
        nan = any(
            o.question.name in wrong and not bool(o.answer.output.isfinite().any()) for o in observations
        )
        # No convention of masks gives NaN everywhere.
        if nan or not only_masks(wrong):
            return False
        if _check_masks_of_items(session, observations):
            return True
        name = session.subject.arguments.get("mask", session.subject.arguments.get("padding", "mask"))
        session.undecided = (
            f"without a mask its output is right, but what `{name}` does is no usual convention; pass a "
            "function in which True means may look, (T, S) or (B, 1, T, S)"
        )
        session.add_skip("mask", f"what `{name}` does could not be found out")
        session.add_pass("output")
        return True
    if max(wrong.values()) < NEARLY_RIGHT and not unknown:
        return False  # precision is lost
    declared = declares_softmax(session)
    if evidence and (unknown or not declared):
        session.undecided = f"this is not softmax attention: {evidence}; {COMPARE}"
    elif unknown:
        session.undecided = f"the oracle cannot reproduce {unknown}; {COMPARE}"
    elif declared or _weights_establish(session) or any(c.name == "keys" for c in session.checks):
        return False
    else:
        session.undecided = f"{NO_FORM}; {COMPARE}"
    session.add_skip("output", "there is nothing to compare it with")
    return True


def _weights_establish(session: CheckSession) -> bool:
    """Return whether softmax attention is evidently meant: its weights are computed, in their usual place.

    In a module they may be a part of something else (the set transformer adds the queries to the heads).
    """
    observed = session.understanding.observed
    usual = session.module is None or (observed is not None and observed.as_named)
    return usual and computes_weights(session)


NO_FORM = (
    "no form of softmax attention and no known mistake gives its numbers, and it does not call itself scaled "
    "dot-product attention: it may be another kind, such as linear or approximate attention"
)


def own_mask(
    session: CheckSession, observations: list[Observation], wrong: dict[str, float]
) -> Tensor | None:
    """Return which keys each query sees (T, S), if wrong outputs are right with such a mask; else None.

    Local, strided and block-sparse attention has masks of its own. Only outputs without options count.
    """
    failed = [o for o in observations if o.question.name in wrong]
    options = {"mask", "padding", "bias", "window", "softcap", "flag", "sinks", "lengths", "splits"}
    options -= session.cases.always.keys() & {"window", "softcap"}  # what the code declares of itself
    optional = [o for o in failed if any(getattr(o.question, name) is not None for name in options)]
    # `visible_tokens` runs the code once for each key.
    if optional or any(o.question.k.shape[-2] > 64 for o in failed):
        return None
    seen = [visible_tokens(session, o.question) for o in failed]
    masks = [visible for visible in seen if visible is not None]
    hiding = [visible for visible in masks if not bool(visible.all())]

    def explains(intent: Intent, observation: Observation, visible: Tensor) -> bool:
        open_intent = replace(intent, causal=False, window=None, rule=None)
        question = replace(observation.question, mask=visible, window=None, rule=None)
        return open_intent.error(question, observation.answer) < TOLERANCE

    # There are fewer masks where the code failed; then nothing counts as explained.
    pairs = list(zip(failed, masks, strict=False))
    explained = len(masks) == len(failed) and any(
        all(explains(intent, *pair) for pair in pairs) for intent in session.understanding.intents
    )
    return hiding[0] if hiding and explained else None


def judge_own_mask(session: CheckSession, visible: Tensor) -> None:
    """Record softmax attention with a mask that no rule gives: wrong if it shows the future alone."""
    if bool(visible.triu(1).any()) and not bool(visible.tril(-1).any()):
        evidence = "Every query sees its own key and later ones, and no earlier one."
        session.add_mistake("output", "only the future is visible", "inverted-mask", evidence)
        return
    session.undecided = f"it is softmax attention with a mask that the check does not know; {COMPARE}"
    session.add_skip("output", "which keys should be visible is not known")
