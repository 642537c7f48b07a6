"""Figures, the page and its server. Importing this package gives captures their `show` and `figure`."""

from regard.recorder import Capture
from regard.show import viewer
from regard.show.figures import figure, plot

Capture.viewer = viewer  # type: ignore[assignment]

__all__ = ["figure", "plot"]
