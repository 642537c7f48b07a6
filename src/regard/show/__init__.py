"""Pictures: figures, the page and its server."""

from regard.show.figures import figure, plot

__all__ = ["figure", "plot"]
