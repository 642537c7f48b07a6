"""Tokenizers: one token for each character, or a byte-level BPE learned from a text.

Both are a `tokenizers.Tokenizer`, so that a model stores either in the same file. This file knows text and
token ids; `training.corpus` knows how they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from regard.support.imports import extra

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

BOS_TOKEN = "<|endoftext|>"
"""The token before every text and between documents, as in GPT-2."""
CHUNK_LENGTH = 1 << 16  # characters that are encoded at a time


def character_tokenizer(text: str) -> Tokenizer:
    """A tokenizer with one token for each character of the text, in the order of their code points.

    >>> character_tokenizer("hello").encode("hole").ids
    [1, 3, 2, 0]
    """
    with extra("app", "a tokenizer"):
        from tokenizers import Tokenizer, decoders, models

    vocabulary = {character: number for number, character in enumerate(sorted(set(text)))}
    # A BPE without merges: WordLevel would look up whole words.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # Fuse, since the default decoder puts spaces between tokens.
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of `vocab_size` tokens, learned from texts. It can encode any text.

    `BOS_TOKEN` is its token 0, which `encode` puts before a text.
    """
    with extra("app", "a tokenizer"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    # 65536, since a corpus is kept as uint16.
    if not isinstance(vocab_size, int) or not 257 <= vocab_size <= 65536:
        raise ValueError(
            f"vocab_size: expected from 257 (256 bytes and {BOS_TOKEN}) to 65536, got {vocab_size!r}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS_TOKEN],
        # All 256 bytes, so that any text can be encoded, also one with bytes that the training text lacks.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((chunk for text in texts for chunk in split_lines(text)), trainer)
    # Training puts BOS_TOKEN before every window, so a prompt starts with it as well.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS_TOKEN} $A", special_tokens=[(BOS_TOKEN, 0)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> NDArray[np.uint16]:
    """The token ids of a text, without `BOS_TOKEN`; a ValueError names characters that have no token."""
    # In chunks and as a batch, which the library encodes in parallel; _fast leaves out the offsets.
    chunks = tokenizer.encode_batch_fast(list(split_lines(text)), add_special_tokens=False)
    ids = np.concatenate([np.asarray(chunk.ids, np.uint16) for chunk in chunks] or [np.empty(0, np.uint16)])
    if bos_token_id(tokenizer) is None and len(ids) != len(text):
        raise _unknown_characters_error(set(text) - set(tokenizer.get_vocab()))
    return ids


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token ids of a prompt, after `BOS_TOKEN` if there is one; a ValueError names unknown characters.

    A BPE drops characters that have no token silently, hence the check; other models have an unknown token. A
    normalizer may drop characters on purpose, and a pre-tokenizer spaces: those are not checked.
    """
    from tokenizers.models import BPE

    if isinstance(tokenizer.model, BPE) and tokenizer.normalizer is None:
        splits = tokenizer.pre_tokenizer is not None
        characters = {character for character in text if not (splits and character.isspace())}
        if unknown := {c for c in characters if not tokenizer.encode(c, add_special_tokens=False).ids}:
            raise _unknown_characters_error(unknown)
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def _unknown_characters_error(characters: set[str]) -> ValueError:
    return ValueError(
        f"text: expected only characters of the model's vocabulary, got {sorted(characters)[:8]}"
    )


def bos_token_id(tokenizer: Tokenizer) -> int | None:
    """The id of `BOS_TOKEN`; None if the tokenizer does not have it."""
    token_id: int | None = tokenizer.token_to_id(BOS_TOKEN)
    return token_id


def split_lines(text: str) -> Iterator[str]:
    """Split a text at line ends into chunks of about `CHUNK_LENGTH`, to be encoded in parallel."""
    start = 0
    while start < len(text):
        end = start + CHUNK_LENGTH
        if end < len(text):
            # At a line end, so that no word is cut: a cut one would be encoded as other tokens.
            end = text.find("\n", end) + 1 or len(text)
        yield text[start:end]
        start = end
