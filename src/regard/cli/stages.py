"""`regard stages`: a walk through the stages of attention."""

from __future__ import annotations

from pathlib import Path

from regard.stages.figures.walkthrough import walk


def stages(*, save: Path | None) -> None:
    """Walk through attention from nothing: numbers and heatmaps of every stage, and what to look at."""
    walk(save)
