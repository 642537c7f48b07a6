"""Answers without a server: names and queries give JSON or bytes, bodies give jobs, in any transport."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.server import jobs
from regard.show.server.answers import Answers
from regard.show.server.jobs import Line, ModelJob, ReportProgress
from regard.show.server.limits import ExclusiveJob, RefusedError
from tests.captures import captured


def lines_of(answers: Answers, name: str, body: object) -> list[Line]:
    """The lines of a job, to its end."""
    lines: SimpleQueue[Line | None] = SimpleQueue()
    job = answers.prepare(name, body)
    assert isinstance(job, ModelJob)
    jobs.start(job, ExclusiveJob(), lines.put, threading.Event())
    return list(iter(lines.get, None))


@pytest.mark.parametrize(
    ("name", "query", "status"),
    [("secrets", {}, 404), ("row", {"text": "0"}, 400), ("heads", {"text": "9"}, 404)],
)
def test_a_wrong_request_is_refused(name: str, query: dict[str, str], status: int) -> None:
    with pytest.raises(RefusedError) as refusal:
        Answers(Contents(captured(4))).compute(name, query)
    assert refusal.value.status == status


def test_a_job_sends_its_lines_to_whoever_takes_them() -> None:
    def read(text: str, report: ReportProgress) -> Capture:
        report("reading", 1, 2)
        return captured(len(text))

    answers = Answers(Contents(captured(4)), read=read)
    progress, last = lines_of(answers, "capture", {"text": "six by"})
    assert progress == {"progress": {"doing": "reading", "done": 1, "of": 2}}
    assert last == {"text": 1}
    assert len(answers.contents.texts) == 2


@pytest.mark.at_length("test_a_wrong_request_is_refused")
def test_answers_need_no_web_server() -> None:
    """A widget answers where the extra `app` is not installed."""
    program = (
        "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; "
        "import regard.show.server.answers"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
