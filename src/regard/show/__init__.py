"""Pictures: figures, the page and its server. Importing it teaches captures to show themselves."""

from regard.recorder import Seen
from regard.show import viewer
from regard.show.figures import figure, plot

Seen.viewer = viewer

__all__ = ["figure", "plot"]
