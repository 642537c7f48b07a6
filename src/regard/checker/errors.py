"""The error that the checker raises."""


class CheckError(ValueError):
    """The code cannot be checked: one line that says why and what to do."""
