"""One check in progress: the subject as it was understood, and the findings so far."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.checker.catalogue import get_mistake
from regard.checker.diagnose import Match
from regard.checker.interpretation.cases import Cases
from regard.checker.interpretation.understand import Understanding
from regard.checker.oracle.oracle import (
    TOLERANCE,
    Intent,
    Observation,
    describe_agreement,
    describe_difference,
    relative_error,
)
from regard.checker.oracle.question import Answer, Question
from regard.checker.reports.report import Check, Diagnosis
from regard.checker.shared_weights import WeightMatch
from regard.checker.subject.call_tensors import copy_module, in_dtype
from regard.checker.subject.source import source_of
from regard.checker.subject.subject import Subject

# The checks that compare the output with the oracle's.
OUTPUT_CHECKS = (
    "output",
    "causal",
    "mask",
    "padding",
    "window",
    "softcap",
    "grouped heads",
    "cross-attention",
    "value width",
    "float mask",
)
DOUBTS = tomllib.loads((Path(__file__).parent / "doubts.toml").read_text(encoding="utf-8"))
# How the caller can end a doubt, where several end alike.
COMPARE = "pass your own slow version to compare with: oracle=my_reference, or --oracle FILE.py:Name"
ADAPTER = (
    "write how a sequence is continued, def step(module, x, cache): y, cache = module(x, cache=cache); "
    "return y, cache, and pass check(…, cached=step); the first call gets cache=None"
)


class ComparedAnswer(NamedTuple):
    """What the code answered to a question, and how far that is from the oracle's answer."""

    question: Question
    answer: Answer | None  # None if it raised an error
    error_line: str
    error: float  # relative; inf if one of them has no answer
    agrees: bool

    @property
    def distance(self) -> float:
        """The error in tolerances."""
        return self.error / TOLERANCE


