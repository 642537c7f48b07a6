"""The output compared with the oracle's: every kind of question once, and a diagnosis if one is wrong."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.checker.catalogue import CATALOGUE
from regard.checker.diagnose import Match, VariantMatcher, diagnose, diagnose_pairs, explain_parts
from regard.checker.evidence import (
    against_softmax,
    computes_weights,
    declares_softmax,
    excludes_softmax,
    watch_scores,
)
from regard.checker.hypotheses import search
from regard.checker.intent import TOLERANCE, Intent, Observation, fitting_intents, window_conventions
from regard.checker.oracle.oracle import describe_difference, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.behaviour import name_by_behaviour, with_options
from regard.checker.probes.dependence import visible_tokens
from regard.checker.probes.questions import output_questions
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.call_values import is_tensor
from regard.checker.subject.observe import ObservedSubject
from regard.checker.subject.parts import attention_parts, model_sentence
from regard.checker.subject.source import prose_of
from regard.checker.subject.subject import MaskForm, Reply
from regard.checker.understand import NEARLY_RIGHT, Understanding, observe

_POSITIONS = re.compile(r"rotary|rope\b|apply_rot|\.cos\(|\.sin\(|alibi|relative_|rel_pos|freqs", re.I)


_SMALL = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3))  # batch sizes and lengths, the smallest first
NO_PROJECTIONS = "queries, keys and values could not be found, neither by their names nor by what they do"


def probe_output(session: CheckSession) -> None:
    """Compare the output with the oracle's, or the reference's, with every option that the subject offers."""
    if session.reference is not None:
        _compare_with_reference(session, session.reference)
        return
    if not session.understanding.intents:
        evidence = against_softmax(session)
        reason = f"this is not softmax attention: {evidence}" if evidence else NO_PROJECTIONS
        session.undecided = f"{reason}; {COMPARE}"
        session.add_skip("output", "there is nothing to compare it with")
        return
    if _is_undeclared_mod(session):
        session.undecided = UNDECLARED_MOD
        session.add_skip("output", "nothing says what this function should do")
        return
    parts = [] if session.module is None else attention_parts(session.module)
    if session.understanding.right_intent is None and len(parts) > 1:
        session.undecided = model_sentence(parts)
        session.add_skip("output", f"it holds {len(parts)} attentions")
        return
    observations = _observe(session)
    wrong = _wrong(session, observations)
    if wrong and _find_window_convention(session, observations):
        wrong = {}
    if not wrong and session.understanding.right_intent is None:
        session.undecided = f"no one form of attention gives all its outputs; {COMPARE}"
        session.add_skip("output", "its outputs of different sizes do not go together")
        return
    if not wrong:
        if session.mixed:
            session.add_diagnosis("batch-items-mixed", session.mixed)
        _check_shared_projection(session)
        _record_results(session, observations, wrong)
        session.right_questions += [observation.question for observation in observations]
        _warn_of_window(session)
        return
    _diagnose_output(session, observations, wrong)


def _compare_with_reference(session: CheckSession, reference: Reference) -> None:
    """Compare the output with the reference's, and name what the code does otherwise."""
    if session.mixed:
        session.add_diagnosis("batch-items-mixed", session.mixed)
    if reference.mismatch:
        session.undecided = (
            f"its weights could not be matched with those of {reference.name}, since {reference.mismatch}: "
            "give them the same names and shapes, or pass two modules whose weights you have made equal"
        )
        return
    _choose_mask_form(session, reference)
    observations = _observe(session)
    wrong = _wrong(session, observations)
    if "output" in wrong and not reference.match.certain:
        session.undecided = (
            f"it differs from {reference.name} ({reference.match.note}), but the weights may belong together "
            "in another way: give them the same names, or pass two modules whose weights you have made equal"
        )
        return
    _record_results(session, observations, wrong)
    if failing := [o for o in observations if not session.error(o) < session.tolerance]:
        name_by_behaviour(session, reference, failing)
        case = _smallest_failure(session, failing)
        session.example = f"The smallest case that differs from {reference.name}:\n{case}"
    else:
        session.right_questions += [observation.question for observation in observations]


def _wrong(session: CheckSession, observations: list[Observation]) -> dict[str, float]:
    """Return the errors of the questions whose answers are not right, by name."""
    errors = [(observation.question.name, session.error(observation)) for observation in observations]
    return {name: error for name, error in errors if not error < session.tolerance}


