"""How good are the tests of an attention? They are run on it with each mistake of the catalogue in turn.

`mutate` starts processes that run pytest (`worker`, `one_run`). There the target is replaced wherever it
is bound (`replacement`) by a mutant, which reads what each call asks for (`call_reader`) and answers it with
a mistake (`mutant`). For a mistake that no test notices, `suggestion` writes a test that does.
"""

from typing import TYPE_CHECKING

from regard.support.imports import import_on_first_use

if TYPE_CHECKING:  # what type checkers and editors see; a test holds it equal to what is imported below
    from regard.mutants.report import MutantResult, MutationReport
    from regard.mutants.suite_runs import mutate

__all__ = ["MutantResult", "MutationReport", "mutate"]

_HOME = {
    "MutantResult": "regard.mutants.report",
    "MutationReport": "regard.mutants.report",
    "mutate": "regard.mutants.suite_runs",
}
__getattr__ = import_on_first_use(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
