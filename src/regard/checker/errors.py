"""The error that the checker raises."""

from regard.support.characters import escape


class CheckError(ValueError):
    """The code cannot be checked: one line that says why and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(escape(message))
