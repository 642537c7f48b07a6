"""Which mistake explains a wrong output, which convention would make it right, and when it proves nothing.

A mask of its own, an unknown form or unknown projections leave the verdict open. If nothing explains the
output, the smallest input on which it is wrong is shown.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.diagnose import Match, VariantMatcher, diagnose, diagnose_pairs, explain_parts
from regard.checker.interpretation.understand import NEARLY_RIGHT, Understanding, observe, search
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    describe_difference,
    fitting_intents,
    relative_error,
)
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import CORRECT
from regard.checker.probes.behaviour import dependence, with_options
from regard.checker.probes.questions import lengths_convention
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
    # `dependence` runs the code once for each key.
    if optional or any(o.question.k.shape[-2] > 64 for o in failed):
        return None
    seen = [dependence(session, o.question) for o in failed]
    masks = [visible for visible in seen if visible is not None]
    hiding = [visible for visible in masks if not bool(visible.all())]

    def explains(intent: Intent, observation: Observation, visible: Tensor) -> bool:
        open_intent, masked = intent.seeing(observation.question, visible)
        return open_intent.error(masked, observation.answer) < TOLERANCE

    # There are fewer masks where the code failed; then nothing counts as explained.
    pairs = list(zip(failed, masks, strict=False))
    explained = len(masks) == len(failed) and any(
        all(explains(intent, *pair) for pair in pairs) for intent in session.understanding.intents
    )
    return hiding[0] if hiding and explained else None


_POSITIONS = re.compile(r"rotary|rope\b|apply_rot|\.cos\(|\.sin\(|alibi|relative_|rel_pos|freqs", re.I)


_SCALES = {"no-scale", "scaled-twice", "constant-scale", "scaled-by-width"}
# Words in which docstrings or comments declare another scale, as muP's 1/d.
_OTHER_SCALE = re.compile(
    r"\bmuP\b|\bµP\b|1 ?/ ?d(_?head|_?k)?\b(?! ?\*\* ?-?0?\.5)|\bunscaled\b"
    r"|\b(?:not|no|without|never) (?:be )?scal\w+",
    re.I,
)


class WrongOutput:
    """An output that is wrong for some questions; `wrong` holds their errors by name."""

    def __init__(
        self, session: CheckSession, observations: list[Observation], wrong: dict[str, float]
    ) -> None:
        self.session, self.observations, self.wrong = session, observations, wrong
        self.intents = session.likely_intents
        self.worst = max(wrong.values())

    def diagnose(self) -> None:
        """Find the mistakes behind it, or say why there is no verdict, or show a failing case."""
        # The first that can explain the output records what it found.
        explainers = (
            self._by_earlier_calls,
            self._by_lengths,
            self._by_exchanged_sides,
            self._by_one_mistake,
            self._by_own_mask,
            self._by_two_mistakes,
            self._by_mixed_items,
            self._by_mistakes_of_parts,
            self._by_a_doubt,
            self._by_example,
        )
        any(explain() for explain in explainers)

    def _by_earlier_calls(self) -> bool:
        """Find out whether what the module kept of these questions changes its answer to the first of them.

        `probe_state` asks about short texts only, and rotary tables may grow on a long one.
        """
        session, question = self.session, self.session.cases.plain().to(self.session.dtype)
        if session.module is None or not session.has_passed("calls"):
            return False  # else what it keeps is a cache, or nothing that could be put back
        alone, again = (session.subject.run(question, module=session.fresh_module()).answer for _ in range(2))
        now = session.subject.run(question).answer
        if alone is None or again is None or now is None or not relative_error(again, alone) < TOLERANCE:
            return False  # it is random
        if (error := relative_error(now, alone)) < session.tolerance:
            return False
        previous = max((o.question for o in self.observations), key=lambda asked: asked.q.shape[-2])
        words: dict[str, Any] = {"previous": previous.shapes(), "shapes": question.shapes()}
        words["what"] = describe_difference(error)
        session.checks = [check for check in session.checks if check.name != "calls"]
        session.find("state-between-calls", "calls", distance=error / TOLERANCE, **words)
        session.add_skip("output", "it depends on earlier calls")
        return True

    def _by_lengths(self) -> bool:
        if not (convention := lengths_convention(self.session, self.observations, self.wrong)):
            return False
        self.session.undecided = convention
        right = [o for o in self.observations if o.question.name not in self.wrong]
        self.session.add_results(right, {})
        return True

    def _by_exchanged_sides(self) -> bool:
        """Find out whether code on a sequence and a context is right with the two exchanged."""
        if self.session.subject.inputs != "context" or self.session.understanding.right_intent is not None:
            return False
        exchanged = [
            Observation(replace(o.question, q=o.question.k, k=o.question.q, v=o.question.q), o.answer)
            for o in self.observations
            if o.question.q.shape == o.question.k.shape  # only sides of one shape can be exchanged
        ]
        fits = (VariantMatcher(intent, exchanged).fits(CORRECT) for intent in self.intents[:24])
        if not exchanged or all(error is None for error in fits):
            return False
        self.session.add_results(self.observations, self.wrong)
        evidence = "Queries come from the context, and keys and values from the sequence."
        self.session.add_diagnosis("roles-shuffled", evidence, distance=self.worst / TOLERANCE)
        return True

    def _by_one_mistake(self) -> bool:
        matches = diagnose(self.observations, self.intents, self.session.source)
        if not matches and (observed := self.session.understanding.observed) is not None:
            matches = _diagnose_observed(self.session, observed)
        return self._report(self._plausible(matches))

    def _by_own_mask(self) -> bool:
        session = self.session
        if (lost := _lost_key(session)) is not None:
            keys = session.cases.plain().k.shape[-2]
            session.add_failure("keys", f"no output depends on key {lost} of {keys}")
            return False
        own = None if session.mixed else own_mask(session, self.observations, self.wrong)
        if own is None:
            return False
        # A mask that shows the future alone is wrong.
        if bool(own.triu(1).any()) and not bool(own.tril(-1).any()):
            session.find("inverted-mask", "output")
            return True
        session.leave_open("own-mask")
        return True

    def _by_two_mistakes(self) -> bool:
        # Numbers that are nearly right were rounded on the way, which is no pair of mistakes.
        if self._unknown or self.session.brief or self.worst < NEARLY_RIGHT or self._is_no_softmax():
            return False
        return self._report(diagnose_pairs(self.observations, self.intents, self.session.source))

    def _by_mixed_items(self) -> bool:
        session = self.session
        if not session.mixed:
            return False
        # What else is wrong shows on a single sequence.
        questions = [session.cases.plain(B=1, T=T, seed=2) for T in (7, 5)]
        alone = observe(session.compared, questions, session.dtype)
        matches: list[Match] = []
        if all(VariantMatcher(intent, alone).fits(CORRECT) is None for intent in self.intents):
            matches = diagnose(alone, self.intents, session.source)
            matches = matches or diagnose_pairs(alone, self.intents, session.source)
        session.add_diagnosis("batch-items-mixed", session.mixed)
        if not self._report(matches):
            session.add_results(self.observations, self.wrong)
        return True

    def _by_mistakes_of_parts(self) -> bool:
        if self.session.brief or self.worst < NEARLY_RIGHT:
            return False
        matches = explain_parts(self.observations, self.intents, self.session.source)
        return self._report(self._plausible(matches))

    def _by_a_doubt(self) -> bool:
        """Record why there is no verdict, if there is a doubt."""
        session, wrong = self.session, self.wrong
        if "output" not in wrong:
            outputs = [o.answer.output for o in self.observations if o.question.name in wrong]
            # No convention of masks gives NaN everywhere.
            if not only_masks(wrong) or not all(bool(output.isfinite().any()) for output in outputs):
                return False
            if _check_masks_of_items(session, self.observations):
                return True
            name = session.subject.arguments.get("mask", session.subject.arguments.get("padding", "mask"))
            session.leave_open("unusual-mask", argument=name)
            session.add_pass("output")
            return True
        if self.worst < NEARLY_RIGHT and not self._unknown:
            return False  # precision is lost
        declared = declares_softmax(session)
        if self._evidence and (self._unknown or not declared):
            reason = f"this is not softmax attention: {self._evidence}"
        elif self._unknown:
            reason = f"the oracle cannot reproduce {self._unknown}"
        # Weights in another place may be a part of something else: the set transformer adds the queries.
        elif declared or session.has_failed("keys") or (self._is_usual and computes_weights(session)):
            return False
        else:
            reason = (
                "no form of softmax attention and no known mistake gives its numbers, and it does not call "
                "itself scaled dot-product attention: it may be another kind, such as linear or approximate "
                "attention"
            )
        session.leave_open("nothing-to-compare-with", reason=reason)
        return True

    def _by_example(self) -> bool:
        session = self.session
        session.add_results(self.observations, self.wrong)
        if self.worst < NEARLY_RIGHT:
            evidence = f"The output is right only to {self.worst:.0e}, even in float64: precision is lost."
            session.add_diagnosis("precision-lost", evidence, self.worst, distance=self.worst / TOLERANCE)
        else:
            failing = [o for o in self.observations if not session.error(o) < TOLERANCE]
            case = smallest_failure(session, failing)
            session.example = (
                f"No mistake of the catalogue gives these numbers. The smallest failing case:\n{case}"
            )
        return True

    @functools.cached_property
    def _unknown(self) -> str:
        """The parts of the module that the oracle cannot reproduce, as text."""
        session = self.session
        names = [f"`{name}`" for name in self.intents[0].wiring.unknown[:3]]
        names += [f"what `{name}` does" for name, value in session.subject.call.items() if is_tensor(value)]
        if not names and session.module is not None and (match := _POSITIONS.search(session.source)):
            names = [f"{match.group().strip('.(')!r} in its source"]
        return ", ".join(names)

    @functools.cached_property
    def _evidence(self) -> str:
        """What was measured that speaks against softmax attention; "" if nothing does."""
        return against_softmax(self.session)

    @property
    def _is_usual(self) -> bool:
        """Whether this is a function, or a module whose roles inside are those of its names."""
        observed = self.session.understanding.observed
        return self.session.module is None or (observed is not None and observed.as_named)

    def _is_no_softmax(self) -> bool:
        """Return whether its weights were measured, and are no softmax's."""
        measured = self._is_usual and excludes_softmax(self._evidence)
        if self.session.module is None:
            return measured
        forms_scores, takes_softmax = watch_scores(self.session)
        # Heads that are merged in the wrong order look as if their weights were no softmax's.
        return not forms_scores or (measured and not takes_softmax)

    def _plausible(self, matches: list[Match]) -> list[Match]:
        """Return the matches without a NaN that masks do not explain."""
        named = [match for match in matches if "zero-times-infinity" in match.names]
        if not named or _is_nan_unhidden(self.session, self.wrong):
            return matches
        return [match for match in matches if match not in named]

    def _report(self, matches: list[Match]) -> bool:
        """Record the mistakes that were found, or why they may be none; returns whether there are any."""
        if not matches:
            return False
        session, first = self.session, matches[0]
        name, stated = session.subject.arguments.get("mask"), session.options.get("true_means") is not None
        # A tokenizer's `attention_mask` (B, S) has 1 for tokens, wherever it is used.
        known = stated or (session.subject.mask_form.rank == 1 and name == "attention_mask")
        if first.names == ("inverted-mask",) and name is not None and not known and only_masks(self.wrong):
            session.leave_open("inverted-by-convention", argument=name)
            form = replace(session.compared.mask_form, kind="hide")
            session.compared.mask_form = session.subject.mask_form = form
            session.add_results(self.observations, {})
            return True
        stated = session.options.get("scale") is not None or _SCALES.isdisjoint(first.names)
        if not stated and (said := _OTHER_SCALE.search(prose_of(session.source))):
            session.leave_open("declared-scale", said=said.group())
            return True
        if session.subject.is_transformers and first.names == ("window-dropped",):
            session.leave_open("window-of-the-model")
            return True
        session.add_results(self.observations, self.wrong)
        if "window-off-by-one" in first.names and session.options.get("window") is not None:
            detail = "if your window does not count the query's own key, leave window= out"
            matches = [replace(first, detail=detail), *matches[1:]]
        for match in matches[:1] if len(first.names) > 1 else matches[:3]:
            session.add_match(match, self.worst / TOLERANCE)
        return True


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
    seen = [dependence(session, session.cases.plain(seed=seed)) for seed in (97, 98)]
    if any(visible is None or visible.shape[0] < 2 for visible in seen):
        return None
    lost = ~torch.stack([visible.any(0) for visible in seen if visible is not None]).any(0)
    return int(lost.nonzero()[0]) if bool(lost.any()) else None
