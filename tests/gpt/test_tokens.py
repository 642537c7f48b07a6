"""Tokenizers: every text is decoded to itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from regard.gpt import tokens

TEXT = "the cat sees the dog, and the dog hears the old cat\n" * 50
PAIRS = tokens.bpe_tokenizer([TEXT], 300)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_come_back(text: str) -> None:
    tokenizer = tokens.character_tokenizer(text)
    ids = tokens.encode(tokenizer, text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids.tolist()) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_byte_pairs_write_any_text(text: str) -> None:
    assert PAIRS.decode(tokens.encode(PAIRS, text).tolist()) == text.replace(tokens.BOS_TOKEN, "")


def test_characters_outside_the_vocabulary_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"expected only characters of the model's vocabulary, got \['x', 'ß'\]"
    ):
        tokens.encode(tokens.character_tokenizer("abc"), "abxß")


def test_a_prompt_loses_nothing_in_silence() -> None:
    letters = tokens.character_tokenizer("abc ")
    assert tokens.encode_prompt(letters, "a cab") == letters.encode("a cab").ids
    with pytest.raises(ValueError, match=r"of the model's vocabulary, got \['\\t', 'x', 'ß'\]"):
        tokens.encode_prompt(letters, "xab\tßa")
    assert tokens.encode_prompt(letters, "") == []


def test_a_tokenizer_may_rewrite_the_text_and_drop_spaces() -> None:
    words = Tokenizer(models.WordLevel({"cat": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokens.encode_prompt(words, " cat  dog ") == [0, 1]  # 1 is the unknown token
    words.normalizer = normalizers.Replace("!", "")
    assert tokens.encode_prompt(words, "cat!") == [0]


@pytest.mark.parametrize("size", [0, 256, 70000])
def test_a_vocabulary_size_that_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="vocab_size: expected from 257"):
        tokens.bpe_tokenizer([TEXT], size)


def test_chunks_join_to_the_text() -> None:
    text = ("line\n" * 7 + "x" * 50) * 3000
    cut = list(tokens.split_lines(text))
    assert "".join(cut) == text
    assert len(cut) > 1
    assert all(piece.endswith("\n") for piece in cut[:-1])
