"""Numerical checks: errors as ratios to PyTorch's own, gradients, extreme scores, strides, weights and lse.

All of them need an output that is right; they judge how accurate it is.
"""

from __future__ import annotations

from regard.checker.interpretation.intent import Intent
from regard.checker.probes.number_comparison.extreme_scores import check_extreme_scores
from regard.checker.probes.number_comparison.gradients import probe_gradients
from regard.checker.probes.number_comparison.precision import (
    check_half_precision,
    check_precision,
    check_strides,
    check_sums_of_many_keys,
)
from regard.checker.probes.number_comparison.returned_weights import check_weights_and_lse
from regard.checker.session import CheckSession


def probe_numbers(session: CheckSession) -> None:
    """Make the numerical checks, if the output is right."""
    oracle = session.oracle
    if oracle is None:
        session.add_skip(
            "precision, gradients and extreme scores", "the output is not right, or was not compared"
        )
        return
    exact = session.reference is None or session.reference.is_exact
    if exact:
        check_precision(session, oracle)
    probe_gradients(session, oracle)
    if exact:
        check_half_precision(session, oracle)
        if isinstance(oracle, Intent):
            check_sums_of_many_keys(session, oracle)
        check_extreme_scores(session, oracle)
    check_strides(session)
    check_weights_and_lse(session, oracle)
