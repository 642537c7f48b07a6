"""The tables of docs/packing.md and docs/truth.md are those that are measured."""

import json

import pytest
import torch
import transformers.modeling_utils  # noqa: F401  # Regard adds its name there, which no test is to do

import regard.recorder  # noqa: F401
from benchmarks.truth import ROOT, TOOLS, judge, table
from benchmarks.truth_models import CASES
from scripts import packing_table
from scripts.packing_table import FAMILIES, IMPLEMENTATIONS, ISOLATED, LEAKS, NOT_RUN, PACKINGS
from tests.sampling import share

PAGE = packing_table.PAGE.read_text(encoding="utf-8")


def marks(implementation):
    """The marks of one table of the page, by packing and family, without the numbers of their notes."""
    lines = PAGE.split(f"## `{implementation}`\n")[1].split("\n## ")[0].splitlines()
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))
    return {
        (packing, family): cell.split()[0]
        for packing, *cells in rows
        for family, cell in zip(head, cells, strict=True)
    }


def test_the_page_has_every_cell():
    wanted = {(packing.name, family) for packing in PACKINGS for family in FAMILIES}
    for implementation in IMPLEMENTATIONS:
        assert marks(implementation).keys() == wanted


@pytest.mark.parametrize("family", share(["Llama", "Mistral", "GPT-OSS", "Falcon", "Bamba"], 3))
def test_cells_are_what_is_measured(family):
    """Eager attention and the packings that need no TRL, which the tests do not install."""
    shown, documents = marks("eager"), packing_table.make_documents()
    with packing_table.quiet_and_uncompiled():
        model = packing_table.build_model(family)
        for packing in PACKINGS:
            if not packing.name.startswith("TRL"):
                measured = packing_table.measure(model, packing, "eager", documents)
                assert measured.mark == shown[packing.name, family], (packing.name, measured)


def test_a_cell_that_fails_says_why():
    def fail(model, documents):
        raise ValueError("no such collator. Install it.")

    model = packing_table.build_model("Llama")
    packing = packing_table.Packing("none", fail)
    measured = packing_table.measure(model, packing, "eager", packing_table.make_documents())
    assert (measured.mark, measured.why) == (NOT_RUN, "ValueError: no such collator")


def test_documents_are_found_in_any_order():
    documents = ((5, 6), (7, 8, 9))
    row = torch.tensor([[7, 8, 9, 5, 6]])
    assert packing_table.document_order(row, documents).tolist() == [[1, 1, 1, 0, 0]]
    with pytest.raises(ValueError, match="one after the other"):
        packing_table.document_order(torch.tensor([[7, 8, 5, 6, 9]]), documents)


def test_the_table_has_both_outcomes():
    """A measurement that always says one thing measures nothing."""
    for implementation in IMPLEMENTATIONS:
        assert {ISOLATED, LEAKS} <= set(marks(implementation).values())


(TRUTH_FILE,) = ROOT.glob("benchmarks/results/truth-*.json")
TRUTH_PAGE = (ROOT / "docs" / "truth.md").read_text(encoding="utf-8")
TRUTH = json.loads(TRUTH_FILE.read_text(encoding="utf-8"))


def test_the_page_has_the_table_of_the_results():
    assert table(TRUTH["rows"]) in TRUTH_PAGE
    assert TRUTH_FILE.name in TRUTH_PAGE


def test_every_tool_was_asked_for_every_model():
    asked = {(row["tool"], row["case"], row["seed"]) for row in TRUTH["rows"]}
    assert asked == {(tool, case.name, seed) for tool in TOOLS for case in CASES for seed in TRUTH["seeds"]}
    assert len(asked) == len(TRUTH["rows"])


@pytest.mark.parametrize("case", share(CASES, 6), ids=lambda case: case.name)
@pytest.mark.parametrize("tool", ["Regard", "output_attentions, eager"])
def test_the_verdicts_come_again(tool, case):
    """Those of the tools that this environment has; the others have environments of their own."""
    (expected,) = (
        row for row in TRUTH["rows"] if (row["tool"], row["case"], row["seed"]) == (tool, case.name, 0)
    )
    assert judge(tool, case, 0)["counts"] == expected["counts"]