@dataclass
class CheckSession:
    """The state of one call of `regard.check`, which every probe reads and adds its findings to.

    `understanding` says how the code is called and what it should compute; `options` are those of `check`.
    """

    understanding: Understanding
    options: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    mixed: str = ""  # how the items of a batch depend on each other, in a sentence, if they do
    example: str = ""  # the smallest failing case
    notes: list[str] = field(default_factory=list)  # further assumptions for the report
    undecided: str = ""  # why there can be no verdict, if so
    # Those whose output was the oracle's, by name; of several with one name the first.
    right_questions: dict[str, Question] = field(default_factory=dict)
    brief: bool = False  # whether only single mistakes are looked for, which takes a tenth of the time
    reference: Reference | None = None  # the caller's own version, which then says what is right

    def __post_init__(self) -> None:
        understanding = self.understanding
        self.subject: Subject = understanding.subject  # the code under test
        self.module: nn.Module | None = understanding.subject.module  # None for a function
        # What is compared with the oracle: the subject, or the attention observed inside it.
        self.compared: Subject = understanding.compared
        self.cases: Cases = understanding.cases  # makes questions for the subject
        # In which mistakes are recognised: float64 if the code runs in it.
        self.dtype: torch.dtype = understanding.dtype

    @property
    def always(self) -> dict[str, Any]:
        """What every question of the same code in other sizes says: a window only if the caller stated it."""
        stated = self.options.get("window") is not None
        return {name: value for name, value in self.cases.always.items() if name != "window" or stated}

    @property
    def right_intent(self) -> Intent | None:
        """The interpretation under which the output is right; None if an output check has failed."""
        return None if self.has_failed(*OUTPUT_CHECKS) else self.understanding.right_intent

    @property
    def oracle(self) -> Oracle | None:
        """What says which answer is right; None if the output was wrong, or could not be compared."""
        if self.reference is None:
            return self.right_intent
        return self.reference if self.has_passed("output") and not self.has_failed("output") else None

    @property
    def tolerance(self) -> float:
        """The relative difference below which outputs agree: wider for code that needs half precision."""
        return max(TOLERANCE, 20 * torch.finfo(self.dtype).eps * (self.dtype.itemsize == 2))

    @property
    def arguments(self) -> set[str]:
        """The meanings of the arguments that questions may use: those of a reference count, too."""
        own = set(self.subject.arguments)
        return own if self.reference is None else own & self.reference.session.subject.arguments.keys()

    @property
    def likely_intents(self) -> list[Intent]:
        """The interpretations that may be meant: the one under which the output is right, or else all."""
        right = self.understanding.right_intent
        return self.understanding.intents if right is None else [right]

    @property
    def presumed_oracle(self) -> Oracle:
        """What says which answer is right before the output was compared: the likeliest interpretation."""
        return self.reference or self.likely_intents[0]

    def compare(
        self, question: Question, oracle: Oracle | None = None, subject: Subject | None = None
    ) -> ComparedAnswer:
        """Ask the code, or `subject`, a question, and compare its answer with the oracle's."""
        reply = (subject or self.compared).run(question.to(self.dtype))
        error = math.inf
        if reply.answer is not None:
            error = (oracle or self.presumed_oracle).error(question, reply.answer)
        return ComparedAnswer(question, reply.answer, reply.error_line, error, error < self.tolerance)

    def fresh_module(self) -> nn.Module:
        """Return a copy of the module on which nothing was called yet."""
        assert self.module is not None
        return in_dtype(copy_module(self.module), self.dtype).eval()

    def error(self, observation: Observation) -> float:
        """Return how far an answer is from right."""
        return self.presumed_oracle.error(observation.question, observation.answer)

    @cached_property
    def source(self) -> str:
        """The author's source text, or "". It only decides between mistakes that give the same numbers."""
        return source_of(self.subject)

    def has_passed(self, name: str) -> bool:
        """Return whether a check of this name has passed."""
        return any(check.name == name and check.status == "passed" for check in self.checks)

    def has_failed(self, *names: str) -> bool:
        """Return whether a check of one of these names has failed."""
        return any(check.name in names and check.status == "failed" for check in self.checks)

    def with_causal_flag(self, question: Question) -> Question:
        """Return a question with the code's causal argument set, if that is free and right on its own."""
        is_free = "causal" in self.subject.arguments and self.options.get("causal") is None
        return replace(question, flag=True) if is_free and not self.has_failed("causal") else question

    def with_explicit_mask(self, question: Question) -> Question:
        """Return a question without the module's own causality, if a mask argument replaces that.

        It does in Transformers, where the model passes a mask that is already causal.
        """
        return replace(question, flag=False) if self.subject.is_transformers else question

    def add_check(self, name: str, status: str, detail: str, mistake: str = "") -> None:
        """Record a check with its outcome; see `Check`."""
        self.checks.append(Check(name, status, detail, mistake))

    def add_pass(self, name: str, detail: str = "") -> None:
        """Record a check that passed."""
        self.add_check(name, "passed", detail)

    def add_skip(self, name: str, reason: str) -> None:
        """Record a check that could not be made."""
        self.add_check(name, "skipped", reason)

    def add_untried(self, name: str, how: str) -> None:
        """Record a check that was not made; `how` says what the caller can do to have it made."""
        self.add_check(name, "untried", how)

    def add_failure(self, name: str, detail: str) -> None:
        """Record a check that failed, without a diagnosis."""
        self.add_check(name, "failed", detail)

    def leave_open(self, doubt: str, **words: Any) -> None:
        """Record why there can be no verdict, and what was not checked: an entry of `DOUBTS` with words."""
        words |= {"compare": COMPARE, "adapter": ADAPTER}
        entry = {name: " ".join(text.split()).format(**words) for name, text in DOUBTS[doubt].items()}
        self.undecided = entry["why"]
        if "skipped" in entry:
            self.add_skip(entry.get("check", "output"), entry["skipped"])

    def add_results(self, observations: list[Observation], wrong: dict[str, float]) -> None:
        """Record a pass or a failure for every question; `wrong` holds the errors of those that failed."""
        for name in dict.fromkeys(observation.question.name for observation in observations):
            if name in wrong:
                self.add_failure(name, describe_difference(wrong[name]))
            else:
                self.add_pass(name)

    def add_mistake(
        self,
        check: str,
        detail: str,
        name: str,
        evidence: str,
        error: float | None = None,
        *,
        distance: float | None = None,
        warning: bool = False,
    ) -> None:
        """Record a check that failed (or warns) and the mistake that explains it.

        Arguments:
            check: the check's name.
            detail: what was observed, in a few words.
            name: the mistake's name in the catalogue.
            evidence: why it is this mistake, in a sentence.
            error: the relative difference between the code's numbers and the mistake's.
            distance: how far from right the compared numbers are, in tolerances of this check; inf for NaN
                or an error.
            warning: whether it only warns, even if the mistake usually fails the check.
        """
        warning = warning or get_mistake(name).warning
        self.add_check(check, "warning" if warning else "failed", detail, name)
        self.add_diagnosis(name, evidence, error, distance=distance, warning=warning)

    def find(
        self,
        name: str,
        check: str,
        error: float | None = None,
        *,
        distance: float | None = None,
        warning: bool = False,
        **words: Any,
    ) -> None:
        """Record a check that failed by a mistake, in the catalogue's own words for this check.

        `words` fill the places in them. The others are as in `add_mistake`.
        """
        found = get_mistake(name).found[check]
        detail, evidence = (found[text].format(**words) for text in ("detail", "evidence"))
        self.add_mistake(check, detail, name, evidence, error, distance=distance, warning=warning)

    def add_diagnosis(
        self,
        name: str,
        evidence: str,
        error: float | None = None,
        *,
        distance: float | None = None,
        warning: bool = False,
    ) -> None:
        """Record a mistake, unless it is recorded already. A failure replaces a warning."""
        entry = get_mistake(name)
        warning = warning or entry.warning
        previous = next((d for d in self.diagnoses if d.name == name), None)
        if previous is None or (previous.warning and not warning):
            self.diagnoses = [d for d in self.diagnoses if d is not previous]
            self.diagnoses.append(
                Diagnosis(name, evidence, entry.effect, entry.fix, error, distance, warning=warning)
            )

    def add_match(self, match: Match, distance: float, *, warning: bool = False) -> None:
        """Record the mistakes whose variants reproduced the code's numbers.

        `distance` is how far from right these numbers are, in tolerances.
        """
        for name in match.names:
            entry = get_mistake(name)
            others = [other for other in match.names if other != name]
            together = f", together with {others[0]}" if others else ""
            start = "On some inputs your output" if match.partial else "Your output"
            evidence = f"{start} equals attention {entry.what}{together}, {describe_agreement(match.error)}"
            evidence += f": {match.detail}." if match.detail else "."
            self.add_diagnosis(name, evidence, match.error, distance=distance, warning=warning)


