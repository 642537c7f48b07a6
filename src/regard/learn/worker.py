"""The process in which a lesson file is judged: `python -m regard.learn.worker REQUEST` (see `judgement`)."""

from __future__ import annotations

from regard.checker.sandbox import run_request
from regard.learn.judgement import judge_request

if __name__ == "__main__":
    run_request(judge_request)
