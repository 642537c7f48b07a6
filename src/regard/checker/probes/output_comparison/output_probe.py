"""The output compared with the oracle's: every kind of question once, and a diagnosis if one is wrong."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.checker.interpretation.intent import Observation, window_conventions
from regard.checker.probes.behaviour import name_by_behaviour
from regard.checker.probes.output_comparison.failure import COMPARE, smallest_failure
from regard.checker.probes.output_comparison.mask_forms import choose_mask_form, observe_answers
from regard.checker.probes.output_comparison.output_diagnosis import diagnose_output, record_results
from regard.checker.reports.evidence import against_softmax
from regard.checker.session import CheckSession, Reference
from regard.checker.subject.roles_of_parts.parts import attention_parts, model_sentence

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
        record_results(session, observations, wrong)
        session.right_questions += [observation.question for observation in observations]
        _warn_of_window(session)
        return
    diagnose_output(session, observations, wrong)


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
    record_results(session, observations, wrong)
    if failing := [o for o in observations if not session.error(o) < session.tolerance]:
        name_by_behaviour(session, reference, failing)
        case = smallest_failure(session, failing)
        session.example = f"The smallest case that differs from {reference.name}:\n{case}"
    else:
        session.right_questions += [observation.question for observation in observations]


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
        evidence = f"One projection makes {names}."
        session.add_mistake(
            "projections",
            f"{names} share one",
            "one-projection",
            evidence,
            # Two roles may share a projection on purpose, as queries and keys do in Reformer.
            warning=len(same) < 3,
        )
