"""The judgement of an implementation by its results: which cases are right, and which mistake it makes.

The results are a safetensors file with `CASE.output` for each case that the implementation can do, and
`CASE.lse`, `CASE.dq`, `CASE.dk` and `CASE.dv` if it has them. What is not there is not judged.
"""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.checker.catalogue import CATALOGUE
from regard.checker.diagnose import diagnose, diagnose_pairs, explain_parts
from regard.checker.interpretation.intent import TOLERANCE, Intent, Observation
from regard.checker.oracle.answer import Answer
from regard.checker.oracle.cache_variant import CacheVariant
from regard.checker.oracle.oracle import describe_difference, relative_difference, relative_error
from regard.checker.oracle.wiring import Affine, Wiring
from regard.conformance.case_folder import GRADIENTS, TOLERANCES, read_cases
from regard.conformance.cases import ConformanceCase, make_cases
from regard.support.files import FileError, shorten
from regard.support.safetensor_files import SafetensorFile

WIDTH = 100  # columns
SEEDS = 10  # the first seeds, of which one may be that of results for other inputs
INTENTS = [Intent(Wiring(), causal=False)]  # attention on queries, keys and values as they are
SPECIAL = ("scale", "empty-rows", "large-scores", "cache")  # cases that have names of their own for mistakes


@dataclass(frozen=True)
class CaseVerdict:
    """How one result of one case compares: `error` is relative to the largest right number."""

    case: str
    result: str  # "output", "lse", "dq", "dk" or "dv"
    right: bool
    error: float
    problem: str = ""  # a wrong shape, in words


@dataclass
class Judgement:
    """Whether an implementation is right, and if not, which mistakes explain its results, likeliest first."""

    verdicts: list[CaseVerdict]
    missing: list[str]  # cases without an output
    mistakes: list[str]
    unknown: list[str] = field(default_factory=list)  # names in the results that no case has
    together: list[str] = field(default_factory=list)  # two mistakes that explain the results together only
    nearest: str = ""  # the mistake that explains most of them, if neither one nor two explain them all
    other_seed: int | None = None  # the seed of the folder for which the results are right
    elsewhere: list[str] = field(default_factory=list)
    """Mistakes that explain what the first one does not: cases with sink logits, or packed ones."""
    uncompared: list[str] = field(default_factory=list)
    """Wrong outputs that were not compared with what the mistakes give."""

    @property
    def verdict(self) -> str:
        """One of "right", "wrong" and "undecided"; the last if there is no result to judge."""
        if not self.verdicts:
            return "undecided"
        return "right" if all(verdict.right for verdict in self.verdicts) else "wrong"

    @property
    def ok(self) -> bool:
        """Whether every result that is there is right."""
        return self.verdict == "right"

    def to_dict(self) -> dict[str, Any]:
        """Return the judgement as plain data that JSON can hold; None stands for NaN or inf."""
        verdicts = [asdict(v) | {"error": v.error if math.isfinite(v.error) else None} for v in self.verdicts]
        found = {
            "verdict": self.verdict,
            "mistakes": self.mistakes,
            "together": self.together,
            "nearest": self.nearest,
            "elsewhere": self.elsewhere,
            "uncompared": self.uncompared,
            "other_seed": self.other_seed,
            "missing": self.missing,
            "unknown": self.unknown,
        }
        return found | {"results": verdicts}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the judgement as JSON, indented by `indent` spaces; None puts it on one line."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def __str__(self) -> str:
        wrong = [verdict for verdict in self.verdicts if not verdict.right]
        title = {"right": "right", "wrong": "WRONG", "undecided": "undecided: there is no result to judge"}
        name = f": {self.mistakes[0]}" if self.mistakes else ""
        name = f": {' and '.join(self.together)}" if self.together else name
        name = f"{name}, and {', '.join(self.elsewhere)}" if name and self.elsewhere else name
        count = len(self.verdicts) - len(wrong)
        lines = [f"{title[self.verdict]}{name} ({count} of {len(self.verdicts)} results are right)"]
        for verdict in wrong:
            problem = verdict.problem or describe_difference(verdict.error)
            lines.append(f"  ✗ {verdict.case}.{verdict.result}: {problem}")
        for mistake in self.together or self.mistakes[:1]:
            entry = CATALOGUE[mistake]
            both = ", with the other mistake at once" if self.together else ""
            text = f"The results equal attention {entry.what}{both}. {entry.effect}"
            lines += ["", f"  {mistake}", *_wrap(text), *_wrap(f"fix: {entry.fix}")]
        for mistake in self.elsewhere:
            entry = CATALOGUE[mistake]
            text = f"Other cases equal attention {entry.what}. {entry.effect}"
            lines += ["", f"  {mistake}", *_wrap(text), *_wrap(f"fix: {entry.fix}")]
        if self.uncompared and (self.mistakes or self.together):
            names = ", ".join(self.uncompared)
            lines += [
                "",
                *_wrap(f"wrong as well, and not compared with what this mistake gives: {names}", "  "),
            ]
        if self.verdict == "wrong" and not self.mistakes and not self.together:
            lines += ["", *_wrap(self._say_unexplained(), "  ")]
        if len(self.mistakes) > 1:
            lines += _wrap(f"or: {', '.join(self.mistakes[1:])}")
        if self.missing:
            lines += ["", *_wrap(f"not judged: {', '.join(self.missing)}", "  ")]
        if self.unknown:
            lines += ["", *_wrap(f"no result of a case: {shorten(', '.join(self.unknown))}", "  ")]
        return "\n".join(lines)

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
        if self.nearest:
            return (
                f"Neither one mistake of the catalogue nor two together explain every result. Nearest is "
                f"{self.nearest}, which explains some of them: attention {CATALOGUE[self.nearest].what}."
            )
        return (
            "Neither one mistake of the catalogue nor two together explain the results. Were they computed "
            "from the inputs of this folder?"
        )


