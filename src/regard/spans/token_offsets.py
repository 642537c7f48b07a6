"""Where the tokens of a text are in it: the characters of each token.

Tokenizers of the `tokenizers` package, which `GPT` and the fast ones of Transformers use, know the offsets of
their tokens. Neither package is imported here.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class TextToken(NamedTuple):
    """A token of a text, and the characters of the text from `start` to `stop` that it stands for.

    The pieces of one character have the same ones.
    """

    start: int
    stop: int
    piece: str
    is_special: bool
    """Whether it is a token such as <s> or [CLS], and not a piece of the text."""


def locate_tokens(tokenizer: Any, text: str) -> list[TextToken]:
    """Every token of `tokenizer(text)`, special ones included, with its place in the text."""
    # Transformers' tokenizers have no encode_batch; those of the `tokenizers` package are not callable.
    if hasattr(tokenizer, "encode_batch"):  # of `tokenizers`
        added = tokenizer.get_added_tokens_decoder()
        special_ids = {number for number, token in added.items() if token.special}
        return _read_offsets(tokenizer.encode(text), special_ids, text)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            "tokenizer: expected a fast one of Transformers, one of the tokenizers package, or "
            f"model.tokenizer of a GPT, got {type(tokenizer).__name__}, which has no offsets: "
            "name the spans yourself with regard.spans.custom"
        )
    return _read_offsets(tokenizer(text).encodings[0], set(tokenizer.all_special_ids), text)


def _read_offsets(encoding: Any, special_ids: set[int], text: str) -> list[TextToken]:
    """The tokens of an encoding of the `tokenizers` package; padding is left out."""
    tokens = []
    for number, piece, (start, stop), added, real in zip(
        encoding.ids,
        encoding.tokens,
        encoding.offsets,
        encoding.special_tokens_mask,
        encoding.attention_mask,
        strict=True,
    ):
        # A special token may also be written in the text. An unknown word is no special token.
        written = number in special_ids and text[start:stop].strip() == piece
        if real:
            tokens.append(TextToken(start, stop, piece, bool(added) or written))
    return tokens
