"""The attention calls that a model makes in one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.recorder.attention_call import Call
from regard.recorder.layer import LayerId
from regard.recorder.observation import observed
from regard.recorder.receiver import CallReceiver


class CallCollector(CallReceiver):
    """Keeps every attention call of one run, by the name of the module that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Call]] = []

    def record(self, layer_id: LayerId, call: Call) -> Call:
        self.calls.append((layer_id.name, call))
        return call


def collect_calls(module: nn.Module, run: Callable[[], Any]) -> list[tuple[str, Call]]:
    """Run a module by `run` and return its attention calls, each with the name of the module that made it."""
    collector = CallCollector()
    with torch.no_grad(), observed(module, collector):
        run()
    return collector.calls
