"""Which mistake explains a wrong output, which convention would make it right, and when it proves nothing.

A mask of its own, an unknown form or unknown projections leave the verdict open. If nothing explains the
output, the smallest input on which it is wrong is shown.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.diagnose import Match, VariantMatcher, diagnose, diagnose_pairs, explain_parts
from regard.checker.interpretation.understand import NEARLY_RIGHT, Understanding, observe, search
from regard.checker.oracle.oracle import TOLERANCE, Intent, Observation, describe_difference, fitting_intents
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.behaviour import visible_tokens, with_options
from regard.checker.reports.evidence import (
    against_softmax,
    computes_weights,
    declares_softmax,
    excludes_softmax,
    watch_scores,
)
from regard.checker.session import CheckSession
from regard.checker.subject.call_tensors import is_tensor
from regard.checker.subject.source import prose_of

_SMALL = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3))  # batch sizes and lengths, the smallest first
COMPARE = "pass your own slow version to compare with: oracle=my_reference, or --oracle FILE.py:Name"


def smallest_failure(session: CheckSession, failing: list[Observation]) -> str:
    """Describe the smallest question that fails, and its first wrong number."""
    first = failing[0].question
    plain = [session.cases.plain(first.name, B=B, T=T, H=1, seed=2) for B, T in _SMALL]
    small = observe(session.compared, [with_options(question, first) for question in plain], session.dtype)
    for observation in [*small, *failing]:
        expected = session.presumed_oracle.answer(observation.question)
        if expected is not None and not session.error(observation) < session.tolerance:
            return describe_failure(observation.question, observation.answer.output, expected.output)
    return ""


def describe_failure(question: Question, output: Tensor, expected: Tensor) -> str:
    """Return the sizes of a question and the first number that is not the expected one, in two lines."""
    got, expected = output.detach().double(), expected.detach().double()
    if got.shape != expected.shape:
        shapes = f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
        return f"  {question.name}, {question.shapes()}\n  the output has shape {shapes}"
    off = ~torch.isclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    index = tuple(int(i) for i in off.nonzero()[0]) if bool(off.any()) else (0,) * got.ndim
    return (
        f"  {question.name}, {question.shapes()}\n"
        f"  output{list(index)}  expected {expected[index]:.6g}  got {got[index]:.6g}"
        f"  ({int(off.sum())} of {off.numel()} numbers differ)"
    )


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
            session.add_pass("output")
            session.find("batch-items-mixed", "mask")
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
        session.find("inverted-mask", "output")
        return
    session.undecided = f"it is softmax attention with a mask that the check does not know; {COMPARE}"
    session.add_skip("output", "which keys should be visible is not known")


_POSITIONS = re.compile(r"rotary|rope\b|apply_rot|\.cos\(|\.sin\(|alibi|relative_|rel_pos|freqs", re.I)


def record_results(session: CheckSession, observations: list[Observation], wrong: dict[str, float]) -> None:
    """Record a pass or a failure for every question; `wrong` holds the errors of those that failed."""
    for name in dict.fromkeys(observation.question.name for observation in observations):
        if name in wrong:
            session.add_failure(name, describe_difference(wrong[name]))
        else:
            session.add_pass(name)


_OTHER_SCALE = re.compile(
    r"\bmuP\b|\bµP\b|1 ?/ ?d(_?head|_?k)?\b(?! ?\*\* ?-?0?\.5)|\bunscaled\b"
    r"|\b(?:not|no|without|never) (?:be )?scal\w+",
    re.I,
)


def _declared_scale(session: CheckSession, match: Match) -> str:
    """Return the words in which docstrings or comments declare another scale, as muP's 1/d; "" if none do."""
    if session.options.get("scale") is not None or not set(match.names) & set(_SCALES):
        return ""
    found = _OTHER_SCALE.search(prose_of(session.source))
    return found.group() if found else ""


