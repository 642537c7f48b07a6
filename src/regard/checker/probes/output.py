"""The output compared with the oracle's: every kind of question once, and a diagnosis if one is wrong.

Masks come in many conventions: true for seen or for hidden, added, by items or by rows. The one in which the
output is right is found first.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.checker.diagnose import diagnose
from regard.checker.interpretation.hypotheses import window_conventions
from regard.checker.oracle.oracle import TOLERANCE, Observation, relative_error
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.behaviour import dependence, name_by_behaviour
from regard.checker.probes.gradients import output_gradients
from regard.checker.probes.questions import output_questions
from regard.checker.probes.wrong_output import WrongOutput, smallest_failure
from regard.checker.reports.evidence import against_softmax
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.call_tensors import MaskForm, copy_module
from regard.checker.subject.inside import InsideSubject
from regard.checker.subject.source import attention_parts, model_sentence
from regard.checker.subject.subject import Reply, Subject


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
        name, forms = subject.arguments["mask"], _mask_forms(session)
        question = session.with_explicit_mask(cases.masked(seed=11))
        ran = _observe_forms(subject, question, forms, session.dtype)
        if not ran:  # it may be a mask (B, S) of tokens
            stated, tokens = (
                session.options.get("true_means"),
                session.with_explicit_mask(cases.padded(seed=12)),
            )
            token_forms = [MaskForm(kind, 1) for kind in ([stated] if stated else ["look", "zero-one"])]
            if ran := _observe_forms(session.subject, tokens, token_forms, session.dtype):
                form, best = min(ran, key=lambda pair: session.error(pair[1]))
                session.subject.mask_form = form
                session.understanding.assumptions.append(f"{name}: {form}")
                return [best]
            error_line = subject.replaced(mask_form=forms[0]).run(question.to(session.dtype)).error_line
            how = f"`{name}` takes no usual form of a mask: pass a function that makes it of a boolean (T, S)"
            session.add_untried("mask", f"{how}, which raised {error_line}")
            return masked
        form, best = _best_form(session, ran, observations)
        # A module and the attention observed inside it are two subjects with one convention.
        subject.mask_form = session.subject.mask_form = form
        session.understanding.assumptions.append(f"{name}: {form}")
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
        elif (padding := subject.arguments.get("padding")) is None:
            session.add_skip("padding", f"it does not take a mask of (B, 1, T, S): {reply.error_line}")
        elif re.search("pad|len", padding):
            session.add_failure("padding", f"{question.shapes()} raised {reply.error_line}")
        else:  # `context_mask` may be a mask (T, S) of scores, too
            how = f"`{padding}` takes no mask (B, S): pass a function that makes it of one"
            session.add_untried("padding", f"{how}, which raised {reply.error_line}")
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
        matches = [] if fitting else diagnose([*observations, answers[means]], session.likely_intents)
        if fitting or any("inverted-mask" not in match.names for match in matches):
            subject.padding_means = session.subject.padding_means = means
            session.understanding.assumptions.append(f"{name}: {conventions[means]}")
            return


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
        seen = dependence(reference.session, question)
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


def _observe_forms(
    subject: Subject, question: Question, forms: list[MaskForm], dtype: torch.dtype
) -> list[tuple[MaskForm, Observation]]:
    """Return the forms of a mask that the subject takes, with its answers."""
    replies = [(form, subject.replaced(mask_form=form).run(question.to(dtype))) for form in forms]
    return [(form, Observation(question, reply.answer)) for form, reply in replies if reply.answer]


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
    own = subject.mask_form.rank
    ranks = [own] if settled and own != 2 else _mask_ranks(subject.layout)
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
    added = all(_adds_mask(session, masked) for _, masked in boolean)
    others = [(form, masked) for form, masked in ran if form.kind not in ("look", "hide")]
    for form, masked in [*boolean, *(others if added else [])]:
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
    what = f"a boolean `{name}` is accepted and added as 0 and 1"
    if converted:
        what = f"`{converted.group()})` turns a boolean mask into 0 and 1, which are added"
    session.find("mask-added-as-zero-one", "boolean mask", warning=not converted, what=what, argument=name)


def probe_output(session: CheckSession) -> None:
    """Compare the output with the oracle's, or the reference's, with every option that the subject offers."""
    if session.reference is not None:
        _compare_with_reference(session, session.reference)
        return
    if not session.understanding.intents:
        reason = "queries, keys and values could not be found, neither by their names nor by what they do"
        if evidence := against_softmax(session):
            reason = f"this is not softmax attention: {evidence}"
        session.leave_open("nothing-to-compare-with", reason=reason)
        return
    kernel, understanding = session.subject.kernel_layout, session.understanding
    declared = (
        understanding.declared_causal is not None or {"window", "softcap"} & session.cases.always.keys()
    )
    # A mod of FlexAttention that nothing describes and no known rule equals.
    if kernel is not None and kernel.kind == "mod" and not declared and understanding.right_intent is None:
        session.leave_open("undeclared-mod")
        return
    parts = [] if session.module is None else attention_parts(session.module)
    if session.understanding.right_intent is None and len(parts) > 1:
        reason = f"it holds {len(parts)} attentions"
        session.leave_open("is-a-model", sentence=model_sentence(parts), reason=reason)
        return
    observations = observe_answers(session)
    wrong = wrong_answers(session, observations)
    if wrong and _find_window_convention(session, observations):
        wrong = {}
    if not wrong and session.understanding.right_intent is None:
        session.leave_open("no-one-form")
        return
    if not wrong:
        if session.mixed:
            session.add_diagnosis("batch-items-mixed", session.mixed)
        _check_shared_projection(session)
        session.add_results(observations, wrong)
        session.right_questions = {o.question.name: o.question for o in reversed(observations)}
        right = understanding.right_intent
        convention = None if right is None else right.convention
        if convention is not None and convention.one_more:  # which may be meant
            words = f"with a window of n, a query sees {convention.words}"
            session.find("window-off-by-one", "window", warning=True, words=words)
        return
    WrongOutput(session, observations, wrong).diagnose()


def _compare_with_reference(session: CheckSession, reference: Reference) -> None:
    """Compare the output with the reference's, and name what the code does otherwise."""
    if session.mixed:
        session.add_diagnosis("batch-items-mixed", session.mixed)
    if reference.mismatch:
        session.leave_open("weights-not-matched", reference=reference.name, mismatch=reference.mismatch)
        return
    choose_mask_form(session, reference)
    observations = observe_answers(session)
    wrong = wrong_answers(session, observations)
    if "output" in wrong and not reference.match.certain:
        session.leave_open("weights-not-certain", reference=reference.name, how=reference.match.note)
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