def _find_window_convention(session: CheckSession, observations: list[Observation]) -> bool:
    """Return whether code with a number for its window is right in another convention, which is kept."""
    understanding, subject = session.understanding, session.subject
    right = understanding.right_intent
    stated = session.options.get("window") is not None or subject.takes_window_pair
    if right is None or stated or "window" not in subject.arguments or subject.kernel_layout is not None:
        return False
    for convention in window_conventions(session.source):
        understanding.right_intent = replace(right, convention=convention)
        if not _wrong(session, observations):
            return True
    understanding.right_intent = right
    return False


def _warn_of_window(session: CheckSession) -> None:
    """Warn of a window that is one key wider than usual, which may be meant."""
    intent = session.understanding.right_intent
    if intent is not None and intent.convention is not None and intent.convention.one_more:
        words = f"with a window of n, a query sees {intent.convention.words}"
        evidence = f"It is right if {words}. If n should count the query's own key, it is one key too wide."
        session.add_mistake("window", words, "window-off-by-one", evidence, warning=True)


UNDECLARED_MOD = (
    "it equals no mask or score that the check knows (causal, windows, prefixes, chunks, soft caps): say "
    "what it should be with causal=, window= or softcap="
)


def _is_undeclared_mod(session: CheckSession) -> bool:
    """Return whether this is a mod of FlexAttention that nothing describes and no known rule equals."""
    kernel, understanding = session.subject.kernel_layout, session.understanding
    declared = understanding.declared_causal is not None or session.cases.always.keys() & {
        "window",
        "softcap",
    }
    is_mod = kernel is not None and kernel.kind == "mod"
    return is_mod and not declared and understanding.right_intent is None


def _record_results(session: CheckSession, observations: list[Observation], wrong: dict[str, float]) -> None:
    """Record a pass or a failure for every question; `wrong` holds the errors of those that failed."""
    for name in dict.fromkeys(observation.question.name for observation in observations):
        if name in wrong:
            session.add_failure(name, describe_difference(wrong[name]))
        else:
            session.add_pass(name)


def _check_shared_projection(session: CheckSession) -> None:
    """Find one projection used for several roles: the output is right for these weights, but a mistake."""
    intent = session.understanding.right_intent
    if intent is None or session.module is None or session.subject.inputs != "x":
        return
    question = session.cases.plain()
    with torch.no_grad():
        query, key, value = intent.wiring.project(question)
    pairs = [(query, key, "query and key"), (key, value, "key and value"), (query, value, "query and value")]
    same = [names for first, second, names in pairs if first.equal(second)]
    if same:
        names = "query, key and value" if len(same) == 3 else same[0]
        evidence = f"One projection makes {names}."
        session.add_mistake(
            "projections",
            f"{names} share one",
            "one-projection",
            evidence,
            warning=len(same) < 3,
        )


def _observe(session: CheckSession) -> list[Observation]:
    """Run the subject on every question that its arguments allow."""
    cases, subject = session.cases, session.compared
    if cases.fixed_length is not None:
        session.add_skip("other lengths", f"it takes sequences of {cases.fixed_length} tokens only")
    observations: list[Observation] = []
    needed, optional = output_questions(session)
    reference = session.reference
    for question in needed + optional:
        if reference is not None and reference.answer(question) is None:
            continue
        reply = subject.run(question.to(session.dtype))
        if reply.answer is not None:
            observations.append(Observation(question, reply.answer))
        elif question in optional or (reference is None and _refuses(reply)):
            session.add_skip(question.name, f"it does not take {question.shapes()}: {reply.error_line}")
        else:
            session.add_failure(question.name, f"{question.shapes()} raised {reply.error_line}")
    return observations if reference is not None else observations + _observe_masks(session, observations)


def _refuses(reply: Reply) -> bool:
    """Return whether the code says that it does not do what was asked, rather than failing at it."""
    if reply.is_refusal:
        return True
    explicit = isinstance(reply.error, NotImplementedError | ValueError)
    return explicit and re.search(r"support|implement|cannot|only|NYI", str(reply.error)) is not None


