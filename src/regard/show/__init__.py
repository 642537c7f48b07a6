"""Pictures: figures, the page and its server. Importing it teaches captures to show themselves."""

from regard.recorder import Capture
from regard.show import viewer
from regard.show.figures import figure, plot

Capture.viewer = viewer

__all__ = ["figure", "plot"]
