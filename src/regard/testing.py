"""Assertions for test suites: `assert_attention(thing)` and `assert_reads(model, batch)`.

They fail with a report that names the mistake.

from regard.testing import assert_attention

def test_my_attention():
    assert_attention(MyAttention, causal=True, init={"d_model": 64, "num_heads": 4})
"""

from __future__ import annotations

from typing import Any

from torch import nn

from regard.auditor.model_audit import audit
from regard.auditor.result import Audit
from regard.checker.checker import check
from regard.checker.errors import CheckError
from regard.checker.reports.report import Report


def assert_attention(thing: Any, *, allow_undecided: bool = False, **options: Any) -> Report:
    """Assert that an attention function, module or class is right.

    Arguments:
        thing: the function, module or class.
        allow_undecided: whether "undecided" passes too. By default only "right" does.
        options: those of `regard.check`.

    Returns the report. If the verdict is another, the report is the message of the AssertionError.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    try:
        report = check(thing, **options)
    except CheckError as error:
        raise error.with_traceback(None) from None  # without the frames of the checker
    if report.ok or (allow_undecided and report.verdict == "undecided"):
        return report
    raise AssertionError(str(report)) from None


def assert_reads(model: nn.Module, batch: Any, *, allow_undecided: bool = False, **options: Any) -> Audit:
    """Assert that a model, on a batch, reads what it should.

    Arguments:
        model: the model.
        batch: what the trainer passes to it.
        allow_undecided: whether "undecided" passes too. By default only "right" does.
        options: those of `regard.audit`.

    Returns the audit. If the verdict is another, the audit is the message of the AssertionError.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    result = audit(model, batch, **options)
    if result.ok or (allow_undecided and result.verdict == "undecided"):
        return result
    raise AssertionError(str(result)) from None
