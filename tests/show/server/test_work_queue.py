"""Urgent work does not wait for patient work, and patient work runs in the order of its patience."""

from __future__ import annotations

import threading

import pytest

from regard.show.server.work_queue import WorkQueue
from tests.patience import HANGING


def test_urgent_work_runs_while_patient_work_does_and_the_least_patient_is_next() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()
    order: list[str] = []

    def block() -> None:
        begun.set()
        assert go.wait(HANGING)

    first = queue.submit(3, block)
    assert begun.wait(HANGING)
    later = queue.submit(2, order.append, "scores")
    dropped = queue.submit(1, order.append, "nobody waits for it")
    sooner = queue.submit(1, order.append, "thumbnails")
    assert dropped.cancel()
    assert queue.submit(0, lambda: "urgent").result(30) == "urgent"
    go.set()
    for future in (first, later, sooner):
        future.result(30)
    assert order == ["thumbnails", "scores"]
    queue.shutdown()


def test_an_error_reaches_who_waits_and_the_next_work_runs() -> None:
    queue = WorkQueue(1)

    def fail() -> None:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        queue.submit(1, fail).result(30)
    assert queue.submit(1, lambda: 7).result(30) == 7
    queue.shutdown()


def test_what_waits_at_the_end_is_cancelled() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert go.wait(HANGING)

    queue.submit(1, block)
    assert begun.wait(HANGING)
    waiting = queue.submit(1, lambda: 7)
    queue.shutdown()
    go.set()
    assert waiting.cancelled()
