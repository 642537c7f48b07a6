"""Capture: certified attention maps of every head of a model, recorded on the model's own fast path."""

from regard.recorder.capture_block import capture
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.certificate import Certificate, Evidence
from regard.recorder.certificates.foreign_weights import certify
from regard.recorder.contributions import Attribution, OutputProjection
from regard.recorder.layer import Layer
from regard.recorder.sizes import capture_size
from regard.recorder.storage.loader import load
from regard.recorder.tokens_of_maps.predictions import Predictions

__all__ = [
    "Attribution",
    "Capture",
    "Certificate",
    "Evidence",
    "Layer",
    "OutputProjection",
    "Predictions",
    "capture",
    "capture_size",
    "certify",
    "load",
]
