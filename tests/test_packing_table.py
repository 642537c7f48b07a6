"""docs/packing.md shows what is measured; `make packing-table` writes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scripts import packing_table
from scripts.packing_table import FAMILIES, IMPLEMENTATIONS, ISOLATED, LEAKS, NOT_RUN, PACKINGS
from tests.sampling import share

PAGE = packing_table.PAGE.read_text(encoding="utf-8")


def marks(implementation: str) -> dict[tuple[str, str], str]:
    """The marks of one table of the page, by packing and family, without the numbers of their notes."""
    lines = PAGE.split(f"## `{implementation}`\n")[1].split("\n## ")[0].splitlines()
    head, _, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("|"))
    return {
        (packing, family): cell.split()[0]
        for packing, *cells in rows
        for family, cell in zip(head, cells, strict=True)
    }


def test_the_page_has_every_cell() -> None:
    wanted = {(packing.name, family) for packing in PACKINGS for family in FAMILIES}
    for implementation in IMPLEMENTATIONS:
        assert marks(implementation).keys() == wanted


@pytest.mark.parametrize("family", share(["Llama", "Mistral", "GPT-OSS", "Falcon", "Bamba"], 3))
def test_cells_are_what_is_measured(family: str) -> None:
    """Eager attention and the packings that need no TRL, which the tests do not install."""
    shown, documents = marks("eager"), packing_table.make_documents()
    with packing_table.quiet_and_uncompiled():
        model = packing_table.build_model(family)
        for packing in PACKINGS:
            if not packing.name.startswith("TRL"):
                measured = packing_table.measure(model, packing, "eager", documents)
                assert measured.mark == shown[packing.name, family], (packing.name, measured)


def test_a_cell_that_fails_says_why() -> None:
    def fail(model: Any, documents: packing_table.Texts) -> dict[str, Any]:
        raise ValueError("no such collator. Install it.")

    model = packing_table.build_model("Llama")
    packing = packing_table.Packing("none", fail)
    measured = packing_table.measure(model, packing, "eager", packing_table.make_documents())
    assert (measured.mark, measured.why) == (NOT_RUN, "ValueError: no such collator")


def test_documents_are_found_in_any_order() -> None:
    documents = ((5, 6), (7, 8, 9))
    row = torch.tensor([[7, 8, 9, 5, 6]])
    assert packing_table.document_order(row, documents).tolist() == [[1, 1, 1, 0, 0]]
    with pytest.raises(ValueError, match="one after the other"):
        packing_table.document_order(torch.tensor([[7, 8, 5, 6, 9]]), documents)


def test_the_table_has_both_outcomes() -> None:
    """A measurement that always says one thing measures nothing."""
    for implementation in IMPLEMENTATIONS:
        assert {ISOLATED, LEAKS} <= set(marks(implementation).values())
