"""What heads and MLPs add: to the residual stream, to a logit, and through all layers to a token."""

from regard.recorder.contributions.attribution import Attribution
from regard.recorder.contributions.output_projection import OutputProjection

__all__ = ["Attribution", "OutputProjection"]