@dataclass
class Reference:
    """The caller's own slow version: what it answers is right. It and the code share their weights."""

    session: CheckSession  # that of the reference itself, which says how it is called
    match: WeightMatch
    dtype: torch.dtype  # that of the code under test, to which inputs are rounded first
    mismatch: str = ""  # why the weights could not be matched, if so

    @property
    def name(self) -> str:
        """The reference's name."""
        return self.session.subject.name

    @property
    def yardstick(self) -> str:
        """Whose error the code's is compared with at each precision."""
        return f"that of {self.name}"

    def answer(self, question: Question) -> Answer | None:
        """Return the right answer to a question; None if the reference does not take it.

        Padding is free, and so are rows without a number.
        """
        answer = self.session.subject.run(question.to(self.dtype).to(self.session.dtype)).answer
        if answer is None or not bool(answer.output.isfinite().any()):
            return None
        free = ~answer.output.isfinite().all(-1, keepdim=True)
        padded = question.padded_rows
        return answer._replace(free=free if padded is None else free | padded)

    def error(self, question: Question, answer: Answer) -> float:
        """Return how far an answer is from the reference's; inf if the reference has none."""
        expected = self.answer(question)
        return float("inf") if expected is None else relative_error(answer, expected)

    def measure(self, question: Question, dtype: torch.dtype) -> tuple[Answer, float] | str:
        """Return the exact answer for inputs and weights rounded to `dtype`, and the reference's own error.

        Text instead says why the reference does not run in this precision.
        """
        subject, rounded = self.session.subject, question.to(dtype)
        own = subject.module_as(dtype)
        module = None if own is None else in_dtype(copy_module(own), torch.float64)
        exact = subject.run(rounded.to(torch.float64), module=module).answer
        reply = subject.run(rounded)
        if exact is None or reply.answer is None:
            return f"{self.name}, your reference, raises {reply.error_line}"
        # A reference may be exact by luck, but rounding an output costs half a unit of the last place.
        return exact, max(relative_error(reply.answer, exact), torch.finfo(dtype).eps / 2)


Oracle = Intent | Reference
"""Says which answer is right: an interpretation of the code as attention, or the caller's reference."""
