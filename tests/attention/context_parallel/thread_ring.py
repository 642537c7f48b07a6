"""A ring of threads instead of processes, so that many small problems can be tried in a second."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.attention.context_parallel import ring as ring_module
from regard.attention.context_parallel.transfer import Ring
from tests.patience import HANGING


class Threads:
    """What the threads of one ring share; stands for its process group."""

    def __init__(self, size):
        self.size = size
        self.queues = [queue.Queue() for _ in range(size)]
        self.numbers = [()] * size
        self.barrier = threading.Barrier(size)
        self.rank = threading.local()

    def run(self, function):
        """Call a function with the number of each rank, in a thread for each."""

        def call(rank):
            self.rank.number = rank
            return function(rank)

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(call, range(self.size)))


class ThreadTransfer:
    """Tensors that wait in a queue."""

    def __init__(self, arriving):
        self.arriving = arriving

    def wait(self):
        return self.arriving.get(timeout=HANGING)


class ThreadRing(Ring):
    """A rank of a ring of threads."""

    group: Threads

    def gather(self, numbers, device):
        self.group.numbers[self.rank] = numbers
        self.group.barrier.wait(HANGING)
        everyone = [list(numbers) for numbers in self.group.numbers]
        self.group.barrier.wait(HANGING)
        return everyone

    def pass_on(self, tensors, shapes):
        self.group.queues[(self.rank + 1) % self.size].put([x.clone() for x in tensors])
        return ThreadTransfer(self.group.queues[self.rank])


@pytest.fixture
def threads(monkeypatch):
    """Let `group=` take `Threads`."""

    def of(group):
        return ThreadRing(group, group.rank.number, group.size)

    monkeypatch.setattr(ring_module.Ring, "of", staticmethod(of))
