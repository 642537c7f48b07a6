"""Cases of attention that any language can read, and the judgement of an implementation's answers to them.

`write_cases` writes inputs and float64 answers as safetensors with one JSON index (`case_folder`); the cases
are in `case_table`. `judge` compares the results of an implementation (`result_comparison`) and names its
mistake (`mistake_search`).
"""

from typing import TYPE_CHECKING

from regard.support.imports import import_on_first_use

if TYPE_CHECKING:  # what type checkers and editors see; a test holds it equal to what is imported below
    from regard.conformance.case_folder import write_cases
    from regard.conformance.judgement import Judgement, judge
    from regard.conformance.result_comparison import CaseVerdict

__all__ = ["CaseVerdict", "Judgement", "judge", "write_cases"]

_HOME = {
    "CaseVerdict": "regard.conformance.result_comparison",
    "Judgement": "regard.conformance.judgement",
    "judge": "regard.conformance.judgement",
    "write_cases": "regard.conformance.case_folder",
}
__getattr__ = import_on_first_use(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