def _wrap(text: str, indent: str = "    ") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def judge(folder: str | os.PathLike[str], results: str | os.PathLike[str]) -> Judgement:
    """Compare an implementation's results with the cases of a folder, and name its mistake.

    Arguments:
        folder: what `write_cases` wrote.
        results: a safetensors file with `CASE.output` and, if the implementation has them, `CASE.lse`,
            `CASE.dq`, `CASE.dk` and `CASE.dv`, in the shapes of the right answers and any float dtype.
    """
    seed, cases, tensors = read_cases(folder)
    file = SafetensorFile(Path(results), FileError)
    if "plain.q" in file.shapes:
        raise FileError(f"{results}: expected the results of an implementation, got the cases themselves")
    found = {name: file.read(name) for name in file.shapes if name in tensors}
    verdicts, missing = [], []
    for case in cases:
        if f"{case.name}.output" not in found:
            missing.append(case.name)
        for result in ("output", "lse", *GRADIENTS):
            if (name := f"{case.name}.{result}") in found:
                verdicts.append(_compare(case, result, found[name], tensors[name]))
    judgement = Judgement(verdicts, missing, [], sorted(file.shapes.keys() - tensors.keys()))
    if judgement.verdict == "wrong":
        judgement.other_seed = _find_seed(cases, found, seed)
        if judgement.other_seed is None:
            _name_mistakes(judgement, cases, found, tensors)
    return judgement


def _find_seed(cases: list[ConformanceCase], found: dict[str, Tensor], own: int) -> int | None:
    """Return the seed of other inputs for which an output is right, if it is one of the first."""
    names = [case.name for case in cases if f"{case.name}.output" in found]
    for seed in range(SEEDS if names else 0):
        case = next(case for case in make_cases(seed) if case.name == names[0])
        right, got = case.answers()["output"], found[f"{case.name}.output"]
        is_comparable = got.shape == right.shape and got.is_floating_point()
        if (
            seed != own
            and is_comparable
            and relative_difference(got.double(), right) < TOLERANCES[case.dtype]
        ):
            return seed
    return None


def _compare(case: ConformanceCase, result: str, got: Tensor, right: Tensor) -> CaseVerdict:
    problem = ""
    if not got.is_floating_point():
        problem = f"expected floating-point numbers, got {got.dtype}".replace("torch.", "")
    elif got.shape != right.shape:
        problem = f"expected {tuple(right.shape)}, got {tuple(got.shape)}"
    if problem:
        return CaseVerdict(case.name, result, False, math.inf, problem)
    error = relative_difference(got.double(), right.double())
    # Gradients are sums of more terms than an output is.
    limit = TOLERANCES[case.dtype] * (5 if result in GRADIENTS else 1)
    return CaseVerdict(case.name, result, error < limit, error)


