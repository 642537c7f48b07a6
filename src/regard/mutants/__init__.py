"""How good are the tests of an attention? They are run on it with each mistake of the catalogue in turn.

`mutate` starts processes that run pytest (`worker`, `one_run`). There the target is replaced wherever it
is bound by a mutant, which reads what each call asks for (`call_reader`) and answers it with
a mistake (`mutant`). For a mistake that no test notices, `suggestion` writes a test that does.
"""

from regard.mutants.report import MutantResult, MutationReport
from regard.mutants.suite_runs import mutate

__all__ = ["MutantResult", "MutationReport", "mutate"]
