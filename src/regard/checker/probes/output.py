"""The output compared with the oracle's: every kind of question once, and a diagnosis if one is wrong.

Masks come in many conventions: true for seen or for hidden, added, by items or by rows. The one in which the
output is right is found first.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import torch
from torch import nn

from regard.checker.diagnose import diagnose
from regard.checker.oracle.oracle import TOLERANCE, Observation, relative_error, window_conventions
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.behaviour import name_by_behaviour, visible_tokens
from regard.checker.probes.questions import output_questions
from regard.checker.probes.wrong_output import COMPARE, WrongOutput, smallest_failure
from regard.checker.reports.evidence import against_softmax
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.call_tensors import MaskForm
from regard.checker.subject.source import attention_parts, model_sentence
from regard.checker.subject.subject import Reply


def observe_answers(session: CheckSession) -> list[Observation]:
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
        question = session.with_explicit_mask(cases.masked(seed=11))
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
        # A module and the attention observed inside it are two subjects with one convention.
        subject.mask_form = session.subject.mask_form = form
        session.understanding.assumptions.append(f"{subject.arguments['mask']}: {form}")
        masked.append(best)
        longer = session.with_explicit_mask(cases.masked("mask, longer sequence", seed=13, T=40))
        if cases.fixed_length is None and (found := subject.run(longer.to(session.dtype)).answer) is not None:
            masked.append(Observation(longer, found))
        _warn_if_added(session, form, ran)
    if "padding" in subject.arguments or ("mask" in subject.arguments and subject.layout not in ("TD", "TC")):
        question = session.with_explicit_mask(cases.padded(seed=12))
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
    # Lengths have no True, and PyTorch documents what True means in its own layer.
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


def choose_mask_form(session: CheckSession, reference: Reference) -> None:
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
        # Without the diagonal: in self-attention an output depends on its own token by its query.
        hidden = ~question.mask & ~torch.eye(*question.mask.shape, dtype=torch.bool)
        # A form under which every key is hidden would hide what it should, too.
        if not bool((seen & hidden).any()) and int(seen.sum()) > len(seen):
            session.notes.append(f"{own.arguments['mask']}: {form}")
            return
    theirs.mask_form = own.mask_form = running[0] if running else MaskForm()


def _observe_token_mask(session: CheckSession) -> Observation | None:
    """Run the subject with a mask (B, S) of tokens, in the convention in which it is right if any."""
    subject, question = session.subject, session.with_explicit_mask(session.cases.padded(seed=12))
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


def _mask_forms(session: CheckSession) -> list[MaskForm]:
    """Return the conventions of a mask to try: the one that is known, or all usual ones."""
    subject = session.subject
    if subject.mask_form.kind == "lowest":
        # With SDPA, Transformers' layers take a boolean mask (B, 1, T, S) as well.
        return [subject.mask_form, MaskForm("look", 4)]
    settled = session.options.get("true_means") is not None or subject.mask_form != MaskForm()
    # The Annotated Transformer hides where its mask is 0, and BERT adds one of large negative numbers.
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
    observations = observe_answers(session)
    wrong = wrong_answers(session, observations)
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
        session.add_results(observations, wrong)
        session.right_questions = {o.question.name: o.question for o in reversed(observations)}
        _warn_of_window(session)
        return
    WrongOutput(session, observations, wrong).diagnose()


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
    choose_mask_form(session, reference)
    observations = observe_answers(session)
    wrong = wrong_answers(session, observations)
    if "output" in wrong and not reference.match.certain:
        session.undecided = (
            f"it differs from {reference.name} ({reference.match.note}), but the weights may belong together "
            "in another way: give them the same names, or pass two modules whose weights you have made equal"
        )
        return
    session.add_results(observations, wrong)
    if failing := [o for o in observations if not session.error(o) < session.tolerance]:
        name_by_behaviour(session, reference, failing)
        case = smallest_failure(session, failing)
        session.example = f"The smallest case that differs from {reference.name}:\n{case}"
    else:
        session.right_questions = {o.question.name: o.question for o in reversed(observations)}


def wrong_answers(session: CheckSession, observations: list[Observation]) -> dict[str, float]:
    """Return the errors of the questions whose answers are not right, by name."""
    errors = [(observation.question.name, session.error(observation)) for observation in observations]
    return {name: error for name, error in errors if not error < session.tolerance}


def _find_window_convention(session: CheckSession, observations: list[Observation]) -> bool:
    """Return whether code with a number for its window is right in another convention, which is kept."""
    understanding, subject = session.understanding, session.subject
    right = understanding.right_intent
    # A window that the caller stated counts the own key, and (left, right) leaves nothing to interpret.
    stated = session.options.get("window") is not None or subject.takes_window_pair
    if right is None or stated or "window" not in subject.arguments or subject.kernel_layout is not None:
        return False
    for convention in window_conventions(session.source):
        understanding.right_intent = replace(right, convention=convention)
        if not wrong_answers(session, observations):
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
        # Two roles may share a projection on purpose, as queries and keys do in Reformer.
        session.find("one-projection", "projections", warning=len(same) < 3, names=names)
