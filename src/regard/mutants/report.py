"""The report of `mutate`: which mistakes a test suite notices, which not, and what would show them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from regard.support.cell_output import WrittenReport, wrap


@dataclass
class MutantResult:
    """What became of one mutant: `killed` if the suite failed on it."""

    name: str
    mistake: str
    killed: bool
    by: str  # the test that failed, with its first line
    difference: float | None = 0.0  # the largest that a call of the suite showed; None for NaN or inf
    reasons: list[str] = field(default_factory=list)  # why the suite's calls do not show it
    test: str = ""  # a test that would have noticed it, to paste
    verified: bool = False  # whether that test passes without the mistake, and fails with it
    unwritten: str = ""  # why there is no such test
    late: bool = False  # whether it was killed by the time limit alone

    @property
    def why(self) -> str:
        """Why it survived, in a sentence."""
        if self.difference is None:
            return "the suite's calls give NaN or inf, and no assertion notices"
        if self.difference > 1e-6:
            percent = 100 * self.difference
            share = f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
            return f"the suite's calls differ by up to {share}, and no assertion notices"
        return f"no call of the suite shows it: {'; '.join(self.reasons[:2]) or 'it makes no call'}"


@dataclass
class MutationReport(WrittenReport):
    """Which of the catalogue's mistakes a test suite notices: the result of `mutate`."""

    target: str
    tests: tuple[str, ...]
    results: list[MutantResult]
    left_out: dict[str, str]  # mistakes that the target cannot have, each with the reason
    baseline: dict[str, Any]  # the run without a mistake: tests, calls, and calls that could not be read
    seconds: float = 0.0

    @property
    def killed(self) -> list[str]:
        """The names of the mutants that the suite notices."""
        return [result.name for result in self.results if result.killed]

    @property
    def survivors(self) -> list[MutantResult]:
        """The mutants that it does not notice."""
        return [result for result in self.results if not result.killed]

    @property
    def ok(self) -> bool:
        """Whether the suite notices every mutant."""
        return not self.survivors

    @property
    def badge(self) -> str:
        """One line for a README: "attention mistakes noticed: 41 of 57"."""
        return f"attention mistakes noticed: {len(self.killed)} of {len(self.results)}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "tests": list(self.tests),
            "badge": self.badge,
            "killed": len(self.killed),
            "mutants": len(self.results),
            "results": [
                asdict(result) | {"why": "" if result.killed else result.why} for result in self.results
            ],
            "left_out": self.left_out,
            "baseline": {
                name: self.baseline[name] for name in ("collected", "passed", "calls", "read", "unread")
            },
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        suite = self.baseline
        lines = [
            self.badge,
            f"  {self.target}: {suite['passed']} tests, {suite['calls']} calls, {self.seconds:.0f} s",
        ]
        for reason, count in suite["unread"].items():
            calls = "1 call keeps its" if count == 1 else f"{count} calls keep their"
            lines += wrap(f"{calls} right answer: {reason}", "  ", "  ")
        for result in self.survivors:
            lines += ["", f"  survived: {result.name}", *wrap(result.why, "    ", "  ")]
            if result.test:
                verified = "" if result.verified else "  # not verified"
                lines += ["", *(f"    {line}".rstrip() for line in result.test.splitlines()), verified]
            else:
                lines += wrap(f"no test: {result.unwritten}", "    ", "  ")
        if self.killed:
            lines += ["", *wrap(f"killed: {', '.join(self.killed)}", "  ", "  ")]
        if late := [result.name for result in self.results if result.late]:
            why = "killed by the time limit alone, which a busy machine may reach as well"
            lines += wrap(f"{why}: {', '.join(late)}", "  ", "  ")
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        if by_reason:
            lines += ["", "  left out"]
        for reason, names in by_reason.items():
            lines += wrap(f"{reason}: {', '.join(names)}", "    ", "  ")
        return "\n".join(line.rstrip() for line in lines)
