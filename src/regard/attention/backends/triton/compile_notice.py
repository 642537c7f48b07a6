"""One line for the user once Triton has begun to compile Regard's kernels, which takes a second each.

Triton keeps what it has compiled on disk, so that this happens once on a machine. The line appears in a
terminal or a notebook, once a process, after the first kernel that was not on disk: only then is it known
that there is something to compile. This file knows when a kernel is compiled; it does not know kernels.
"""

from __future__ import annotations

import sys
from typing import Any

import triton

LINE = (
    "Triton compiled a kernel of Regard for this GPU; a few more may follow, about a second each. "
    "It keeps them on disk, so this happens once."
)


class CompileNotice:
    """A listener of Triton's compiler; the listener that was there before is called as well."""

    def __init__(self, listener: Any = None) -> None:
        self._listener = listener
        self._said = False

    def __call__(self, *, src: Any, cache_hit: bool, **others: Any) -> None:
        """Print the line if a kernel of Regard was compiled now, and not read from disk."""
        if self._listener is not None:
            self._listener(src=src, cache_hit=cache_hit, **others)
        ours = getattr(getattr(src, "fn", None), "module", "").startswith("regard.")
        if ours and not cache_hit and not self._said and _is_watched():
            self._said = True
            print(LINE, file=sys.stderr, flush=True)


def _is_watched() -> bool:
    """Whether somebody reads stderr: in a terminal, or below a notebook's cell."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def install() -> None:
    """Have Triton call the listener; versions before 3.4 have none, and print nothing."""
    if (knobs := getattr(triton, "knobs", None)) is not None:
        knobs.compilation.listener = CompileNotice(knobs.compilation.listener)
