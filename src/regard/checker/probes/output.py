"""Is the output right? Every kind of question once; where one comes out wrong, which mistake explains them
all."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from regard.checker.diagnose import Bench, Match, diagnose, explain_parts
from regard.checker.oracle.oracle import apart, truth
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import RIGHT, Answer
from regard.checker.session import CheckSession
from regard.checker.subject.adapt import of_transformers
from regard.checker.subject.subject import MaskForm, Reply
from regard.checker.understand import TOLERANCE, Intent, Observed

_POSITIONS = re.compile(r"rotary|rope\b|apply_rot|\.cos\(|\.sin\(|alibi|relative_|rel_pos|freqs", re.I)


def probe_output(exam: CheckSession) -> None:
    """The output against the oracle, with every option that the subject offers."""
    if not exam.understood.intents:
        exam.left_out(
            "output",
            "no projections for query, key and value were found by name and shape, so there is no oracle; "
            "give them usual names (q_proj, W_k, value, qkv …) or hand over the function inside",
        )
        return
    observed = _observe(exam)
    wrong = {one.question.name: error for one in observed if not (error := _error(exam, one)) < TOLERANCE}
    if not wrong:
        _shared(exam)
        for name in dict.fromkeys(one.question.name for one in observed):
            exam.passed(name)
        return
    _explain(exam, observed, wrong)


def _shared(exam: CheckSession) -> None:
    """One projection for several roles can be computed rightly and still be a mistake: only the weights tell.
    One projection for several roles can be computed rightly and still be a mistake: only the weights tell."""
    wiring = exam.understood.right.wiring if exam.understood.right is not None else None
    if wiring is None or wiring.query is None:
        return
    query, key, value = wiring.query, wiring.key, wiring.value
    pairs = [(query, key, "query and key"), (key, value, "key and value"), (query, value, "query and value")]
    same = [names for one, other, names in pairs if one is other]
    if same:
        names = "query, key and value" if len(same) == 3 else same[0]
        evidence = f"One projection makes {names}: there is no other."
        exam.found("projections", f"{names} share one", "one-projection", evidence, caution=len(same) < 3)


def _observe(exam: CheckSession) -> list[Observed]:
    """Ask every question that the subject's arguments allow."""
    cases, subject = exam.cases, exam.subject
    observed = [Observed(cases.plain(), _answered(exam.understood.first))]
    single_length = subject.takes == "x" or _causal_unasked(exam)
    questions = [cases.plain(B=3, T=5, D=6, H=2, seed=3)]
    optional: list[Question] = []
    if "causal" in subject.arguments and exam.options.get("causal") is None:
        questions.append(replace(cases.plain("causal", seed=4), flag=True))
    asked: dict[str, Any] = {}
    if "causal" in subject.arguments and exam.options.get("causal") is not False:
        asked["flag"] = True
    if "window" in subject.arguments and "window" not in cases.always:
        questions.append(replace(cases.plain("window", seed=6), window=3, **asked))
    if "softcap" in subject.arguments and exam.module is None and "softcap" not in cases.always:
        questions.append(replace(cases.plain("softcap", seed=7), softcap=2.0, **asked))
    if subject.form in ("BHTD", "BTHD"):
        optional.append(cases.plain("grouped heads", G=2, seed=8))
    if not single_length:
        optional.append(cases.plain("cross-attention", T=4, S=7, seed=9))
    if subject.takes == "qkv" and subject.form not in ("BTC", "TBC"):
        optional.append(cases.plain("value width", E=13, seed=10))
    for question in questions + optional:
        reply = subject.ask(question.to(exam.understood.dtype))
        if reply.answer is not None:
            observed.append(Observed(question, reply.answer))
        elif question in optional:
            exam.left_out(question.name, f"it does not take {question.shapes()}: {reply.trouble}")
        else:
            exam.failed(question.name, f"{question.shapes()} raised {reply.trouble}")
    return observed + _observe_masks(exam, observed)


