"""Jobs of the model: work that sends lines of JSON while it runs, one job at a time, each in its own thread.

This file knows threads and errors; it does not know what a job does, nor how its lines reach the page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from regard.show.data.contents import RemovedTextError
from regard.show.server.limits import ExclusiveJob, RefusedError, StoppedError

Argument = TypeVar("Argument")
Result = TypeVar("Result")
Line = Mapping[str, object]
"""One line of a job: a JSON object."""
SendLine = Callable[[Line], None]
"""Sends a line to the page. Raises `StoppedError` if nobody reads it any more."""
ReportProgress = Callable[[str, int, int], None]
"""Reports what is being done, how much of it is done, and the total. Raises `StoppedError` as well."""


@dataclass(frozen=True)
class ModelJob:
    """Work for the model that a page has requested.

    Arguments:
        doing: describes the work, as in "reading a text", to those who are refused while it runs.
        work: called with a function that sends a line. An error it raises becomes the last line.
    """

    doing: str
    work: Callable[[SendLine], None]


def start(
    job: ModelJob, lock: ExclusiveJob, put: Callable[[Line | None], None], stopped: threading.Event
) -> None:
    """Run a job in a thread, or refuse it if another one runs.

    Arguments:
        job: the work.
        lock: held while the job runs.
        put: takes each line, and None at the end. It is called from the job's thread.
        stopped: set by the caller once nobody reads the lines any more; the job ends at its next line.
    """
    lock.acquire(job.doing)

    def send_line(line: Line) -> None:
        if stopped.is_set():
            raise StoppedError
        put(line)

    def run() -> None:
        try:
            translate_errors(job.work, send_line)
        except StoppedError:
            pass
        except RefusedError as refusal:
            put({"error": str(refusal)})
        except Exception as error:  # a model may fail in any way: the page shows it, the server goes on
            put({"error": f"{type(error).__name__}: {error}"})
        finally:
            lock.release()
            # After the release, so that a page that has seen the end can start the next job.
            put(None)

    # daemon: the model may be deep in a forward pass when the session ends.
    threading.Thread(target=run, name="regard-model", daemon=True).start()


def progress_of(send_line: SendLine) -> ReportProgress:
    """Return a function that reports progress by sending lines."""

    def report(doing: str, done: int, of: int) -> None:
        send_line({"progress": {"doing": doing, "done": done, "of": of}})

    return report


def translate_errors(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call a function without gradients, turning the errors a user can cause into `RefusedError`."""
    try:
        with torch.no_grad():
            return function(argument)
    # Before KeyError, of which it is a kind.
    except RemovedTextError as error:
        raise RefusedError(410, str(error.args[0])) from None
    except KeyError as error:
        raise RefusedError(404, str(error.args[0]) if error.args else "not found") from None
    except (ValueError, OSError) as error:
        raise RefusedError(400, str(error)) from None
