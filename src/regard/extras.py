"""Optional libraries. A missing one is answered with the command that installs it.

with extra("app", "regard.plot"):
    import matplotlib.pyplot as plt
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class MissingExtraError(ImportError):
    """A library of one of the extras is not installed."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import libraries of an extra inside the block.

    MissingExtraError says that `purpose` needs the one which is missing, and how to install the extra `name`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "regard"):
            raise
        raise MissingExtraError(
            f'{purpose} needs {library}, which is not installed: pip install "regard[{name}]"', name=library
        ) from None


def data_frame(data: Any, columns: list[str] | None = None) -> Any:
    """A DataFrame from records or columns; pandas is in no extra, so ImportError says how to install it."""
    try:
        import pandas
    except ImportError:
        raise ImportError("to_pandas needs pandas: pip install pandas") from None
    return pandas.DataFrame(data, columns=columns)
