"""The summary of a table: the clearest heads of each kind in a fixed order, the sinks counted."""

from __future__ import annotations

from typing import Any

import pytest

from regard.heads import HeadRow, HeadTable, Score
from regard.heads.tables.table_text import summary_text


def score(value: float, reach: float = 0.02, null: float = 0.03) -> Score:
    return Score(value, null, 0.1, value - reach, value + reach, value)


def head(layer: int, number: int, sink_key: int | None = None, **scores: Score) -> HeadRow:
    """A head that has a label for each of its scores; one on repeats has that of the score on text."""
    labels = tuple(dict.fromkeys(name.removesuffix("_on_repeats") for name in scores))
    return HeadRow(layer, number, number, labels, sink_key, scores)


def printed(table: HeadTable, **options: Any) -> list[str]:
    return summary_text(table, **options).splitlines()


@pytest.fixture
def table() -> HeadTable:
    rows = [
        head(0, 0, 0, sink=score(0.5)),
        head(0, 1, 0, sink=score(0.6)),
        head(0, 2, 7, sink=score(0.4), previous_token=score(0.3)),
        head(1, 0, induction=score(0.4)),
        head(1, 1, induction=score(0.5, reach=0.3)),  # higher, and less certain
        head(1, 2, induction=score(0.2), induction_on_repeats=score(0.9)),
        head(1, 3),
    ]
    return HeadTable(rows)


def test_kinds_have_an_order_and_the_rest_is_counted(table: HeadTable) -> None:
    lines = printed(table, top=2, key_texts={0: "Once", 7: " the"})
    assert [line.split(":")[0] for line in lines if ": attention on" in line] == [
        "induction",
        "previous token",
    ]  # those that were measured
    start = next(i for i, line in enumerate(lines) if line.startswith("induction"))
    assert [line.split()[:2] for line in lines[start + 1 : start + 3]] == [["1.2", "0.90*"], ["1.0", "0.40"]]
    assert lines[start + 3] == "  and 1 more: --label induction"
    assert "2 heads are sinks on token 0 ('Once'), 1 on token 7 (' the'): --label sink" in lines
    assert "1 head has no label: --all" in lines
    assert "*: on random tokens, repeated" in lines
    assert max(map(len, lines)) <= 80


def test_sinks_on_many_keys_are_not_all_named() -> None:
    keys = [5, 5, 5, 5, 4, 4, 4, 3, 3, 2, 1]
    lines = printed(HeadTable([head(0, i, key, sink=score(0.5)) for i, key in enumerate(keys)]))
    sinks = next(line for line in lines if "sink" in line and "token 5" in line)
    assert sinks == "4 heads are sinks on token 5, 3 on token 4, 4 on other tokens: --label sink"
