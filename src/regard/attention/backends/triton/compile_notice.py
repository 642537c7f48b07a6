"""One line for the user while Triton compiles Regard's kernels, which takes a second each.

Triton keeps what it has compiled on disk, so that this happens once on a machine. The line appears in a
terminal or a notebook, once a process. This file knows when a kernel is compiled; it does not know kernels.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import triton

SECONDS = 0.3  # a kernel that is on disk is there in less
LINE = "Compiling kernels for this GPU, about a second each. Triton keeps them, so this happens once."


class CompileNotice:
    """The hooks of Triton before and after a kernel is compiled; those that were there are called as well."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        self._before, self._after = before, after
        self._said = False
        self._timer: threading.Timer | None = None

    def before(self, *, fn: Any, **others: Any) -> Any:
        """Print the line if a kernel of Regard is not there soon."""
        if fn.module.startswith("regard.") and not self._said and _is_watched():
            self._timer = threading.Timer(SECONDS, self._say)
            self._timer.daemon = True
            self._timer.start()
        return self._before(fn=fn, **others) if self._before is not None else False

    def after(self, **others: Any) -> Any:
        """The kernel is there."""
        if self._timer is not None:
            self._timer.cancel()
        return self._after(**others) if self._after is not None else False

    def _say(self) -> None:
        if not self._said:
            self._said = True
            print(LINE, file=sys.stderr, flush=True)


def _is_watched() -> bool:
    """Whether somebody reads stderr: in a terminal, or below a notebook's cell."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


def install() -> None:
    """Have Triton call the hooks; versions before 3.4 have other ones, and print nothing."""
    if (knobs := getattr(triton, "knobs", None)) is not None:
        runtime = knobs.runtime
        notice = CompileNotice(runtime.jit_cache_hook, runtime.jit_post_compile_hook)
        runtime.jit_cache_hook, runtime.jit_post_compile_hook = notice.before, notice.after
