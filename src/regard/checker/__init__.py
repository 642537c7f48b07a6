"""The checker: is this attention right, and if not, which mistake is it?

`check` makes a `Subject` of the code (`subject`), finds out its shapes, weights and masks
(`interpretation`), and runs probes on it (`probes`), which compare its answers to questions with the oracle's
(`oracle`). A wrong answer is compared with the catalogue (`mistakes`): each mistake is an `AttentionVariant`
that is wrong in one way.

Names are imported when they are first used: the command starts a process that checks, and needs no PyTorch.
"""

from typing import TYPE_CHECKING

from regard.support.imports import import_on_first_use

if TYPE_CHECKING:  # what type checkers and editors see; a test holds it equal to what is imported below
    from regard.checker.catalogue import CATALOGUE, get_mistake
    from regard.checker.checker import check
    from regard.checker.errors import CheckError
    from regard.checker.mistake_visibility import measure_visibility
    from regard.checker.reports.report import Check, Diagnosis, LayerVerdict, Report
    from regard.checker.reports.visibility_table import MistakeDistance, VisibilityTable

__all__ = [
    "CATALOGUE",
    "Check",
    "CheckError",
    "Diagnosis",
    "LayerVerdict",
    "MistakeDistance",
    "Report",
    "VisibilityTable",
    "check",
    "get_mistake",
    "measure_visibility",
]

_HOME = {
    "CATALOGUE": "regard.checker.catalogue",
    "Check": "regard.checker.reports.report",
    "CheckError": "regard.checker.errors",
    "Diagnosis": "regard.checker.reports.report",
    "LayerVerdict": "regard.checker.reports.report",
    "MistakeDistance": "regard.checker.reports.visibility_table",
    "Report": "regard.checker.reports.report",
    "VisibilityTable": "regard.checker.reports.visibility_table",
    "check": "regard.checker.checker",
    "get_mistake": "regard.checker.catalogue",
    "measure_visibility": "regard.checker.mistake_visibility",
}
__getattr__ = import_on_first_use(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