_SCALES = ("no-scale", "scaled-twice", "constant-scale", "scaled-by-width")


def diagnose_output(session: CheckSession, observations: list[Observation], wrong: dict[str, float]) -> None:
    """Find the mistakes behind a wrong output, or say why there is no verdict, or show a failing case."""
    understanding = session.understanding
    if convention := _lengths_convention(session, observations, wrong):
        session.undecided = convention
        record_results(session, [o for o in observations if o.question.name not in wrong], {})
        return
    if _sides_exchanged(session, observations):
        record_results(session, observations, wrong)
        evidence = "Queries come from the context, and keys and values from the sequence."
        session.add_diagnosis("roles-shuffled", evidence, distance=max(wrong.values()) / TOLERANCE)
        return
    intents = [understanding.right_intent] if understanding.right_intent else understanding.intents
    unknown = describe_unknown(session, intents[0])
    matches = diagnose(observations, intents, session.source)
    if not matches and understanding.observed is not None:
        matches = _diagnose_observed(session, understanding.observed)
    matches = [m for m in matches if "zero-times-infinity" not in m.names or _is_nan_unhidden(session, wrong)]
    # Pairs of mistakes are tried only if nothing else explains why no single one fits.
    evidence = "" if matches else against_softmax(session)
    # Weights of a function are measured; inside a module, if its roles are those of its names.
    observed = understanding.observed
    direct = session.module is None or (observed is not None and observed.as_named)
    measured = direct and excludes_softmax(evidence)
    if session.module is not None and not matches:
        scores = watch_scores(session)
        # Heads that are merged in the wrong order look as if their weights were no softmax's.
        measured = not scores.formed or (measured and not scores.normalised)
    lost = None if matches else _lost_key(session)
    own = None if matches or session.mixed or lost is not None else own_mask(session, observations, wrong)
    if own is not None:
        judge_own_mask(session, own)
        return
    if lost is not None:
        session.add_failure("keys", f"no output depends on key {lost} of {session.cases.plain().k.shape[-2]}")
    search_pairs = not matches and not unknown and not measured and not session.brief
    # Numbers that are nearly right were rounded on the way, which is no pair of mistakes.
    if search_pairs and max(wrong.values()) >= NEARLY_RIGHT:
        matches = diagnose_pairs(observations, intents, session.source)
    if not matches and session.mixed:
        matches = _diagnose_single_sequence(session, intents)
        session.add_diagnosis("batch-items-mixed", session.mixed)
    elif not matches and not session.brief and max(wrong.values()) >= NEARLY_RIGHT:
        matches = explain_parts(observations, intents, session.source)
        matches = [
            m for m in matches if "zero-times-infinity" not in m.names or _is_nan_unhidden(session, wrong)
        ]
    if not matches and not session.mixed and is_undecided(session, observations, wrong, unknown, evidence):
        return
    if matches and matches[0].names == ("inverted-mask",) and _is_convention(session, wrong):
        name = session.subject.arguments["mask"]
        session.undecided = (
            f"True in `{name}` hides, and only you know whether it should: say true_means='hide', or "
            "'look' if that is a mistake"
        )
        form = replace(session.compared.mask_form, kind="hide")
        session.compared.mask_form = session.subject.mask_form = form
        record_results(session, observations, {})
        return
    if matches and (said := _declared_scale(session, matches[0])):
        session.undecided = (
            f"its text says “{said}”, and its scale is not 1/√D: say scale= if it should be so"
        )
        session.add_skip("output", "whether its scale is meant is not known")
        return
    if matches and (convention := _window_convention(session, matches[0])):
        session.undecided = convention
        session.add_skip("window", "it is a convention of this code, or of the model around it")
        return
    record_results(session, observations, wrong)
    distance = max(wrong.values()) / TOLERANCE
    if matches and "window-off-by-one" in matches[0].names and session.options.get("window") is not None:
        detail = "if your window does not count the query's own key, leave window= out"
        matches[0] = replace(matches[0], detail=detail)
    for match in matches[:1] if matches and len(matches[0].names) > 1 else matches[:3]:
        session.add_match(match, distance)
    if not matches and not session.mixed:
        worst = max(wrong.values())
        if worst < NEARLY_RIGHT:
            evidence = f"The output is right only to {worst:.0e}, even in float64: precision is lost."
            session.add_diagnosis("precision-lost", evidence, worst, distance=distance)
        else:
            failing = [o for o in observations if not session.error(o) < TOLERANCE]
            case = smallest_failure(session, failing)
            session.example = (
                f"No mistake of the catalogue gives these numbers. The smallest failing case:\n{case}"
            )


