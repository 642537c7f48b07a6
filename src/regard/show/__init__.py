"""Pictures: figures, the page and its server. Captures show themselves through `regard.show.viewer`."""

from regard.show.figures import figure, plot

__all__ = ["figure", "plot"]