def _observe_masks(exam: CheckSession, observed: list[Observed]) -> list[Observed]:
    """Settle how the subject wants a mask said, then ask with a mask, with padding, with a bias."""
    found: list[Observed] = []
    subject, cases = exam.subject, exam.cases
    if "mask" in subject.arguments:
        question = brought(exam, cases.masked(seed=11))
        forms = _mask_forms(exam)
        replies = [
            (form, subject.adjusted(mask_form=form).ask(question.to(exam.understood.dtype))) for form in forms
        ]
        ran = [(form, reply) for form, reply in replies if reply.answer is not None]
        if not ran:
            exam.failed(
                "mask", f"no usual form of a mask was taken; a boolean (T, S) raised {replies[0][1].trouble}"
            )
            return found
        form, reply = _best_form(exam, question, ran, observed)
        subject.mask_form = form
        exam.understood.assumed.append(f"{subject.arguments['mask']}: {form}")
        found.append(Observed(question, _answered(reply)))
        _caution_if_added(exam, question, form, ran)
    if "padding" in subject.arguments or ("mask" in subject.arguments and subject.form not in ("TD", "TC")):
        question = brought(exam, cases.padded(seed=12))
        reply = subject.ask(question.to(exam.understood.dtype))
        if reply.answer is not None:
            found.append(Observed(question, reply.answer))
        elif "padding" in subject.arguments:
            exam.failed("padding", f"{question.shapes()} raised {reply.trouble}")
        else:
            exam.left_out("padding", f"it does not take a mask of (B, 1, T, S): {reply.trouble}")
    return found


def brought(exam: CheckSession, question: Question) -> Question:
    """In Transformers a mask that is brought along takes the place of the module's own causality."""
    return replace(question, flag=False) if of_transformers(exam.subject) else question


def _mask_forms(exam: CheckSession) -> list[MaskForm]:
    subject = exam.subject
    settled = exam.options.get("true_means") is not None or subject.mask_form != MaskForm()
    kinds = [subject.mask_form.kind] if settled else ["look", "added", "zero-one"]
    ranks = {"BTC": [2, 3, 4], "TBC": [2], "BTD": [2, 3], "TD": [2], "TC": [2]}.get(subject.form, [2, 4])
    ranks = [subject.mask_form.rank] if settled and subject.mask_form.rank != 2 else ranks
    return [MaskForm(kind, rank) for kind in kinds for rank in ranks]


def _best_form(
    exam: CheckSession, question: Question, ran: list[tuple[MaskForm, Reply]], observed: list[Observed]
) -> tuple[MaskForm, Reply]:
    """The form in which the mask comes out right; else the one that leaves least to explain; else the first.

    Whoever takes a boolean mask must be right with it; only code that adds whatever it is given may want
    floats.
    """
    boolean = [(form, reply) for form, reply in ran if form.kind == "look"]
    honest = [(form, reply) for form, reply in boolean if not _adds(exam, question, reply)]
    others = [(form, reply) for form, reply in ran if form.kind != "look"]
    for form, reply in [*boolean, *(others if not honest else [])]:
        if exam.understood.right is not None:
            if _error(exam, Observed(question, _answered(reply))) < TOLERANCE:
                return form, reply
        elif form.kind != "look":
            together = [*observed, Observed(question, _answered(reply))]
            if diagnose(together, exam.understood.intents, pairs=False):
                return form, reply
    return ran[0]


def _adds(exam: CheckSession, question: Question, reply: Reply) -> bool:
    """Whether a boolean mask was added to the scores as 0 and 1. If the output is wrong anyway, who knows."""
    intent = exam.understood.right
    if intent is None:
        return True
    assert question.mask is not None
    added = intent.read(replace(question, mask=None, bias=question.mask.double()))
    recipes = (RIGHT, replace(RIGHT, masking="scaled"))
    return any(apart(_answered(reply), recipe.answer(added, intent.wiring)) < TOLERANCE for recipe in recipes)


def _caution_if_added(
    exam: CheckSession, question: Question, form: MaskForm, ran: list[tuple[MaskForm, Reply]]
) -> None:
    """Code that adds its mask takes a boolean one without a word, and adds 0 and 1."""
    boolean = next((reply for other, reply in ran if other == MaskForm("look", form.rank)), None)
    if form.kind != "added" or boolean is None or exam.right is None or not _adds(exam, question, boolean):
        return
    name = exam.subject.arguments["mask"]
    converted = re.search(rf"\b{name}\.(float|int|long)\(", exam.source)
    detail = f"a boolean `{name}` is taken without a word and added as 0 and 1"
    if converted:
        detail = f"`{converted.group()})` turns a boolean mask into 0 and 1, and these are added"
    evidence = (
        f"Given a boolean `{name}`, it adds 1 where the mask is True and 0 elsewhere: it hides nothing."
    )
    exam.found("boolean mask", detail, "mask-added-as-zero-one", evidence, caution=not converted)


def _causal_unasked(exam: CheckSession) -> bool:
    return exam.understood.right is not None and exam.understood.right.causal


def _answered(reply: Reply) -> Answer:
    assert reply.answer is not None
    return reply.answer


