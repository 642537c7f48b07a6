"""Text into tokens and back: one token a character, or a vocabulary learned from the text (BPE).

Both are a `tokenizers.Tokenizer`, so that a model carries either in the same file. This file knows text and
ids; what is done with them is the corpus's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.extras import extra

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

START = "<|endoftext|>"
"""Stands before every text and between documents, as in GPT-2."""
PIECE = 1 << 16  # characters that are encoded at a time


def characters(text: str) -> Tokenizer:
    """One token for each character of the text, in order of their code points.

    >>> characters("hello").encode("hole").ids
    [1, 3, 2, 0]
    """
    with extra("app", "a tokenizer"):
        from tokenizers import Tokenizer, decoders, models

    vocabulary = {character: number for number, character in enumerate(sorted(set(text)))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def byte_pairs(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE learned from texts: any text can be written in it. `START` is its token 0."""
    with extra("app", "a tokenizer"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if not isinstance(vocab_size, int) or not 257 <= vocab_size <= 65536:
        raise ValueError(
            f"vocab_size: expected from 257, one for each byte and the start, to 65536, got {vocab_size!r}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[START],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
    # `encode` puts the start before a prompt, as training does before every window.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, 0)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> NDArray[np.uint16]:
    """The tokens of a text, without a start; ValueError names characters that it has no token for."""
    encoded = tokenizer.encode_batch_fast(list(pieces(text)), add_special_tokens=False)
    ids = np.concatenate([np.asarray(part.ids, np.uint16) for part in encoded] or [np.empty(0, np.uint16)])
    if start(tokenizer) is None and len(ids) != len(text):
        raise _unknown(set(text) - set(tokenizer.get_vocab()))
    return ids


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a prompt, with a start if there is one; ValueError names what would be left out.

    A BPE leaves out characters that it has no token for, without a word; other kinds say that they do not
    know. One that rewrites the text first may leave out what it likes, and one that cuts it up first, spaces.
    """
    from tokenizers.models import BPE

    if isinstance(tokenizer.model, BPE) and tokenizer.normalizer is None:
        cut = tokenizer.pre_tokenizer is not None
        asked = {character for character in text if not (cut and character.isspace())}
        if unread := {one for one in asked if not tokenizer.encode(one, add_special_tokens=False).ids}:
            raise _unknown(unread)
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def _unknown(characters: set[str]) -> ValueError:
    return ValueError(f"text: expected only characters that the model has read, got {sorted(characters)[:8]}")


def start(tokenizer: Tokenizer) -> int | None:
    """The id of the token that stands before every text, if there is one."""
    number: int | None = tokenizer.token_to_id(START)
    return number


def pieces(text: str) -> Iterator[str]:
    """The text cut at line ends into parts of moderate length, which a tokenizer can work on side by side."""
    first = 0
    while first < len(text):
        end = first + PIECE
        if end < len(text):
            end = text.find("\n", end) + 1 or len(text)
        yield text[first:end]
        first = end