def _observe_masks(session: CheckSession, observations: list[Observation]) -> list[Observation]:
    """Find out which convention the subject's masks follow, then run it with a mask and with padding."""
    masked: list[Observation] = []
    subject, cases = session.compared, session.cases
    if "mask" in subject.arguments:
        question = with_explicit_mask(session, cases.masked(seed=11))
        forms = _mask_forms(session)
        replies = [(form, subject.replaced(mask_form=form).run(question.to(session.dtype))) for form in forms]
        ran = [(form, Observation(question, reply.answer)) for form, reply in replies if reply.answer]
        if not ran and (observation := _observe_token_mask(session)) is not None:
            return [observation]
        if not ran:
            session.add_untried(
                "mask",
                f"`{subject.arguments['mask']}` takes no usual form of a mask: pass a function that makes it "
                f"of a boolean (T, S), which raised {replies[0][1].error_line}",
            )
            return masked
        form, best = _best_form(session, ran, observations)
        subject.mask_form = session.subject.mask_form = form
        session.understanding.assumptions.append(f"{subject.arguments['mask']}: {form}")
        masked.append(best)
        longer = with_explicit_mask(session, cases.masked("mask, longer sequence", seed=13, T=40))
        if cases.fixed_length is None and (found := subject.run(longer.to(session.dtype)).answer) is not None:
            masked.append(Observation(longer, found))
        _warn_if_added(session, form, ran)
    if "padding" in subject.arguments or ("mask" in subject.arguments and subject.layout not in ("TD", "TC")):
        question = with_explicit_mask(session, cases.padded(seed=12))
        _choose_padding(session, question, [*observations, *masked])
        reply = subject.run(question.to(session.dtype))
        if reply.answer is not None:
            masked.append(Observation(question, reply.answer))
        elif _refuses(reply):
            session.add_skip("padding", f"it refuses one: {reply.error_line}")
        elif "padding" in subject.arguments:
            session.add_failure("padding", f"{question.shapes()} raised {reply.error_line}")
        else:
            session.add_skip("padding", f"it does not take a mask of (B, 1, T, S): {reply.error_line}")
    return masked


def _choose_padding(session: CheckSession, question: Question, observations: list[Observation]) -> None:
    """Find out what True means in a padding mask of which nothing is said, and note it in the report.

    True hides in PyTorch's `key_padding_mask`, and keeps in flash-attn's, in functions and modules alike.
    """
    subject = session.compared
    name = subject.arguments.get("padding")
    if name is None or "len" in name or isinstance(session.module, nn.MultiheadAttention):
        return
    conventions = {"hide": "True = hidden", "look": "True = keep"}
    if subject.mask_stated:
        stated = f"{name}: {conventions[subject.padding_means]}, as stated"
        session.understanding.assumptions.append(stated)
        return
    replies = {m: subject.replaced(padding_means=m).run(question.to(session.dtype)) for m in conventions}
    answers = {means: Observation(question, reply.answer) for means, reply in replies.items() if reply.answer}
    right = session.understanding.right_intent
    # The one in which it is right, or else one in which a mistake explains all its answers.
    fitting = [m for m, answer in answers.items() if right is not None and session.error(answer) < TOLERANCE]
    for means in fitting or answers:
        if fitting or _is_explained(session, [*observations, answers[means]]):
            subject.padding_means = session.subject.padding_means = means
            session.understanding.assumptions.append(f"{name}: {conventions[means]}")
            return


def _is_explained(session: CheckSession, observations: list[Observation]) -> bool:
    """Return whether a mistake other than an inverted mask reproduces all observations."""
    right = session.understanding.right_intent
    matches = diagnose(observations, session.understanding.intents if right is None else [right])
    return any("inverted-mask" not in match.names for match in matches)


def _choose_mask_form(session: CheckSession, reference: Reference) -> None:
    """Find a form of mask in which the reference hides what the mask hides; both get it."""
    own, theirs = session.subject, reference.session.subject
    if "mask" not in session.arguments or theirs.mask_form != MaskForm():
        own.mask_form = theirs.mask_form
        return
    question, running = session.cases.masked(seed=11), []
    assert question.mask is not None
    for kind, rank in itertools.product(("look", "hide", "added", "zero-one"), _mask_ranks(theirs.layout)):
        form = own.mask_form = theirs.mask_form = MaskForm(kind, rank)
        seen = visible_tokens(reference.session, question)
        if seen is None or own.run(question.to(session.dtype)).answer is None:
            continue
        running.append(form)
        hidden = ~question.mask & ~torch.eye(*question.mask.shape, dtype=torch.bool)
        if not bool((seen & hidden).any()) and int(seen.sum()) > len(seen):
            session.notes.append(f"{own.arguments['mask']}: {form}")
            return
    theirs.mask_form = own.mask_form = running[0] if running else MaskForm()


