"""The judgement of an implementation by its results: which cases are right, and which mistake it makes.

The results are a safetensors file with `CASE.output` for each case that the implementation can do, and
`CASE.lse`, `CASE.dq`, `CASE.dk` and `CASE.dv` if it has them. What is not there is not judged, and listed.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.oracle.oracle import relative_difference
from regard.conformance.case_folder import TOLERANCES, read_cases
from regard.conformance.cases import ConformanceCase, make_cases
from regard.conformance.mistake_search import NamedMistakes, name_mistakes
from regard.conformance.result_comparison import RESULTS, CaseVerdict, compare_result
from regard.support.cell_output import WrittenReport, wrap
from regard.support.files import FileError, shorten
from regard.support.safetensor_files import SafetensorFile

SEEDS = 10  # the first seeds, of which one may be that of results for other inputs


@dataclass
class Judgement(NamedMistakes, WrittenReport):
    """Whether an implementation is right, and if not, which mistakes explain its results, likeliest first.

    `together` are two mistakes that explain the results together only. `nearest` explains most of them, if
    neither one nor two explain them all. `elsewhere` are mistakes that explain what the first one does not,
    such as packed cases, and `uncompared` the wrong outputs that no mistake explains.
    """

    verdicts: list[CaseVerdict]
    missing: list[str]  # cases without an output
    unknown: list[str] = field(default_factory=list)  # names in the results that no case has
    other_seed: int | None = None  # the seed of the folder for which the results are right
    absent: dict[str, list[str]] = field(default_factory=dict)
    """The cases without a result, by the kind of result: "output", "lse", "dq", "dk" and "dv"."""
    untried: list[str] = field(default_factory=list)  # features of cases that no compared output has
    where: list[str] = field(default_factory=list)  # features that every wrong output has, and no right one

    @property
    def verdict(self) -> str:
        """One of "right", "wrong" and "undecided"; the last if there is no output to judge."""
        if not all(verdict.right for verdict in self.verdicts):
            return "wrong"
        return "right" if self._outputs else "undecided"

    @property
    def ok(self) -> bool:
        """Whether every result that is there is right, and an output is there."""
        return self.verdict == "right"

    @property
    def _outputs(self) -> list[CaseVerdict]:
        return [verdict for verdict in self.verdicts if verdict.result == "output"]

    def to_dict(self) -> dict[str, Any]:
        """Return the judgement as plain data that JSON can hold; None stands for NaN or inf."""
        verdicts = [asdict(v) | {"error": v.error if math.isfinite(v.error) else None} for v in self.verdicts]
        fields = vars(self) | {"results": verdicts}
        del fields["verdicts"]
        return {"verdict": self.verdict, **fields}

    def __str__(self) -> str:
        wrong = [verdict for verdict in self.verdicts if not verdict.right]
        lines = [self._title(len(wrong)), *(f"  ✗ {verdict}" for verdict in wrong)]
        for mistake in self.together or self.mistakes[:1]:
            both = ", with the other mistake at once" if self.together else ""
            lines += _explain(mistake, "The results equal", both)
        for mistake in self.elsewhere:
            lines += _explain(mistake, "Other cases equal")
        is_named = bool(self.mistakes or self.together)
        if self.uncompared and is_named:
            said = "wrong as well, and not explained by this or not compared with it"
            lines += ["", *wrap(f"{said}: {', '.join(self.uncompared)}", "  ")]
        if self.verdict == "wrong" and not is_named:
            lines += ["", *wrap(self._say_unexplained(), "  ")]
        if len(self.mistakes) > 1:
            lines += wrap(f"or: {', '.join(self.mistakes[1:])}", "    ")
        for paragraph in self._say_compared():
            lines += ["", *wrap(paragraph, "  ")]
        return "\n".join(lines)

    def _title(self, wrong: int) -> str:
        """The first line."""
        count = f"({len(self.verdicts) - wrong} of {len(self.verdicts)} results are right)"
        if self.verdict == "wrong":
            names = " and ".join(self.together) or next(iter(self.mistakes), "")
            names = ", and ".join([names, *self.elsewhere]) if names else ""
            return f"WRONG{': ' if names else ''}{names} {count}"
        if self.verdict == "undecided":
            if not self.verdicts:
                return "undecided: there is no result to judge"
            return f"undecided: no output is there, and an implementation is judged by it {count}"
        cases = len(self._outputs) + len(self.missing)
        part = f" in {len(self._outputs)} of {cases} cases" if self.missing else ""
        return f"right{part} {count}"

    def _say_compared(self) -> Iterator[str]:
        """What was compared with which tolerance, and what was not compared."""
        tolerances = {v.dtype: TOLERANCES[v.dtype] for v in self.verdicts if not v.problem}
        if tolerances:
            shares = ", ".join(f"{limit:g} in {dtype}" for dtype, limit in sorted(tolerances.items()))
            yield f"tolerance, relative to the largest number of an output: {shares}"
        if self.missing:
            yield f"not compared, since there is no output: {', '.join(self.missing)}"
        if self.untried and self._outputs:
            yield f"so no output was compared with: {', '.join(self.untried)}"
        parts = []
        for result, cases in self.absent.items():
            names = [name for name in cases if name not in self.missing]
            if result != "output" and names:
                every = len(names) == len({v.case for v in self.verdicts} - set(self.missing))
                parts.append(f"any {result}" if every else f"{result} of {', '.join(names)}")
        if parts:
            yield f"not compared, since it is not there: {'; '.join(parts)}"
        if self.unknown:
            yield f"no result of a case: {shorten(', '.join(self.unknown))}"

    def _say_unexplained(self) -> str:
        """What is said of wrong results that no mistake explains."""
        if self.other_seed is not None:
            return (
                f"The results are right for other inputs, those of seed {self.other_seed}: compute them from "
                f"this folder, or judge them by what `regard conformance write FOLDER --seed "
                f"{self.other_seed}` writes."
            )
        if any(verdict.problem for verdict in self.verdicts):
            return "Results of another shape or kind of number are not examined for mistakes."
        wrong = [verdict for verdict in self._outputs if not verdict.right]
        if not wrong:
            kinds = ", ".join(dict.fromkeys(v.result for v in self.verdicts if not v.right))
            right = "Every output is right" if self._outputs else "No output is there"
            return f"{right}; wrong is {kinds}, and no mistake of the catalogue explains it."
        place = (
            f" Wrong are exactly the outputs of cases with: {', '.join(self.where)}." if self.where else ""
        )
        if wrong and all(verdict.numbers for verdict in wrong):
            return f"{_say_odd_numbers(wrong, len(self._outputs))}{place}"
        if self.nearest:
            return (
                f"Neither one mistake of the catalogue nor two together explain every result. Nearest is "
                f"{self.nearest}, which explains some of them: attention {CATALOGUE[self.nearest].what}."
                f"{place}"
            )
        is_right_mostly = 2 * len(wrong) < len(self._outputs)
        question = "" if is_right_mostly else " Were they computed from the inputs of this folder?"
        return f"Neither one mistake of the catalogue nor two together explain the results.{place}{question}"


def _say_odd_numbers(wrong: list[CaseVerdict], outputs: int) -> str:
    """What is said if every wrong output is zeros, or has NaN or inf."""
    zeros = sum(verdict.numbers.startswith("all zeros") for verdict in wrong)
    parts = []
    if zeros:
        parts.append(f"{zeros} of {outputs} outputs are all zeros: nothing was written there")
    if zeros < len(wrong):
        parts.append(f"{len(wrong) - zeros} of {outputs} outputs have NaN or inf")
    return f"{', and '.join(parts)}. Such numbers tell of no mistake."


def _explain(mistake: str, equal: str, both: str = "") -> list[str]:
    """Return a mistake with what it is, what it does and how to fix it, in lines."""
    entry = CATALOGUE[mistake]
    text = f"{equal} attention {entry.what}{both}. {entry.effect}"
    return ["", f"  {mistake}", *wrap(text, "    "), *wrap(f"fix: {entry.fix}", "    ")]


def judge(folder: str | os.PathLike[str], results: str | os.PathLike[str]) -> Judgement:
    """Compare an implementation's results with the cases of a folder, and name its mistake.

    Arguments:
        folder: what `write_cases` wrote.
        results: a safetensors file with `CASE.output` and, if the implementation has them, `CASE.lse`,
            `CASE.dq`, `CASE.dk` and `CASE.dv`, in the shapes of the right answers, as float64, float32,
            float16 or bfloat16. The tolerance is that of the dtype in which a result is written.
    """
    seed, cases, tensors = read_cases(folder)
    file = SafetensorFile(Path(results), FileError)
    if "plain.q" in file.shapes:
        raise FileError(f"{results}: expected the results of an implementation, got the cases themselves")
    # The weights and the inputs are no results.
    names = {f"{case.name}.{result}" for case in cases for result in RESULTS}
    found = {name: file.read(name) for name in file.shapes if name in names}
    verdicts = []
    absent: dict[str, list[str]] = {result: [] for result in RESULTS}
    for case in cases:
        for result in RESULTS:
            if (name := f"{case.name}.{result}") in found:
                verdicts.append(compare_result(case, result, found[name], tensors[name]))
            else:
                absent[result].append(case.name)
    judgement = Judgement(verdicts, absent["output"], sorted(file.shapes.keys() - names), absent=absent)
    features = {case.name: case.features() for case in cases}
    tried = {name for case, names in features.items() if case not in absent["output"] for name in names}
    judgement.untried = [name for name in dict.fromkeys(sum(features.values(), ())) if name not in tried]
    if judgement.verdict == "wrong":
        judgement.other_seed = _find_seed(cases, found, seed)
        if judgement.other_seed is None:
            named = name_mistakes(verdicts, cases, found, tensors)
            judgement = replace(judgement, where=_find_features(verdicts, features), **vars(named))
    return judgement


def _find_seed(cases: list[ConformanceCase], found: dict[str, Tensor], own: int) -> int | None:
    """Return the seed of other inputs for which an output is right, if it is one of the first."""
    # In a case of one key, or with scores far from 0, an output says little about its inputs.
    names = [case.name for case in cases if f"{case.name}.output" in found and not case.large]
    for seed in range(SEEDS if names else 0):
        right, tolerance = _right_output(names[0], seed)
        got = found[f"{names[0]}.output"]
        is_comparable = got.shape == right.shape and got.is_floating_point()
        if seed != own and is_comparable and relative_difference(got.double(), right) < tolerance:
            return seed
    return None


# Every wrong result is compared with these, and to make the cases of a seed takes as long as to judge some.
@cache
def _right_output(name: str, seed: int) -> tuple[Tensor, float]:
    """Return the right output of a case for the inputs of a seed, and the tolerance at its dtype."""
    case = next(case for case in make_cases(seed) if case.name == name)
    return case.answers()["output"], TOLERANCES[case.dtype]


def _find_features(verdicts: list[CaseVerdict], features: dict[str, tuple[str, ...]]) -> list[str]:
    """Return one or two features that every wrong output has, and no right one; [] if there are none."""
    outputs = [verdict for verdict in verdicts if verdict.result == "output"]
    right = [set(features[verdict.case]) for verdict in outputs if verdict.right]
    wrong = [features[verdict.case] for verdict in outputs if not verdict.right]
    if not wrong or not right:
        return []
    common = [name for name in wrong[0] if all(name in names for names in wrong)]
    for size in (1, 2):
        for group in itertools.combinations(common, size):
            if not any(set(group) <= names for names in right):
                return list(group)
    return []
