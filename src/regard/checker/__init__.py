"""The checker: is this attention right, and if not, what is wrong with it?

`check` is the door. A thing becomes a `Subject` (adapt, building), is understood (its shapes, weights,
masks), is put `Question`s (cases), and its answers are held against the oracle (`oracle`, on
`regard.attention.steps`). A wrong answer is matched against the catalogue: each mistake is an
`AttentionVariant` that is wrong in one way.
"""

from regard.checker.catalogue import CATALOGUE, mistake
from regard.checker.checker import check
from regard.checker.report import Check, Diagnosis, Report
from regard.checker.subject.construct import CheckError

__all__ = ["CATALOGUE", "Check", "CheckError", "Diagnosis", "Report", "check", "mistake"]