def _lengths_convention(
    session: CheckSession, observations: list[Observation], wrong: dict[str, float]
) -> str:
    """Return a sentence if a kernel on a cache is right under another convention of its lengths; else ""."""
    kernel = session.subject.kernel_layout
    if kernel is None or "lengths" not in kernel.names or wrong.keys() != {"lengths that differ"}:
        return ""
    name = kernel.names["lengths"]
    ragged = [_one_query(o.question) for o in observations if o.question.name in wrong]
    conventions = (
        (_before_the_new, f"`{name}` counts the keys before the new one", f"subtracts this from `{name}`"),
        (_at_the_end, "the keys of a text are the last ones of its cache", "moves them there"),
    )
    for convention, meaning, change in conventions:
        # The right answers are those of the questions as they were.
        asked = [session.compared.run(convention(question).to(session.dtype)) for question in ragged]
        answers = [
            Observation(q, r.answer) for q, r in zip(ragged, asked, strict=True) if r.answer is not None
        ]
        if len(answers) == len(ragged) and all(session.error(answer) < TOLERANCE for answer in answers):
            return f"it is right if {meaning}, which only you know: if so, check a function that {change}"
    return ""


def _one_query(question: Question) -> Question:
    """Return a question on lengths that differ for the last query of every item alone."""
    queries, keys = question.all_lengths()
    last = torch.stack([item[..., n - 1 : n, :] for item, n in zip(question.q, queries, strict=True)])
    return replace(question, q=last, lengths=((1,) * len(keys), keys))


def _before_the_new(question: Question) -> Question:
    """Return a question whose lengths leave out the key of the query's own token."""
    queries, keys = question.all_lengths()
    return replace(question, lengths=(queries, tuple(n - 1 for n in keys)))


def _at_the_end(question: Question) -> Question:
    """Return a question in whose cache the keys of every item are the last ones."""
    lengths = question.all_lengths()[1]

    def move(x: Tensor) -> Tensor:
        return torch.stack([item.roll(x.shape[-2] - n, -2) for item, n in zip(x, lengths, strict=True)])

    return replace(question, k=move(question.k), v=move(question.v))


def _sides_exchanged(session: CheckSession, observations: list[Observation]) -> bool:
    """Return whether code on a sequence and a context is right with the two exchanged."""
    if session.subject.inputs != "context" or session.understanding.right_intent is not None:
        return False
    # Only sides of one shape can be exchanged.
    plain = [o for o in observations if o.question.q.shape == o.question.k.shape]
    exchanged = [
        Observation(replace(o.question, q=o.question.k, k=o.question.q, v=o.question.q), o.answer)
        for o in plain
    ]
    fits = (VariantMatcher(intent, exchanged).fits(CORRECT) for intent in session.understanding.intents[:24])
    return bool(exchanged) and any(error is not None for error in fits)


