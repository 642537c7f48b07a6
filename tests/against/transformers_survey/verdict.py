"""Outcomes: what the survey says of a run, of a class and of a model type."""

from dataclasses import dataclass, field

EQUAL = "equal and certified"
PARTLY = "partly"
REFUSED = "refused"
WRONG = "silently wrong"
CRASH = "crash"
UNNAMED = "missing without a word"
CHANGED = "model changed"
NOT_BUILT = "not built"
NO_MODEL = "no model of its own"
TIMEOUT = "time limit"

FAILURES = (WRONG, CRASH, UNNAMED, CHANGED, TIMEOUT)
ORDER = (*FAILURES, PARTLY, REFUSED, EQUAL, NOT_BUILT, NO_MODEL)  # the worst first


@dataclass
class Verdict:
    """What was found in one run: the worst counts, and all reasons are kept."""

    case: str
    implementation: str
    outcome: str = EQUAL
    reasons: list[str] = field(default_factory=list)
    output: str = ""
    """Against the plain run: "bitwise", "rounding" or "different"."""
    layers: int = 0
    certified: int = 0
    compared: int = 0
    """Layers whose map was held against the weights of the plain run."""

    def add(self, outcome, reason):
        self.outcome = worst([self.outcome, outcome])
        self.reasons.append(f"{outcome}: {reason}")


def worst(outcomes):
    return min(outcomes, key=ORDER.index)
