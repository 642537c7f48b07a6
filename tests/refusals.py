"""Wrong use: tables of calls, each beside the sentence that answers it."""

import pytest

from tests.sampling import together


def refused(rows, subject=None, error=ValueError):
    """Return a test that every call is answered by an error with its sentence.

    A call takes what `subject` makes, if there is one.
    """

    @together(("call", "sentence"), rows)
    def test(call, sentence):
        given = () if subject is None else (subject(),)
        with pytest.raises(error, match=sentence):
            call(*given)

    return test
