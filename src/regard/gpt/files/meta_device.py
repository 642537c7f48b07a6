"""Models without weights, for those whose weights are read from files: no memory and no random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def without_weights() -> Iterator[None]:
    """Make the modules of a `with` block on the meta device, and leave out their initialisation."""
    with torch.device("meta"), _WithoutInitialisation():
        yield


class _WithoutInitialisation(TorchFunctionMode):
    """Leaves tensors as they are: on the meta device, `normal_` imports PyTorch's compiler, for seconds."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # By its module: torch.nn.init has a dozen functions, and each hands itself to the mode before it
        # runs.
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return function(*args, **kwargs)
