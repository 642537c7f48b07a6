"""The checker: is this attention right, and if not, which mistake is it?

`check` makes a `Subject` of the code (`subject`), finds out its shapes, weights and masks (`understand`), and
runs probes on it (`probes`), which compare its answers to questions (`cases`) with the oracle's (`oracle`). A
wrong answer is compared with the catalogue (`mistakes`): each mistake is an `AttentionVariant` that is wrong
in one way.
"""

from regard.checker.catalogue import CATALOGUE, get_mistake
from regard.checker.checker import check
from regard.checker.errors import CheckError
from regard.checker.report import Check, Diagnosis, Report
from regard.checker.visibility import MistakeDistance, VisibilityTable, measure_visibility

__all__ = [
    "CATALOGUE",
    "Check",
    "CheckError",
    "Diagnosis",
    "MistakeDistance",
    "Report",
    "VisibilityTable",
    "check",
    "get_mistake",
    "measure_visibility",
]
