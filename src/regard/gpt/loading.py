"""placeholder being written"""

from __future__ import annotations

from typing import Any


def load(cls: Any, name: Any, *, dtype: Any, device: Any) -> Any:
    raise ValueError("not yet")