def _observe_token_mask(session: CheckSession) -> Observation | None:
    """Run the subject with a mask (B, S) of tokens, in the convention in which it is right if any."""
    subject, question = session.subject, with_explicit_mask(session, session.cases.padded(seed=12))
    stated = session.options.get("true_means")
    best: tuple[float, MaskForm, Observation] | None = None
    for form in [MaskForm(kind, 1) for kind in ([stated] if stated else ["look", "zero-one"])]:
        reply = subject.replaced(mask_form=form).run(question.to(session.dtype))
        if reply.answer is not None:
            observation = Observation(question, reply.answer)
            error = session.error(observation)
            best = (error, form, observation) if best is None or error < best[0] else best
    if best is None:
        return None
    subject.mask_form = best[1]
    session.understanding.assumptions.append(f"{subject.arguments['mask']}: {best[1]}")
    return best[2]


def with_explicit_mask(session: CheckSession, question: Question) -> Question:
    """Return the question without the module's own causality, if a mask argument replaces that.

    It does in Transformers, where the model passes a mask that is already causal.
    """
    return replace(question, flag=False) if session.subject.is_transformers else question


def _mask_forms(session: CheckSession) -> list[MaskForm]:
    """Return the conventions of a mask to try: the one that is known, or all usual ones."""
    subject = session.subject
    if subject.mask_form.kind == "lowest":
        return [subject.mask_form, MaskForm("look", 4)]
    settled = session.options.get("true_means") is not None or subject.mask_form != MaskForm()
    kinds = [subject.mask_form.kind] if settled else ["look", "added", "zero-one"]
    parts = [] if session.module is None else session.module.modules()
    if not settled and any(isinstance(part, nn.MultiheadAttention) for part in parts):
        kinds.insert(1, "hide")  # it may pass its mask on to PyTorch's layer, in which True hides
    ranks = (
        [subject.mask_form.rank] if settled and subject.mask_form.rank != 2 else _mask_ranks(subject.layout)
    )
    return [MaskForm(kind, rank) for kind in kinds for rank in ranks]


def _mask_ranks(layout: str) -> list[int]:
    """Return the ranks that a mask usually has for inputs of this layout."""
    return {"BTC": [2, 3, 4], "TBC": [2], "BTD": [2, 3], "TBD": [2], "TD": [2], "TC": [2]}.get(
        layout, [2, 4, 3]
    )


def _best_form(
    session: CheckSession, ran: list[tuple[MaskForm, Observation]], observations: list[Observation]
) -> tuple[MaskForm, Observation]:
    """Return the form under which the output is right, else one that a mistake explains, else the first.

    Code that accepts a boolean mask must be right with it; only code that adds its mask to the scores may
    want floats.
    """
    boolean = [(form, masked) for form, masked in ran if form.kind in ("look", "hide")]
    applied = any(not _adds_mask(session, masked) for _, masked in boolean)
    others = [(form, masked) for form, masked in ran if form.kind not in ("look", "hide")]
    for form, masked in [*boolean, *(others if not applied else [])]:
        if session.understanding.right_intent is not None:
            if session.error(masked) < TOLERANCE:
                return form, masked
        elif form.kind != "look" and diagnose([*observations, masked], session.understanding.intents):
            return form, masked
    return ran[0]


def _adds_mask(session: CheckSession, masked: Observation) -> bool:
    """Return whether a boolean mask was added to the scores as 0 and 1; True if that cannot be known."""
    intent, question = session.understanding.right_intent, masked.question
    if intent is None:
        return True
    assert question.mask is not None
    added = intent.apply(replace(question, mask=None, bias=question.mask.double()))
    projected = intent.wiring.project(question)
    variants = (CORRECT, replace(CORRECT, masking="scaled"))
    return any(
        relative_error(masked.answer, variant.answer(added, intent.wiring, projected)) < TOLERANCE
        for variant in variants
    )


