"""One process or many: what `torchrun` started, and PyTorch's own ways for them to work together.

With one process everything here does nothing. This file knows ranks and devices; it does not know what is
trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Processes:
    """This process among `count`."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and speaks."""
        return self.rank == 0

    def part(self, size: int, start: int = 0) -> slice:
        """This process's share of `size · count` things, counted from `start`."""
        return slice(start + self.rank * size, start + (self.rank + 1) * size)

    def total(self, x: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            distributed.all_reduce(x)
        return x

    def wait(self) -> None:
        """Until everyone is here."""
        if self.count > 1:
            distributed.barrier()

    def shared(self, model: nn.Module) -> nn.Module:
        """The model with its gradients averaged over all processes."""
        if self.count == 1:
            return model
        return DistributedDataParallel(model, [self.device] if self.device.type == "cuda" else None)

    def apart(self, model: nn.Module, yes: bool) -> AbstractContextManager[None]:
        """A block in which gradients add up without being averaged yet."""
        if self.count == 1 or not yes:
            return nullcontext()
        return cast(AbstractContextManager[None], cast(DistributedDataParallel, model).no_sync())


@contextmanager
def joined(device: str | None = None) -> Iterator[Processes]:
    """This process's place among those that `torchrun` started, if it did."""
    rank, count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected one that is here, but PyTorch finds no CUDA GPU: try cpu")
    if count == 1:
        yield Processes(0, 1, chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(chosen)
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Processes(rank, count, chosen)
    finally:
        distributed.destroy_process_group()
