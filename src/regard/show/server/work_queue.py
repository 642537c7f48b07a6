"""Threads that compute answers: urgent ones at once, the others in the order of their patience.

A reader who points at a token must not wait for the scores of thirty layers. So urgent work has threads of
its own, and patient work one thread, which takes the least patient of what is waiting and lets urgent work
end first, since both want all cores. This file knows threads; it does not know what they compute.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, ParamSpec, TypeVar

QUIET = 0.1  # seconds without urgent work after which patient work begins
LONGEST_WAIT = 1.0  # seconds that it waits for that
POLL = 0.01  # seconds

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class WorkQueue:
    """Work by its patience: 0 is urgent; of the rest, less patient work is begun first.

    Arguments:
        threads: how many threads do urgent work.
    """

    def __init__(self, threads: int) -> None:
        self._urgent = ThreadPoolExecutor(threads, "regard-page")
        self._patient = ThreadPoolExecutor(1, "regard-page-patient")
        self._waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self._lock, self._numbers = threading.Lock(), count()
        self._urgent_left = 0
        self._urgent_at = -QUIET  # when urgent work last ended

    def submit(
        self,
        patience: int,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Future[Result]:
        """Call a function in a thread and return its future. Cancelled work that waits is never begun."""
        if not patience:
            with self._lock:
                self._urgent_left += 1
            urgent = self._urgent.submit(function, *arguments, **options)
            urgent.add_done_callback(self._end_urgent)
            return urgent
        future: Future[Result] = Future()
        with self._lock:
            # The number decides between equal patience; futures cannot be compared.
            work = (patience, next(self._numbers), future, lambda: function(*arguments, **options))
            heapq.heappush(self._waiting, work)
        self._patient.submit(self._run_next)
        return future

    def _end_urgent(self, future: Future[Any]) -> None:
        with self._lock:
            self._urgent_left -= 1
            self._urgent_at = time.monotonic()

    def _wait_for_quiet(self) -> None:
        """Let urgent work end, for a while."""
        end = time.monotonic() + LONGEST_WAIT
        while (now := time.monotonic()) < end and (self._urgent_left or now < self._urgent_at + QUIET):
            time.sleep(POLL)

    def _run_next(self) -> None:
        """Do the least patient work that waits, the oldest first."""
        self._wait_for_quiet()
        with self._lock:
            _, _, future, call = heapq.heappop(self._waiting)
        # A future that was cancelled while it waited must not be set.
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        # BaseException: whoever waits for the future must hear of every end.
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self) -> None:
        """Begin nothing more. What runs is not waited for."""
        for threads in (self._urgent, self._patient):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            while self._waiting:
                heapq.heappop(self._waiting)[2].cancel()