def _warn_if_added(session: CheckSession, form: MaskForm, ran: list[tuple[MaskForm, Observation]]) -> None:
    """Warn if code that adds its mask to the scores accepts a boolean one, and adds 0 and 1."""
    boolean = next((masked for other, masked in ran if other == MaskForm("look", form.rank)), None)
    if (
        form.kind != "added"  # in Transformers' interface ("lowest") a mask is always added
        or boolean is None
        or session.right_intent is None
        or not _adds_mask(session, boolean)
    ):
        return
    name = session.subject.arguments["mask"]
    converted = re.search(rf"\b{name}\.(float|int|long)\(", session.source)
    detail = f"a boolean `{name}` is accepted and added as 0 and 1"
    if converted:
        detail = f"`{converted.group()})` turns a boolean mask into 0 and 1, which are added"
    evidence = (
        f"Given a boolean `{name}`, it adds 1 where the mask is True and 0 elsewhere: it hides nothing."
    )
    session.add_mistake("boolean mask", detail, "mask-added-as-zero-one", evidence, warning=not converted)


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


def _diagnose_output(session: CheckSession, observations: list[Observation], wrong: dict[str, float]) -> None:
    """Find the mistakes behind a wrong output, or say why there is no verdict, or show a failing case."""
    understanding = session.understanding
    if convention := _lengths_convention(session, observations, wrong):
        session.undecided = convention
        _record_results(session, [o for o in observations if o.question.name not in wrong], {})
        return
    if _sides_exchanged(session, observations):
        _record_results(session, observations, wrong)
        evidence = "Queries come from the context, and keys and values from the sequence."
        session.add_diagnosis("roles-shuffled", evidence, distance=max(wrong.values()) / TOLERANCE)
        return
    intents = [understanding.right_intent] if understanding.right_intent else understanding.intents
    unknown = _unknown(session, intents[0])
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
    own = None if matches or session.mixed or lost is not None else _own_mask(session, observations, wrong)
    if own is not None:
        _judge_own_mask(session, own)
        return
    if lost is not None:
        session.add_failure("keys", f"no output depends on key {lost} of {session.cases.plain().k.shape[-2]}")
    search_pairs = not matches and not unknown and not measured and not session.brief
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
    if not matches and not session.mixed and _is_undecided(session, observations, wrong, unknown, evidence):
        return
    if matches and matches[0].names == ("inverted-mask",) and _is_convention(session, wrong):
        name = session.subject.arguments["mask"]
        session.undecided = (
            f"True in `{name}` hides, and only you know whether it should: say true_means='hide', or "
            "'look' if that is a mistake"
        )
        form = replace(session.compared.mask_form, kind="hide")
        session.compared.mask_form = session.subject.mask_form = form
        _record_results(session, observations, {})
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
    _record_results(session, observations, wrong)
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
            case = _smallest_failure(session, failing)
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
        replies = [session.compared.run(convention(question).to(session.dtype)) for question in ragged]
        answers = [
            Observation(question, reply.answer)
            for question, reply in zip(ragged, replies, strict=True)
            if reply.answer is not None
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
    answer = session.compared.run(with_explicit_mask(session, question).to(session.dtype)).answer
    return answer is None or not bool(answer.output.isfinite().all())


def _window_convention(session: CheckSession, match: Match) -> str:
    """Return why a window that is not the expected one need not be a mistake, as a sentence; else ""."""
    if session.subject.is_transformers and match.names == ("window-dropped",):
        return (
            "in Transformers the window is in the mask that the model makes, and this layer alone has none: "
            "check it without window=, or capture the model and look at its mask"
        )
    return ""


def _only_masks(wrong: dict[str, float]) -> bool:
    """Return whether all is right but masks, and these not only where the sequence is longer."""
    short = {"mask", "padding"}
    return bool(wrong.keys() & short) and wrong.keys() <= short | {"mask, longer sequence"}


def _is_convention(session: CheckSession, wrong: dict[str, float]) -> bool:
    """Return whether an inverted mask may be a convention: an argument of which nothing is said."""
    stated = session.options.get("true_means") is not None
    # A tokenizer's `attention_mask` (B, S) has 1 for tokens, wherever it is used.
    if session.subject.mask_form.rank == 1 and session.subject.arguments.get("mask") == "attention_mask":
        return False
    return "mask" in session.subject.arguments and not stated and _only_masks(wrong)


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


def _is_undecided(
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
        if nan or not _only_masks(wrong):
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


def _own_mask(
    session: CheckSession, observations: list[Observation], wrong: dict[str, float]
) -> Tensor | None:
    """Return which keys each query sees (T, S), if wrong outputs are right with such a mask; else None.

    Local, strided and block-sparse attention has masks of its own. Only outputs without options count.
    """
    failed = [o for o in observations if o.question.name in wrong]
    options = {"mask", "padding", "bias", "window", "softcap", "flag", "sinks", "lengths", "splits"}
    options -= session.cases.always.keys() & {"window", "softcap"}  # what the code declares of itself
    optional = [o for o in failed if any(getattr(o.question, name) is not None for name in options)]
    if optional or any(o.question.k.shape[-2] > 64 for o in failed):
        return None
    seen = [visible_tokens(session, o.question) for o in failed]
    masks = [visible for visible in seen if visible is not None]
    hiding = [visible for visible in masks if not bool(visible.all())]

    def explains(intent: Intent, observation: Observation, visible: Tensor) -> bool:
        open_intent = replace(intent, causal=False, window=None, rule=None)
        question = replace(observation.question, mask=visible, window=None, rule=None)
        return open_intent.error(question, observation.answer) < TOLERANCE

    pairs = list(zip(failed, masks, strict=False))
    explained = len(masks) == len(failed) and any(
        all(explains(intent, *pair) for pair in pairs) for intent in session.understanding.intents
    )
    return hiding[0] if hiding and explained else None


def _judge_own_mask(session: CheckSession, visible: Tensor) -> None:
    """Record softmax attention with a mask that no rule gives: wrong if it shows the future alone."""
    if bool(visible.triu(1).any()) and not bool(visible.tril(-1).any()):
        evidence = "Every query sees its own key and later ones, and no earlier one."
        session.add_mistake("output", "only the future is visible", "inverted-mask", evidence)
        return
    session.undecided = f"it is softmax attention with a mask that the check does not know; {COMPARE}"
    session.add_skip("output", "which keys should be visible is not known")


def _lost_key(session: CheckSession) -> int | None:
    """Return a key that no output of a function depends on, whatever the inputs; None if there is none."""
    if session.module is not None or session.subject.inputs != "qkv" or session.understanding.causal:
        return None
    seen = [visible_tokens(session, session.cases.plain(seed=seed)) for seed in (97, 98)]
    if any(visible is None or visible.shape[0] < 2 for visible in seen):
        return None
    lost = ~torch.stack([visible.any(0) for visible in seen if visible is not None]).any(0)
    return int(lost.nonzero()[0]) if bool(lost.any()) else None


COMPARE = "pass your own slow version to compare with: oracle=my_reference, or --oracle FILE.py:Name"


def _diagnose_single_sequence(session: CheckSession, intents: list[Intent]) -> list[Match]:
    """Find the mistakes in a single sequence, for code in which the items of a batch affect each other."""
    questions = [session.cases.plain(B=1, T=T, seed=2) for T in (7, 5)]
    observations = observe(session.compared, questions, session.dtype)
    if any(VariantMatcher(intent, observations).fits(CORRECT) is not None for intent in intents):
        return []
    single = diagnose(observations, intents, session.source)
    return single or diagnose_pairs(observations, intents, session.source)


def _unknown(session: CheckSession, intent: Intent) -> str:
    """Name the parts of the module that the oracle cannot reproduce."""
    names = [f"`{name}`" for name in intent.wiring.unknown[:3]]
    names += [f"what `{name}` does" for name, value in session.subject.call.items() if is_tensor(value)]
    observed = session.understanding.observed
    core = observed.compared.core if observed and isinstance(observed.compared, ObservedSubject) else None
    if core is not None:
        names = [f"what `{path}` does to the scores" for path in core.on_scores[:2]] or names
    if not names and session.module is not None and (match := _POSITIONS.search(session.source)):
        names = [f"{match.group().strip('.(')!r} in its source"]
    return ", ".join(names)


def _smallest_failure(session: CheckSession, failing: list[Observation]) -> str:
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
