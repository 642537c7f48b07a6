"""The texts of tokens: pieces of one character are that character with a mark, for any tokenizer."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.recorder.tokens_of_maps.tokens import decode_tokens, encode_ids
from regard.spans.text_spans import sentences_of_tokens, words_of_tokens
from regard.support.characters import join, locate, write_pieces
from tests.sampling import examples
from tests.spans.trained_tokenizers import byte_fallback, byte_level, slow_bytes

TEXT = "世界。再见。 مرحبا 👩‍👩‍👧 naïve \ufffd end"
MAKERS = (byte_level, byte_fallback, slow_bytes)


def texts_of(tokenizer, text):
    return decode_tokens(tokenizer, torch.tensor([encode_ids(tokenizer, text)]))[0]


@pytest.mark.parametrize("make", MAKERS)
def test_the_tokens_of_a_text_write_it_again(make):
    tokens = texts_of(make(), TEXT)
    assert join(tokens).strip() == TEXT
    assert any(token.startswith("界¹⁄") for token in tokens)


@pytest.mark.parametrize("make", MAKERS)
def test_words_and_sentences_do_not_cut_characters(make):
    tokens = texts_of(make(), TEXT)
    assert [name.strip() for name in sentences_of_tokens(tokens).names][:2] == ["世界。", "再见。"]
    assert " مرحبا" in words_of_tokens(tokens).names


def test_bytes_that_are_no_character_are_written_as_bytes():
    assert write_pieces([b"\xe4\xb8", " and", b"\x96"]) == ["<0xE4><0xB8>", " and", "<0x96>"]
    assert write_pieces([]) == []


def test_a_token_may_end_one_character_and_begin_the_next():
    data = "世界".encode()
    tokens = write_pieces([data[:1], data[1:4], data[4:5], data[5:]])
    assert tokens == ["世¹⁄₂", "世²⁄₂界¹⁄₃", "界²⁄₃", "界³⁄₃"]
    assert locate(tokens) == ("世界", [(0, 1), (0, 2), (1, 2), (1, 2)])


@settings(max_examples=examples(30), deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=12), st.lists(st.integers(0, 40), max_size=8))
def test_any_bytes_can_be_joined_again(text, cuts):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    tokens = write_pieces([data[a:b] for a, b in pairwise(edges)])
    text_again, places = locate(tokens)
    assert text_again == text
    for (start, stop), (a, b) in zip(places, pairwise(edges), strict=True):
        assert text[start:stop].encode().find(data[a:b]) >= 0
