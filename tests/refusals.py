"""Wrong use: tables of calls, each beside the sentence that answers it."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.sampling import together


def refused(
    rows: Iterable[tuple[Callable[..., object], str]],
    subject: Callable[[], Any] | None = None,
    error: type[Exception] = ValueError,
) -> Callable[[], None]:
    """Return a test that every call is answered by an error with its sentence.

    A call takes what `subject` makes, if there is one.
    """

    @together(("call", "sentence"), rows)
    def test(call: Callable[..., object], sentence: str) -> None:
        given = () if subject is None else (subject(),)
        with pytest.raises(error, match=sentence):
            call(*given)

    return test
