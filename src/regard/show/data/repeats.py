"""The scores of heads on random tokens, repeated, as plain data for the page.

Nothing but earlier copies can be found in such a text, so these scores are the clearest evidence of what a
head does. This file knows head tables; it knows no model.
"""

from __future__ import annotations

from typing import Any

from regard.heads import HeadTable
from regard.heads.tables.description import ON_REPEATS


def repeat_rows(table: HeadTable | None) -> list[dict[str, Any]] | None:
    """Return a row for each head with its scores on random repeats; None if they are not known."""
    if table is None:
        return None
    return [
        {
            **data,
            "layer": row.key,  # as the page knows it
            "scores": {name: data["scores"][name] for name in ON_REPEATS if name in data["scores"]},
        }
        for row, data in zip(table, table.to_data(), strict=True)
    ]
