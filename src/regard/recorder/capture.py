"""`capture`: see inside a model while it runs, without giving up its fused attention."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from regard.recorder import transformers_source
from regard.recorder.recording import Recording
from regard.recorder.seen import Seen


class Capture:
    """The block `with regard.capture(model) as seen: …`."""

    def __init__(self, model: nn.Module, recording: Recording) -> None:
        self.model, self.recording = model, recording
        self._open = ExitStack()

    def __enter__(self) -> Seen:
        if transformers_source.fits(self.model):
            self._open.enter_context(transformers_source.attach(self.model, self.recording))
        return self.recording.seen

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        self.recording.close()


def capture(
    model: nn.Module,
    *,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    dtype: torch.dtype | None = None,
    values: bool = False,
) -> Capture:
    """Record the attention of everything that runs inside the block."""
    recording = Recording(layers=layers, heads=heads, dtype=dtype, values=values, model=type(model).__name__)
    return Capture(model, recording)
