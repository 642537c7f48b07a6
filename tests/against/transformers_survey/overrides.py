"""What particular model types need besides small sizes. Facts only, each for a field that has no general rule."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {}


def overrides(model_type: str) -> dict[str, Any]:
    return OVERRIDES.get(model_type, {})