def _name_mistakes(
    judgement: Judgement,
    cases: list[ConformanceCase],
    found: dict[str, Tensor],
    tensors: dict[str, Tensor],
) -> None:
    """Name the mistakes that explain all results of some kind of case: plain, packed, then the special."""
    verdicts = judgement.verdicts
    wrong = {(v.case, v.result) for v in verdicts if not v.right}
    comparable = {v.case for v in verdicts if v.result == "output" and not v.problem}
    judged = [case for case in cases if case.name in comparable]
    kinds: dict[str, list[ConformanceCase]] = {"plain": [], "sinks": [], "packed": []}
    for case in judged:
        if case.dtype == "float32" and case.name not in SPECIAL:
            # With sink logits the variants have a softmax of their own, which is right.
            kind = "sinks" if case.question.sinks is not None else case.question.layout or "plain"
            kinds[kind].append(case)
    explained: set[str] = set()
    for alike in kinds.values():
        if not any((case.name, "output") in wrong for case in alike):
            continue
        observations = [Observation(case.question, Answer(_unpacked(case, found))) for case in alike]
        if not explained:
            explained = {case.name for case in alike}
            # NaN everywhere tells nothing of its cause, unless there is nothing else.
            finite = [o for o in observations if bool(o.answer.output.isfinite().any())]
            names = {o.question.name for o in finite}
            if any(case == name for case, result in wrong if result == "output" for name in names):
                observations = finite
            # NaN in a case without a mask is not that of a mask times infinity.
            if finite or not all(_is_unmasked(case) for case in alike):
                _diagnose(judgement, observations)
            continue
        # One mistake may explain these cases, too; another one is said beside it.
        named = [name for match in diagnose(observations, INTENTS) for name in match.names]
        if named and not set(named) & {*judgement.mistakes, *judgement.together}:
            judgement.elsewhere.append(named[0])
        if named:
            explained |= {case.name for case in alike}
    if explained:
        outputs = (case.name for case in judged if (case.name, "output") in wrong)
        judgement.uncompared = [f"{name}.output" for name in outputs if name not in explained]
        return
    judgement.mistakes = list(dict.fromkeys(_special_mistakes(judged, found, tensors, wrong)))


def _diagnose(judgement: Judgement, observations: list[Observation]) -> None:
    """Name one mistake, two that are made together, or the one that explains most of the observations."""
    if matches := diagnose(observations, INTENTS):
        judgement.mistakes = list(dict.fromkeys(name for match in matches for name in match.names))
    elif pairs := diagnose_pairs(observations, INTENTS):
        judgement.together = list(pairs[0].names)
    elif parts := explain_parts(observations, INTENTS):
        judgement.nearest = parts[0].names[0]


def _is_unmasked(case: ConformanceCase) -> bool:
    """Whether no key of a case is hidden from any query."""
    q = case.question
    return not q.causal and all(x is None for x in (q.mask, q.padding, q.window, q.lengths))


def _unpacked(case: ConformanceCase, found: dict[str, Tensor]) -> Tensor:
    """Return the output of a case as (B, H, T, E), in float64."""
    output = found[f"{case.name}.output"].double()
    if case.question.lengths is None:
        return output
    parts = torch.split(output, list(case.question.lengths[0]))
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True).transpose(1, 2)


def _special_mistakes(
    judged: list[ConformanceCase],
    found: dict[str, Tensor],
    tensors: dict[str, Tensor],
    wrong: set[tuple[str, str]],
) -> Iterator[str]:
    """Yield the mistakes that show in one kind of case or result alone."""
    outputs = {case for case, result in wrong if result == "output"}
    for case in judged:
        if case.name == "cache" and case.name in outputs:
            yield from _cache_mistakes(case, found["cache.output"])
        if case.name == "scale" and case.name in outputs:
            ignoring = replace(case, scale=None).answers()["output"]
            if relative_difference(found["scale.output"].double(), ignoring) < TOLERANCE:
                yield "scale-ignored"
    if "large-scores" in outputs and not bool(found["large-scores.output"].isfinite().all()):
        yield "softmax-overflow"
    if "empty-rows" in outputs and bool(found["empty-rows.output"].isnan().any()):
        yield "empty-row-nan"
    if outputs and all(case.startswith(("float16", "bfloat16")) for case in outputs):
        yield "precision-lost"
    for case in judged:
        if (case.name, "lse") in wrong:
            base_2 = tensors[f"{case.name}.lse"] / math.log(2)
            if relative_difference(found[f"{case.name}.lse"].double(), base_2) < 1e-4:
                yield "lse-base-2"
        if (case.name, "dq") in wrong and not outputs and not bool(found[f"{case.name}.dq"].any()):
            yield "weights-detached"


def _cache_mistakes(case: ConformanceCase, output: Tensor) -> list[str]:
    """Return the mistakes of a cache that give this output."""
    question = case.question
    H, D = question.q.shape[1], question.q.shape[3]
    # The cache's oracle projects one sequence; here that holds queries, keys and values side by side.
    x = torch.cat([t.transpose(1, 2).flatten(2) for t in (question.q, question.k, question.v)], -1)
    picks = torch.split(torch.eye(3 * H * D, dtype=torch.float64, device=x.device), H * D, 1)
    query, key, value = (Affine(pick) for pick in picks)
    wiring = Wiring(H, H, query, key, value, splits=True)
    asked = replace(question, q=x, k=x, v=x)
    merged = output.double().transpose(1, 2).flatten(2)
    found: list[tuple[int, str]] = []
    for mistake in CATALOGUE.values():
        for change in mistake.cache_changes:
            try:
                with torch.no_grad():
                    wrong = CacheVariant(**change).answer(asked, wiring, case.pieces or ())
            except (RuntimeError, ValueError, IndexError):
                continue
            if relative_error(Answer(merged), Answer(wrong)) < TOLERANCE:
                found.append((len(change), mistake.name))
    return [name for _, name in sorted(found, key=lambda match: match[0])]
