"""Spans say what is wrong with them. `test_map` has pools over spans."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.maps import Spans
from tests.maps.drawn_maps import spans
from tests.refusals import refused


def test_spans_are_a_sequence_with_names() -> None:
    words = Spans([0, 5], [3, 9], ["question", "answer"])
    assert list(words) == [(0, 3, "question"), (5, 9, "answer")]
    assert words[1] == (5, 9, "answer")
    assert words.find("answer") == 1
    assert words == Spans((0, 5), torch.tensor([3, 9]), ("question", "answer"))
    assert hash(words) == hash(Spans([0, 5], [3, 9], ["question", "answer"]))
    assert Spans.from_edges([2, 3, 7]).names == ("2", "3–6")
    assert words.shift(1) == Spans([1, 6], [4, 10], words.names)


@given(st.data())
def test_membership_by_the_definition(pick: Any) -> None:
    n = pick.draw(st.integers(1, 20))
    drawn = pick.draw(spans(n))
    expected = [
        next((i for i, span in enumerate(drawn) if span.start <= p < span.stop), -1) for p in range(n + 2)
    ]
    assert drawn.membership(n + 2).tolist() == expected


test_bad_spans_say_what_was_expected = refused(
    [
        (
            lambda: Spans([0, 2], [3, 5]),
            r"starts: expected increasing, disjoint spans, but span 1 starts at 2, b",
        ),
        (lambda: Spans([0, 3], [3, 3]), r"stops: expected spans with at least one position, but span 1 is"),
        (lambda: Spans([-1], [3]), r"starts: .* span 0 starts at -1, before 0"),
        (lambda: Spans([0, 3], [3]), r"stops: expected 2, one for each start, got 1"),
        (lambda: Spans([0], [3], ["a", "b"]), r"names: expected 1, one for each span, got 2"),
        (lambda: Spans([0], [3], "a"), r"names: expected a sequence of texts"),
        (lambda: Spans([0], [3], [1]), r"names: expected a sequence of texts"),
        (lambda: Spans([0.5], [3]), r"starts: expected whole positions"),
        (lambda: Spans([[0]], [3]), r"starts: expected whole positions in one dimension, got \(1, 1\)"),
        (lambda: Spans.from_edges([3]), r"edges: expected at least two increasing positions"),
        (lambda: Spans.from_edges([0, 3, 3]), r"edges: expected at least two increasing positions"),
    ]
)


@pytest.mark.parametrize(
    ("rows", "cols", "says"),
    [
        ([0, 7], 2, r"rows: expected spans within the positions 0 to 6, got 0 to 7"),
        (2, Spans([3], [9]), r"cols: expected spans within the positions 0 to 6, got 3 to 9"),
        ([2, 1], 2, r"rows: expected at least two increasing positions, got \[2, 1\]"),
        (2, [0.5, 3], r"cols: expected whole positions"),
        (Spans([], []), 2, r"rows: expected at least one span, got none"),
        ("two", 2, r"rows: expected a whole number from 1 to 6, got 'two'"),
    ],
)
def test_bad_rows_and_cols(rows: Any, cols: Any, says: str) -> None:
    q = torch.randn(1, 2, 6, 4)
    m = regard.attention_map(q, q)
    with pytest.raises(ValueError, match=says):
        m.pool(rows, cols)
    with pytest.raises(ValueError, match=says):
        m.weighted(torch.ones(6)).pool(rows, cols)
