"""The error that the checker raises, and any error in one line."""

from regard.support.characters import escape


class CheckError(ValueError):
    """The code cannot be checked: one line that says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(escape(message))


def error_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message, of a bounded length."""
    try:
        text = (str(error).strip().splitlines() or [""])[0]
    except Exception:  # the author's error has a message that raises another
        text = ""
    return f"{type(error).__name__}: {text}"[:240]