def _check_shared_projection(session: CheckSession) -> None:
    """Find one projection used for several roles: the output is right for these weights, but a mistake."""
    intent = session.understanding.right_intent
    if intent is None or session.module is None or session.subject.inputs == "qkv":
        return
    with torch.no_grad():
        query, key, value = intent.wiring.project(session.cases.plain())
    pairs = [(query, key, "query and key"), (key, value, "key and value"), (query, value, "query and value")]
    same = [names for first, second, names in pairs if first.equal(second)]
    weights = _projections(session)
    if same and (weights or intent.wiring.key is not None):  # else there are none, as in a first lesson
        names = "query, key and value" if len(same) == 3 else same[0]
        idle = _idle_channels(session, weights)
        # Two roles may share a projection on purpose, as queries and keys do in Reformer. Then none is idle.
        warning = len(same) < 3 and not idle
        session.find("one-projection", "projections", warning=warning, names=names, idle=idle)


def _projections(session: CheckSession) -> list[str]:
    """Return the paths of the weights that queries, keys and values are observed to come from, or could."""
    inside = session.compared
    if not isinstance(inside, InsideSubject) or session.module is None:
        return []
    weights = {path: weight for path, weight in session.module.named_parameters() if weight.ndim > 1}
    layers = {place.path for role, place in inside.places.items() if role != "merged"}
    shapes = {weight.shape for path, weight in weights.items() if path.rpartition(".")[0] in layers}
    return [path for path, weight in weights.items() if weight.shape in shapes]


def _idle_channels(session: CheckSession, paths: list[str]) -> str:
    """Return which channels of these weights reach no output, as a clause; "" if all do."""
    runnable, question = session.subject.runnable(session.dtype), session.cases.plain().to(session.dtype)
    assert runnable is not None
    module = copy_module(runnable)
    weights: dict[str, Tensor] = {path: x for path, x in module.named_parameters() if path in paths}
    before = session.subject.run(question, module=module).answer
    gradients = "" if before is None else output_gradients(before.output, weights)
    if before is None or isinstance(gradients, str):
        return ""
    for path, axis in itertools.product(weights, (0, 1)):
        idle = ~gradients[path].movedim(axis, 0).flatten(1).any(1)
        kept = weights[path].detach().clone()
        with torch.no_grad():  # a channel without a gradient may be frozen, and not idle
            weights[path].transpose(axis, -1).add_(idle.to(kept))
            after = session.subject.run(question, module=module).answer
            weights[path].copy_(kept)
        if bool(idle.any()) and after is not None and after.output.equal(before.output):
            return f", and no output depends on {int(idle.sum())} of {len(idle)} channels of `{path}`"
    return ""
