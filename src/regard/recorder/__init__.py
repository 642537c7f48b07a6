"""Capture: what every head of a model looks at, on the model's own fast path, with a certificate."""

from regard.recorder.certificate import Certificate, Evidence
from regard.recorder.context import capture
from regard.recorder.result import Capture, Layer
from regard.recorder.sizes import capture_size
from regard.recorder.storage.folder import load

__all__ = ["Capture", "Certificate", "Evidence", "Layer", "capture", "capture_size", "load"]
