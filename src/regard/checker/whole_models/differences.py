"""Where two outputs of one model differ by more than rounding, and how a mistake is added to a report."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.checker.catalogue import get_mistake
from regard.checker.reports.report import Check, Diagnosis, Report


def differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (T,), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    return where_differ(a, b).any(0)


def where_differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (B, T), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    rounding = 1e-9 if a.dtype == torch.float64 else 1e-4
    # Beside −inf, any difference would be small.
    largest = a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1e-30)
    # Logits of forbidden tokens may be -inf in both.
    same = ((a - b).abs() <= rounding * largest) | (a == b)
    return ~same.flatten(2).all(-1)


def add_mistake(report: Report, check: str, detail: str, mistake: str, fix: str = "") -> None:
    report.checks.append(Check(check, "failed", detail, mistake))
    if mistake and all(d.name != mistake for d in report.diagnoses):
        entry = get_mistake(mistake)
        report.diagnoses.append(
            Diagnosis(mistake, f"In the whole model, {detail}.", entry.effect, fix or entry.fix)
        )
