"""The process in which code is checked: `python -m regard.checker.worker REQUEST` (see `sandbox`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.checker.sandbox import run_request
from regard.checker.subject.locate import locate


def check_request(request: dict[str, Any], write_line: Callable[..., None]) -> dict[str, Any]:
    """Check the code that the request names."""
    # Here, so that the process can say at once that it has started.
    from regard.checker.checker import check

    thing = locate(request["spec"])
    write_line(phase="checking")
    options = request["options"]
    # JSON holds no functions, so that the request names them as `file.py:name`.
    options |= {name: locate(options[name]) for name in ("cached", "oracle") if options.get(name)}
    return check(thing, **options).to_dict()


if __name__ == "__main__":
    run_request(check_request)
