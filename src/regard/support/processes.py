"""The processes of one run: their ranks, the collective operations they need, and the signals that stop them.

`torchrun` starts the processes and sets the environment that is read here. With a single process every
operation is a no-op. This file knows ranks, devices and signals; it does not know what is computed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")
LOST = ("timed out", "timeout", "connection closed", "connection reset", "connection refused", "broken pipe")
"""What the messages of `torch.distributed` say, in lower case, when another process does not answer."""


class LostRankError(RuntimeError):
    """Another of the processes that run together has ended, or does not answer."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(
            f"rank {rank} ends, since another of the {size} processes that run together has ended or does "
            "not answer: its own error says why; start all of them again"
        )


def is_lost_rank(error: BaseException | str) -> bool:
    """Whether an error says only that another rank did not come, or has gone."""
    return any(words in str(error).lower() for words in LOST)


def check_group(group: Any) -> distributed.ProcessGroup:
    """Return a process group, also that of a `DeviceMesh` of one dimension; a ValueError if it is neither."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            "group: expected torch.distributed to be initialised, got a process without it: start it with "
            "torchrun and call torch.distributed.init_process_group()"
        )
    # A DeviceMesh is what FSDP2 and tensor parallelism hand out instead of groups.
    group = group.get_group() if hasattr(group, "get_group") else group
    if not isinstance(group, distributed.ProcessGroup):
        raise ValueError(
            "group: expected a process group of torch.distributed that this process is in, as "
            f"torch.distributed.group.WORLD, got {type(group).__name__}"
        )
    return group


@dataclass(frozen=True)
class Processes:
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes files and prints."""
        return self.rank == 0

    def local_slice(self, size: int, start: int = 0) -> slice:
        """The slice of this rank, where every rank takes `size` consecutive items from `start` on."""
        return slice(start + self.rank * size, start + (self.rank + 1) * size)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of `x` over all ranks, in place."""
        if self.world_size > 1:
            distributed.all_reduce(x)
        return x

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        if self.world_size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def on_main(self, action: Callable[[], T]) -> T | None:
        """The result of `action` on rank 0, and None on the others.

        An error of it is raised on every rank, so that none goes on alone.
        """
        result: T | None = None
        error: Exception | None = None
        if self.is_main:
            try:
                result = action()
            # The error must reach the broadcast below, or the other ranks would wait there until the timeout.
            except Exception as raised:
                error = raised
        if self.world_size > 1:
            errors = [error]
            distributed.broadcast_object_list(errors)
            error = errors[0]
        if error is not None:
            raise error
        return result

    def barrier(self) -> None:
        """Wait until every rank has come to this call."""
        if self.world_size > 1:
            distributed.barrier()

    def data_parallel(self, model: nn.Module) -> nn.Module:
        """The model, wrapped so that `backward` averages its gradients over all ranks."""
        if self.world_size == 1:
            return model
        # DistributedDataParallel refuses device_ids for modules on a CPU.
        return DistributedDataParallel(model, [self.device] if self.device.type == "cuda" else None)

    def no_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[None]:
        """A block in which `backward` accumulates gradients without averaging them, if `enabled`.

        `model` is the result of `data_parallel`.
        """
        if self.world_size == 1 or not enabled:
            return nullcontext()
        return cast(AbstractContextManager[None], cast(DistributedDataParallel, model).no_sync())


def is_main_process() -> bool:
    """Whether this process stands alone or is the first that `torchrun` started, before a group is joined."""
    return int(os.environ.get("RANK", 0)) == 0


@contextmanager
def process_group(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, or stand alone if it did not.

    `device` is "cpu" or "cuda"; by default a GPU if PyTorch has one. On leaving the block the group is
    destroyed.
    """
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected a device of this machine, but PyTorch finds no CUDA GPU: try cpu")
    if world_size == 1:
        yield Processes(0, 1, chosen)
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        # NCCL takes the current device in collectives of objects; without it every rank would use GPU 0.
        torch.cuda.set_device(chosen)
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Processes(rank, world_size, chosen)
    finally:
        distributed.destroy_process_group()


# Windows has no SIGHUP.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
SECONDS_OF_ONE_REQUEST = 1.0
"""`timeout` and `torchrun` send a signal twice, to the process and to its group: that is one request."""


class StopRequest:
    """Whether a signal asked the run to stop.

    A plain time, not a `threading.Event`: the lock of an event is not reentrant, so a signal that comes
    while the handler of the first one sets it would wait forever.
    """

    def __init__(self) -> None:
        self._requested_at: float | None = None

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._requested_at is not None

    def handle(self, number: int, frame: object) -> None:
        """The handler of a signal: the first one is noted, a later one raises a KeyboardInterrupt."""
        if self._requested_at is None:
            self._requested_at = time.monotonic()
        elif time.monotonic() - self._requested_at > SECONDS_OF_ONE_REQUEST:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """A request that the first Ctrl-C, SIGTERM or SIGHUP sets; a later one raises a KeyboardInterrupt.

    A signal that the process ignores, as under `nohup`, stays ignored. Outside of the main thread, which
    alone receives signals, the request is never set.
    """
    stop = StopRequest()
    # signal.signal raises ValueError in every other thread.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    # None: a handler that was not set from Python, which could not be restored.
    heard = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, stop.handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
