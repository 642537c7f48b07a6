"""Figures, the page and its server. `Capture` shows itself through `viewer`, which is imported on demand."""

from regard.show.figures import figure, plot

__all__ = ["figure", "plot"]
