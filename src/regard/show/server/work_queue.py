"""Threads that compute answers: urgent ones at once, patient ones one after another.

A reader who points at a token must not wait for the scores of thirty layers. So urgent work has threads of
its own, and patient work one thread, which lets urgent work end first, since both want all cores. This file
knows threads; it does not know what they compute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

QUIET = 0.1  # seconds without urgent work after which patient work begins
LONGEST_WAIT = 1.0  # seconds that it waits for that
POLL = 0.01  # seconds

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class WorkQueue:
    """Work that is urgent or patient.

    Arguments:
        threads: how many threads do urgent work.
    """

    def __init__(self, threads: int) -> None:
        self._urgent = ThreadPoolExecutor(threads, "regard-page")
        self._patient = ThreadPoolExecutor(1, "regard-page-patient")
        self._lock = threading.Lock()
        self.urgent_left = 0
        """How many calls wait or run."""
        self._urgent_at = -QUIET  # when urgent work last ended

    def submit(
        self,
        is_patient: bool,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Future[Result]:
        """Call a function in a thread and return its future. Cancelled work that waits is never begun."""
        if is_patient:

            def call() -> Result:
                self._wait_for_quiet()
                return function(*arguments, **options)

            return self._patient.submit(call)
        with self._lock:
            self.urgent_left += 1
        urgent = self._urgent.submit(function, *arguments, **options)
        urgent.add_done_callback(self._end_urgent)
        return urgent

    def _end_urgent(self, future: Future[Any]) -> None:
        with self._lock:
            self.urgent_left -= 1
            self._urgent_at = time.monotonic()

    def _wait_for_quiet(self) -> None:
        """Let urgent work end, for a while."""
        end = time.monotonic() + LONGEST_WAIT
        while (now := time.monotonic()) < end and (self.urgent_left or now < self._urgent_at + QUIET):
            time.sleep(POLL)

    def shutdown(self) -> None:
        """Begin nothing more. What runs is not waited for."""
        for threads in (self._urgent, self._patient):
            threads.shutdown(wait=False, cancel_futures=True)
