"""Capture: what every head of a model looks at, on the model's own fast path, with a certificate."""

from regard.recorder.certificate import Certificate, Evidence
from regard.recorder.saved import load
from regard.recorder.seen import Layer, Seen

__all__ = ["Certificate", "Evidence", "Layer", "Seen", "load"]
