"""Cases of attention that any language can read, and the judgement of an implementation's answers to them.

`write_cases` writes inputs and float64 answers as safetensors with one JSON index (`case_folder`); the cases
are in `cases.toml`. `judge` compares the results of an implementation (`result_comparison`) and names its
mistake (`mistake_search`).
"""

from regard.conformance.case_folder import write_cases
from regard.conformance.judgement import Judgement, judge
from regard.conformance.result_comparison import CaseVerdict

__all__ = ["CaseVerdict", "Judgement", "judge", "write_cases"]
