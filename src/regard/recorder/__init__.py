"""Capture: what every head of a model looks at, on the model's own fast path, with a certificate."""

from regard.recorder.capture import capture
from regard.recorder.certificate import Certificate, Evidence
from regard.recorder.saved import load
from regard.recorder.seen import Layer, Seen
from regard.recorder.sizes import capture_size

__all__ = ["Certificate", "Evidence", "Layer", "Seen", "capture", "capture_size", "load"]
