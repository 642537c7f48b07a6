"""Puts together what inside and outside say to each question that a batch asks."""

from __future__ import annotations

import torch

from regard.attention.masks.base import Mask
from regard.auditor.batch import IGNORED, TextBatch
from regard.auditor.expectation import mask_parts
from regard.auditor.inside import LayerReading
from regard.auditor.result import QUESTIONS, Audit, ReadingAnswer

INSIDE = ("future", "documents", "padding", "window", "given", "hidden")


def answer(result: Audit, text: TextBatch, order: bool | None, expect: Mask | None, all_heard: bool) -> None:
    """Put together what inside and outside say to each question that the batch asks."""
    judged = [x for x in result.layers if x.kind != "other"]
    outside = result.outside
    for question in QUESTIONS:
        asked = [x for x in judged if question in x.asked]
        inside: bool | None = None
        evidence = outside.evidence.get(question, "")
        if question in INSIDE and asked:
            wrong = [x for x in asked if question in x.wrong and x.certified]
            # A linear layer's mask does not say what it keeps of other documents and of padding.
            is_told = question not in ("documents", "padding") or not any(x.is_linear for x in judged)
            inside = False if wrong else True if all_heard and is_told else None
            evidence = _inside_evidence(question, wrong, len(asked)) if wrong else evidence
        elif question == "sinks":
            lost = [x for x in judged if x.lost]
            inside = False if lost else None
            evidence = ", ".join(str(x.key) for x in lost)
        elif question == "targets":
            found = _crossing_targets(text)
            inside = None if found is None else not found
            evidence = "" if not found else f"{len(found)} targets, the first at position {found[0][1]}"
        out = outside.answers.get(question)
        if inside is None and out is None and not _is_relevant(question, text, order, expect, judged):
            continue
        result.answers.append(ReadingAnswer(question, inside, out, evidence))


def _is_relevant(
    question: str, text: TextBatch, order: bool | None, expect: Mask | None, judged: list[LayerReading]
) -> bool:
    """Return whether a question must be answered before the verdict can be "right"."""
    if question == "future":
        return bool(order) and text.shape[1] > 1
    if question == "documents":
        return text.documents is not None
    if question == "padding":
        return text.has_padding
    parts = {} if expect is None else mask_parts(expect)
    if question == "given":
        return "given" in parts or text.given_mask is not None
    if question == "window" and "window" in parts and not judged:
        return True
    return question == "window" and any(
        x.expected_window is not None and x.expected_window < text.shape[1] for x in judged
    )


def _inside_evidence(question: str, wrong: list[LayerReading], asked: int) -> str:
    """Describe the cells of the layers that are wrong, in a sentence."""
    layer = wrong[0]
    cells = layer.wrong[question]
    assert cells.first is not None
    b, q, k = cells.first
    names = ", ".join(str(x.key) for x in wrong[:4]) + (", …" if len(wrong) > 4 else "")
    verb = "does not see" if question == "hidden" else "sees"
    where = f"{len(wrong)} of {asked} layers ({names})"
    where = f"{where}; in layer {layer.key}, query {q} of text {b} {verb} key {k}"
    shares = {x.key: x.shares[question] for x in wrong if question in x.shares}
    if not shares:
        return f"{where}, one of {cells.number:,} cells"
    key = max(shares, key=lambda key: float(shares[key].max()))
    head = int(shares[key].argmax())
    share = float(shares[key].max())
    return (
        f"{where}, one of {cells.number:,} cells; head {key}.{head} gives them {share:.0%} of its attention"
    )


def _crossing_targets(text: TextBatch) -> list[tuple[int, int]] | None:
    """Return the targets (text, position) that are predicted from another document; None if not asked."""
    labels, documents = text.labels, text.documents
    if labels is None or documents is None or text.source is not None:
        return None
    ids, real = text.ids.cpu(), text.real
    border = (documents[:, 1:] != documents[:, :-1]) & real[:, 1:] & real[:, :-1]
    used = labels != IGNORED
    # Labels that a trainer has shifted itself stand one token earlier.
    here = (labels == ids)[used].float().mean() if bool(used.any()) else torch.tensor(1.0, device="cpu")
    ahead = (labels[:, :-1] == ids[:, 1:])[used[:, :-1]].float().mean() if bool(used[:, :-1].any()) else here
    targets = used[:, :-1] if float(ahead) > float(here) else used[:, 1:]
    return [(b, t + 1) for b, t in (targets & border).nonzero().tolist()]


def decide(result: Audit, text: TextBatch, order: bool | None, said: str, expect: Mask | None) -> None:
    """Say why there is no verdict, if something that the batch asks was not answered."""
    if result.diagnoses:
        differing = [a for a in result.answers if a.differs]
        result.notes += [
            f"inside and outside differ on whether {QUESTIONS[a.question]}: "
            f"{result.outside.evidence.get(a.question, '')}"
            for a in differing
        ]
        return
    unanswered = [
        a for a in result.answers if a.right is None and a.question not in ("hidden", "sinks", "targets")
    ]
    failed = [a for a in result.answers if a.right is False]
    if failed:
        first = failed[0]
        known = "and no known mistake explains it"
        result.undecided = f"it is not so that {QUESTIONS[first.question]}, {known}: {first.evidence}"
    elif order is None and expect is None and text.given_mask is None:
        result.undecided = said
    elif unanswered:
        why = next(iter(result.not_heard), "") or next((x.why for x in result.layers if not x.certified), "")
        result.undecided = f"whether {QUESTIONS[unanswered[0].question]} could not be found out; {why}"
    # Such layers may attend over anything, as over the batch, of which changed tokens show a part only.
    elif result.layers and not any(x.is_compared for x in result.layers):
        result.undecided = f"no attention layer could be compared: {result.layers[0].why}"
    elif not result.answers:
        result.undecided = "no layer was heard, and no change showed in its outputs"
