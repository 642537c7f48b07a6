"""Urgent work does not wait for patient work, which runs in its order."""

from __future__ import annotations

import threading

from regard.show.server.work_queue import WorkQueue
from tests.patience import HANGING


def test_urgent_work_runs_while_patient_work_does() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()
    order: list[str] = []

    def block() -> None:
        begun.set()
        assert go.wait(HANGING)

    first = queue.submit(True, block)
    assert begun.wait(HANGING)
    later = queue.submit(True, order.append, "scores")
    dropped = queue.submit(True, order.append, "nobody waits for it")
    last = queue.submit(True, order.append, "thumbnails")
    assert dropped.cancel()
    assert queue.submit(False, lambda: "urgent").result(30) == "urgent"
    go.set()
    for future in (first, later, last):
        future.result(30)
    assert order == ["scores", "thumbnails"]
    queue.shutdown()


def test_what_waits_at_the_end_is_cancelled() -> None:
    queue, begun, go = WorkQueue(1), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        assert go.wait(HANGING)

    queue.submit(True, block)
    assert begun.wait(HANGING)
    waiting = queue.submit(True, lambda: 7)
    queue.shutdown()
    go.set()
    assert waiting.cancelled()
