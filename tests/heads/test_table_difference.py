"""The difference of two tables: scores with an interval, labels gained and lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from regard.heads import HeadRow, HeadTable, Score


def row(head: int, value: float, low: float, high: float, labels: tuple[str, ...] = ()) -> HeadRow:
    score = Score(value, 0.1, 0.1, low, high, value)
    return HeadRow(3, head, 0, labels, None, {"induction": score})


BEFORE = HeadTable(
    [row(0, 0.2, 0.1, 0.5), row(1, 0.6, 0.5, 0.7, ("induction", "sink")), row(2, 0.3, 0.2, 0.4)]
)
AFTER = HeadTable(
    [row(1, 0.1, 0.06, 0.2, ("sink",)), row(0, 0.8, 0.4, 0.9, ("induction",)), row(5, 0.3, 0.2, 0.4)]
)


def test_the_interval_of_a_difference_comes_from_both() -> None:
    found = BEFORE.compare(AFTER)
    score = found[3, 0].scores["induction"]
    assert (score.before, score.after, score.difference) == (0.2, 0.8, pytest.approx(0.6))
    assert score.low == pytest.approx(0.6 - math.hypot(0.8 - 0.4, 0.5 - 0.2))
    assert score.high == pytest.approx(0.6 + math.hypot(0.9 - 0.8, 0.2 - 0.1))
    assert score.is_clear
    back = AFTER.compare(BEFORE)[3, 0].scores["induction"]
    assert (back.difference, back.low, back.high) == pytest.approx((-0.6, -score.high, -score.low))


def test_labels_that_are_gained_and_lost() -> None:
    found = BEFORE.compare(AFTER)
    assert repr(found) == "TableDifference(2 heads, 2 with other labels)"
    assert [(x.place, x.gained, x.lost) for x in found] == [
        ("3.0", ("induction",), ()),
        ("3.1", (), ("induction",)),
    ]
    assert found.left_out == ["3.2", "3.5"]
    assert str(found).splitlines()[1:] == [
        "   3.0 + induction: 0.20 → 0.80 (+0.10 to +0.74)",
        "   3.1 − induction: 0.60 → 0.10 (-0.61 to -0.36)",
    ]
    assert len(BEFORE.compare(BEFORE).changed) == 0


def test_it_is_sorted_by_the_size_of_a_change() -> None:
    found = BEFORE.compare(AFTER).sorted("induction")
    assert [x.place for x in found] == ["3.0", "3.1"]
    with pytest.raises(ValueError, match="name: expected one of induction, got 'local'"):
        found.sorted("local")
    with pytest.raises(KeyError, match="expected a layer and a head of both tables, got"):
        found[3, 2]
    assert found[1].place == "3.1"
    assert found.to_pandas()["difference"].tolist() == pytest.approx([0.6, -0.5])


def test_tables_without_a_common_head_are_refused() -> None:
    with pytest.raises(ValueError, match="other: expected a table with some of the same heads, got 1 heads"):
        BEFORE.compare(HeadTable([replace(BEFORE.rows[0], layer=9)]))
