"""What a reader sees first: a query with a strong edge to a word, and titles without start tokens."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.show.data.contents import Contents
from regard.show.data.telling_token import telling_query
from regard.show.data.titles import title_of_text, title_of_tokens
from tests.captures import captured

WORDS = ["<s>", " The", " cat", "\n", " sat", ".", " The", " cat", "\n", "<s>"]


def head_with_edge(query: int, key: int) -> regard.AttentionMap:
    """A head whose queries attend to the first token, but for one that attends to a key."""
    T = len(WORDS)
    scores = torch.zeros(T, T)
    scores[:, 0] = 8.0
    scores[query, key] = 14.0
    return regard.attention_map(scores[None, None], torch.eye(T)[None, None], mask=regard.causal, scale=1.0)


@pytest.mark.parametrize(("query", "key"), [(8, 2), (9, 2), (5, 2)])
def test_line_ends_start_tokens_and_signs_are_never_telling(query: int, key: int) -> None:
    assert WORDS[telling_query(head_with_edge(query, key), WORDS, WORDS)].strip().isalpha()


def test_the_meta_names_the_telling_query_of_each_text() -> None:
    tokens = [".", "\n"] * 15
    tokens[20], tokens[11] = " word", " other"
    contents = Contents([captured(30, tokens=tokens), captured(30)], start=("1", 2))
    assert contents.meta["texts"][0]["telling"] == 20
    assert 0 <= contents.meta["texts"][1]["telling"] < 30
    contents.remove(1)
    assert contents.meta["texts"][1]["telling"] is None


def test_titles_are_first_words_without_start_tokens() -> None:
    assert title_of_tokens(["<|endoftext|>", "The", "\n keeper", " of"]) == "The keeper of"
    assert title_of_tokens(["<s>", "世¹⁄₂", "世²⁄₂", "界"]) == "世界"
    assert title_of_tokens(["<s>"]) == ""
    assert len(title_of_text("x" * 10_000)) == 48
    titles = [text["title"] for text in Contents([captured(3, tokens=["<s>", "</s>", "<s>"])]).meta["texts"]]
    assert titles == ["text 1"]
