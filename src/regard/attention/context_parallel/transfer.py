"""Passes tensors round a ring of processes: each rank sends to the next one and receives from the one before.

This file knows `torch.distributed` and shapes; it does not know what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from regard.support.processes import LostRankError, check_group, is_lost_rank


class Ring(NamedTuple):
    """A process group, and this process in it."""

    group: Any
    rank: int
    size: int

    @classmethod
    def of(cls, group: Any) -> Ring:
        """The ring of a process group, or of a `DeviceMesh` of one dimension."""
        group = check_group(group)
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def gather(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """The numbers of every rank, of which each has as many."""
        own = torch.tensor(numbers, device=device)
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        with self._naming_lost_ranks():
            dist.all_gather(everyone, own, group=self.group)
            return torch.stack(everyone).tolist()

    def pass_on(self, tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> Transfer:
        """Begin to send tensors to the next rank, and to receive some of these shapes from the one before.

        What is sent must not be written to until the transfer is over.
        """
        sent = [x.contiguous() for x in tensors]
        received = [x.new_empty(shape) for x, shape in zip(tensors, shapes, strict=True)]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        operations = [
            # Nothing is sent of an empty tensor: a rank may hold no rows.
            *(dist.P2POp(dist.isend, x, group=self.group, group_peer=after) for x in sent if x.numel()),
            *(dist.P2POp(dist.irecv, x, group=self.group, group_peer=before) for x in received if x.numel()),
        ]
        with self._naming_lost_ranks():
            return Transfer(self, dist.batch_isend_irecv(operations) if operations else [], sent, received)

    def circulate(
        self, tensors: Sequence[Tensor], shapes: Sequence[Sequence[Sequence[int]]]
    ) -> Iterator[tuple[int, Sequence[Tensor]]]:
        """Pass tensors all the way round: yields each rank's, with its number, beginning with this one's.

        `shapes` are those of each rank's tensors. The next ones arrive while the caller computes.
        """
        for step in range(self.size):
            source = (self.rank - step) % self.size
            transfer = self.pass_on(tensors, shapes[source - 1]) if step + 1 < self.size else None
            yield source, tensors
            if transfer is not None:
                tensors = transfer.wait()

    @contextmanager
    def _naming_lost_ranks(self) -> Iterator[None]:
        """Turn the errors of a lost connection into one that says what has happened."""
        try:
            yield
        except RuntimeError as error:
            if not is_lost_rank(error):
                raise
            raise LostRankError(self.rank, self.size) from None


class Transfer(NamedTuple):
    """Tensors on their way to the next rank, and others on their way from the one before."""

    ring: Ring
    works: Sequence[Any]
    sent: Sequence[Tensor]  # kept until they have left
    received: Sequence[Tensor]

    def wait(self) -> Sequence[Tensor]:
        """Wait until both ways are done, and return what was received."""
        with self.ring._naming_lost_ranks():
            for work in self.works:
                work.wait()
        return self.received