def _is_nan_unhidden(session: CheckSession, wrong: dict[str, float]) -> bool:
    """Return whether a mask that hides nothing gives NaN too, as 0 · inf does; True if no mask is wrong."""
    question = session.cases.plain(seed=12)
    S = question.k.shape[-2]
    if "mask" in wrong:
        question = replace(question, mask=torch.ones(question.q.shape[-2], S, dtype=torch.bool))
    elif "padding" in wrong:
        question = replace(question, padding=torch.ones(question.q.shape[0], S, dtype=torch.bool))
    else:
        return True
    answer = session.compared.run(session.with_explicit_mask(question).to(session.dtype)).answer
    return answer is None or not bool(answer.output.isfinite().all())


def _window_convention(session: CheckSession, match: Match) -> str:
    """Return why a window that is not the expected one need not be a mistake, as a sentence; else ""."""
    if session.subject.is_transformers and match.names == ("window-dropped",):
        return (
            "in Transformers the window is in the mask that the model makes, and this layer alone has none: "
            "check it without window=, or capture the model and look at its mask"
        )
    return ""


def _is_convention(session: CheckSession, wrong: dict[str, float]) -> bool:
    """Return whether an inverted mask may be a convention: an argument of which nothing is said."""
    stated = session.options.get("true_means") is not None
    # A tokenizer's `attention_mask` (B, S) has 1 for tokens, wherever it is used.
    if session.subject.mask_form.rank == 1 and session.subject.arguments.get("mask") == "attention_mask":
        return False
    return "mask" in session.subject.arguments and not stated and only_masks(wrong)


def _diagnose_observed(session: CheckSession, observed: Understanding) -> list[Match]:
    """Find the mistakes between a module's own queries, keys, values and merged heads."""
    if observed.right_intent is not None:  # right but for the roles that its names promise
        if not observed.inputs_as_named and sorted(observed.roles or ()) != [0, 1, 2]:
            return []  # not the inputs in another order: another input, or a mixture
        changed = {"out": "skip"} if observed.roles is None else {"roles": observed.roles}
        names = [name for name, m in CATALOGUE.items() if any(c == changed for c in m.changes)]
        return [Match((names[0],), 0.0)] if names else []
    cases = observed.cases
    questions = [cases.plain(), cases.plain(B=1, T=5, seed=3), cases.longer()]
    observations = observe(observed.compared, questions, observed.dtype)
    if search(observations, fitting_intents(observed.intents, observations), []) is not None:
        return []  # right between queries, keys and values: what is wrong lies elsewhere
    return diagnose(observations, observed.intents, session.source)


def _lost_key(session: CheckSession) -> int | None:
    """Return a key that no output of a function depends on, whatever the inputs; None if there is none."""
    if session.module is not None or session.subject.inputs != "qkv" or session.understanding.causal:
        return None
    seen = [visible_tokens(session, session.cases.plain(seed=seed)) for seed in (97, 98)]
    if any(visible is None or visible.shape[0] < 2 for visible in seen):
        return None
    lost = ~torch.stack([visible.any(0) for visible in seen if visible is not None]).any(0)
    return int(lost.nonzero()[0]) if bool(lost.any()) else None


def _diagnose_single_sequence(session: CheckSession, intents: list[Intent]) -> list[Match]:
    """Find the mistakes in a single sequence, for code in which the items of a batch affect each other."""
    questions = [session.cases.plain(B=1, T=T, seed=2) for T in (7, 5)]
    observations = observe(session.compared, questions, session.dtype)
    if any(VariantMatcher(intent, observations).fits(CORRECT) is not None for intent in intents):
        return []
    single = diagnose(observations, intents, session.source)
    return single or diagnose_pairs(observations, intents, session.source)


def describe_unknown(session: CheckSession, intent: Intent) -> str:
    """Name the parts of the module that the oracle cannot reproduce."""
    names = [f"`{name}`" for name in intent.wiring.unknown[:3]]
    names += [f"what `{name}` does" for name, value in session.subject.call.items() if is_tensor(value)]
    if not names and session.module is not None and (match := _POSITIONS.search(session.source)):
        names = [f"{match.group().strip('.(')!r} in its source"]
    return ", ".join(names)
