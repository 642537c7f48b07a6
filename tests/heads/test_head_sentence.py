"""The sentence of a head: of its first label, on text or on repeats, or the most that can be said without."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from regard.heads import HeadRow, Score
from regard.heads.labels import MIN_SCORES
from regard.heads.tables.head_sentence import describe_head, head_title


def score(value: float, null: float = 0.02) -> Score:
    return Score(value, null, math.nan, value - 0.01, value + 0.01, value)


def head(*labels: str, sink_key: int | None = None, **scores: Score) -> HeadRow:
    return HeadRow(1, 2, 2, labels, sink_key, scores)


@pytest.mark.parametrize("label", list(MIN_SCORES))
def test_every_label_has_a_sentence_with_both_numbers(label: str) -> None:
    row = HeadRow(1, 2, 2, (label,), None, {label: score(0.42)}, offset=24, token=7)
    assert row.sentence.startswith(("It puts 42% of its attention on ", "In 42% of the steps"))
    assert "; uniform attention would" in row.sentence
    assert "2%" in row.sentence.split(";")[1]
    assert (row.sentence.count("."), row.sentence[-1]) == (1, ".")


def test_the_first_label_counts_and_a_sink_names_its_token() -> None:
    row = head("sink", "local", sink_key=7, sink=score(0.6), local=score(0.9))
    assert row.sentence.startswith("It puts 60% of its attention on token 7, whatever the query; ")
    assert "on token 7 (“a b”), whatever" in describe_head(row, " a\nb")
    assert len(describe_head(row, "x" * 10_000)) < 160
    assert head_title(row) == "sink"


def test_a_score_on_repeats_says_so_where_it_is_the_higher_one() -> None:
    row = head("induction", induction=score(0.2), induction_on_repeats=score(0.9))
    assert row.sentence.startswith("On random tokens, repeated: it puts 90% of its attention on what came ")


def test_without_a_label_the_highest_score_above_uniform_attention_is_named() -> None:
    row = head(previous_token=score(0.15), itself=score(0.05), normalised_entropy=score(0.6, 1.0))
    assert row.sentence == (
        "Not clear enough for a label: it puts 15% of its attention on the token before; uniform attention "
        "would put 2% there."
    )
    assert head_title(row) == "no clear pattern"


def test_a_high_score_without_a_label_says_why_it_has_none() -> None:
    """A label needs a minimum, a margin and an interval: a sentence never says "nothing" of 66%."""

    def sentence(value: float, low: float, high: float) -> str:
        return head(induction=Score(value, 0.09, math.nan, low, high, value)).sentence

    assert sentence(0.66, 0.087, 1.0).startswith(
        "Too few tokens to be sure: it puts 66% (95% interval 9–100%) of its attention on what came after "
    )
    assert sentence(0.66, math.nan, math.nan).startswith("Too few tokens to be sure: it puts 66% of its ")
    assert sentence(0.66, 0.6, 0.7).startswith("Not clear enough for a label: it puts 66% of its ")
    assert sentence(0.15, 0.14, 0.16).startswith("Nothing stands out: it puts 15% of its ")


def test_offset_and_token_are_named() -> None:
    row = HeadRow(1, 2, 2, ("fixed_offset",), None, {"fixed_offset": score(0.42)}, offset=24)
    assert head_title(row) == "looks 24 back"
    row = HeadRow(1, 2, 2, ("one_token",), None, {"one_token": score(0.42)}, token=7)
    assert head_title(row) == "attends to token id 7"
    assert head_title(replace(row, token_text=" the")) == 'attends to "·the"'