def _error(exam: CheckSession, one: Observed) -> float:
    """How far an observation is from the truth, under the reading that the plain output is right in."""
    intent = exam.understood.right or exam.understood.intents[0]
    try:
        return apart(one.answer, truth(intent.read(one.question), intent.wiring))
    except (RuntimeError, ValueError):
        return float("inf")


def _explain(exam: CheckSession, observed: list[Observed], wrong: dict[str, float]) -> None:
    intents = [exam.understood.right] if exam.understood.right else exam.understood.intents
    small, unknown = max(wrong.values()) < 3e-2, _unknown(exam, intents[0])
    # Two mistakes at once are looked for only where nothing else explains why one does not fit.
    search = not small and not unknown and not exam.mixed
    matches = diagnose(observed, intents, exam.source, pairs=search)
    if not matches and exam.mixed:
        matches = _alone(exam, intents)
        exam.diagnosed("batch-items-mixed", exam.mixed)
    elif not matches:
        matches = explain_parts(observed, intents, exam.source)
    if not matches and small and not exam.mixed:
        _imprecise(exam, observed, wrong)
        return
    if not matches and unknown and "output" in wrong:
        exam.left_out("output", f"the oracle has no place for {unknown}: compared with itself only")
        return
    for name in dict.fromkeys(one.question.name for one in observed):
        if name in wrong:
            exam.failed(name, _apart_in_words(wrong[name]))
        else:
            exam.passed(name)
    for match in matches[:1] if matches and len(matches[0].names) > 1 else matches[:3]:
        exam.matched(match)
    if not matches and not exam.mixed:
        exam.example = _smallest(exam, observed, intents[0])


def _alone(exam: CheckSession, intents: list[Intent]) -> list[Match]:
    """What is wrong with one sequence by itself, where the items of a batch disturb each other."""
    observed = []
    for question in (exam.cases.plain(B=1, T=7, seed=2), exam.cases.plain(B=1, T=5, seed=2)):
        reply = exam.subject.ask(question.to(exam.understood.dtype))
        if reply.answer is not None:
            observed.append(Observed(question, reply.answer))
    if any(Bench(intent, observed).fits(RIGHT) is not None for intent in intents):
        return []
    return diagnose(observed, intents, exam.source)


def _imprecise(exam: CheckSession, observed: list[Observed], wrong: dict[str, float]) -> None:
    """Nearly right everywhere: no mistake of principle, but too few digits."""
    for name in dict.fromkeys(one.question.name for one in observed):
        if name in wrong:
            exam.failed(name, _apart_in_words(wrong[name]))
        else:
            exam.passed(name)
    worst = max(wrong.values())
    evidence = f"The output is right to {worst:.0e} only, in float64 too: somewhere digits are thrown away."
    exam.diagnosed("precision-lost", evidence, worst)


def _unknown(exam: CheckSession, intent: Intent) -> str:
    names = list(intent.wiring.unknown)[:3]
    if not names and exam.module is not None and (match := _POSITIONS.search(exam.source)):
        names = [f"what its source calls {match.group().strip('.(')!r}"]
    return ", ".join(names)


def _apart_in_words(error: float) -> str:
    return (
        "NaN or inf where numbers belong"
        if error == float("inf")
        else f"off by {error:.1g} of the largest number"
    )


def _smallest(exam: CheckSession, observed: list[Observed], intent: Intent) -> str:
    """The smallest question that still fails, and its first wrong number."""
    sizes = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]
    for B, T in sizes:
        question = exam.cases.plain(B=B, T=T, H=1, seed=2)
        reply = exam.subject.ask(question.to(exam.understood.dtype))
        if reply.answer is not None:
            one = Observed(question, reply.answer)
            if _error(exam, one) > TOLERANCE:
                return _first_difference(one, intent)
    failing = [one for one in observed if not _error(exam, one) < TOLERANCE]
    return _first_difference(failing[0], intent) if failing else ""


def _first_difference(one: Observed, intent: Intent) -> str:
    expected = truth(intent.read(one.question), intent.wiring).output.detach()
    got = one.answer.output.detach().double()
    if got.shape != expected.shape:
        shapes = f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
        return f"No known mistake: {one.question.shapes()} gives {shapes}"
    off = ~torch.isclose(got, expected, rtol=1e-4, atol=1e-5)
    index = tuple(int(i) for i in off.nonzero()[0]) if bool(off.any()) else (0,) * got.ndim
    return (
        "No mistake of the catalogue gives these numbers. The smallest failing case:\n"
        f"  {one.question.name}, {one.question.shapes()}\n"
        f"  output{list(index)}  expected {expected[index]:.6g}  got {got[index]:.6g}"
        f"  ({int(off.sum())} of {off.numel()} numbers differ)"
    )
