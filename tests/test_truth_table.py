"""The page of `benchmarks.truth`: its table is that of the committed results, and these can be had again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import transformers.modeling_utils  # noqa: F401  # Regard adds its name there, which no test is to do

import regard.recorder  # noqa: F401
from benchmarks.truth import ROOT, TOOLS, judge, table
from benchmarks.truth_models import CASES, Case
from tests.sampling import share

(RESULTS,) = ROOT.glob("benchmarks/results/truth-*.json")
PAGE = (ROOT / "docs" / "truth.md").read_text(encoding="utf-8")
RECORD: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_page_has_the_table_of_the_results() -> None:
    assert table(RECORD["rows"]) in PAGE
    assert RESULTS.name in PAGE


def test_every_tool_was_asked_for_every_model() -> None:
    asked = {(row["tool"], row["case"], row["seed"]) for row in RECORD["rows"]}
    assert asked == {(tool, case.name, seed) for tool in TOOLS for case in CASES for seed in RECORD["seeds"]}
    assert len(asked) == len(RECORD["rows"])


@pytest.mark.parametrize("case", share(CASES, 6), ids=lambda case: case.name)
@pytest.mark.parametrize("tool", ["Regard", "output_attentions, eager"])
def test_the_verdicts_come_again(tool: str, case: Case) -> None:
    """Those of the tools that this environment has; the others have environments of their own."""
    (expected,) = (
        row for row in RECORD["rows"] if (row["tool"], row["case"], row["seed"]) == (tool, case.name, 0)
    )
    assert judge(tool, case, 0)["counts"] == expected["counts"]
