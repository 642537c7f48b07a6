"""Turns text into a model's inputs and token ids back into text, with the user's own tokenizer.

Tokenizers of Transformers and of the `tokenizers` package are supported; neither package is imported here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.gpt.token_batch import Side, pad_rows
from regard.support.characters import write_pieces

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character
BYTE = re.compile("<0x([0-9A-F]{2})>")


class TextTooLongError(ValueError):
    """A text has more tokens than a model can read, or than a page can hold."""

    def __init__(self, tokens: int, most: int) -> None:
        super().__init__(
            f"text: expected at most {most:,} tokens, which is how much this model can read, "
            f"got {tokens:,}: shorten it"
        )
        self.tokens, self.most = tokens, most


def _byte_level_alphabet() -> dict[str, int]:
    """The byte of each letter of the ByteLevel alphabet, in which every byte has a visible one."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_LEVEL = _byte_level_alphabet()


def encode_text(tokenizer: Any, text: str | Sequence[str], side: Side = "right") -> dict[str, Tensor]:
    """Tokenise a text, or several texts padded on one `side`, and return the model's input tensors by name.

    Padding is `generate`'s own and needs no pad token: `attention_mask` is 0 there, so that nothing sees it.
    """
    texts = [text] if isinstance(text, str) else list(text)
    if not texts or not all(isinstance(x, str) for x in texts):
        raise ValueError(f"text: expected a text or a list of texts, got {text!r}")
    fields = _encode_each(tokenizer, texts)
    if len(texts) > 1 and not all(fields["input_ids"]):
        empty = fields["input_ids"].index([])
        raise ValueError(f"text: expected at least one token in each text, got none in number {empty}")
    fill = getattr(tokenizer, "pad_token_id", None) or 0
    batches = {
        name: pad_rows(rows, side, fill if name == "input_ids" else 0) for name, rows in fields.items()
    }
    encoding = {name: batch.ids for name, batch in batches.items()}
    is_token = batches["input_ids"].is_token
    if not bool(is_token.all()):
        encoding.setdefault("attention_mask", is_token.long())
    return encoding


def _encode_each(tokenizer: Any, texts: list[str]) -> dict[str, list[list[int]]]:
    """The fields that a tokenizer gives for each text, such as its ids, without padding."""
    # Tokenizers of the `tokenizers` package have it, those of Transformers do not.
    if not hasattr(tokenizer, "encode_batch"):
        fields = tokenizer(texts, padding=False)
        return {name: [list(row) for row in rows] for name, rows in fields.items() if _is_table(rows)}
    encodings = tokenizer.encode_batch(texts)  # which pads if it was told to
    return {
        "input_ids": [
            [number for number, real in zip(x.ids, x.attention_mask, strict=True) if real] for x in encodings
        ]
    }


def _is_table(rows: Any) -> bool:
    """Whether a field has a list of whole numbers for each text."""
    return all(isinstance(row, list) and all(isinstance(x, int) for x in row) for row in rows)


def token_id(tokenizer: Any, text: str) -> int:
    """Return the id of a text that is exactly one token, with its leading space if it has one."""
    # A tokenizer that puts a space before every text encodes " cat" as a space and " cat".
    encodings = [encode_ids(tokenizer, x) for x in dict.fromkeys((text, text.removeprefix(" "))) if x]
    ids = [ids[0] for ids in encodings if len(ids) == 1]
    exact = [number for number in ids if _decode_token(tokenizer, number) == text]
    if exact or (ids and not text.startswith(" ")):
        return (exact or ids)[0]
    pieces = [_decode_token(tokenizer, number) for number in (encodings[0] if encodings else [])]
    raise ValueError(f"token: expected a text that is one token, got {text!r}, which is {pieces}")


def decode_tokens(tokenizer: Any, ids: Tensor) -> list[list[str]]:
    """Return the text of each token of texts (B, T), each with its leading space.

    Pieces of one character are that character with a mark: see `regard.support.characters`.
    """
    tokens = {number: _decode(tokenizer, number) for number in set(ids.flatten().tolist())}
    return [write_pieces([tokens[number] for number in row]) for row in ids.tolist()]


def decode_vocabulary(tokenizer: Any, ids: Tensor) -> list[str]:
    """Return the text of each token of ids (n,), which do not follow one another."""
    return [_decode_token(tokenizer, number) for number in ids.tolist()]


def _decode_token(tokenizer: Any, number: int) -> str:
    return write_pieces([_decode(tokenizer, number)])[0]


def _decode(tokenizer: Any, number: int) -> str | bytes:
    """Return the text of a token, or its bytes if they may be parts of characters."""
    if hasattr(tokenizer, "id_to_token"):
        piece, text = tokenizer.id_to_token(number), tokenizer.decode([number], skip_special_tokens=False)
    else:
        piece, text = tokenizer.convert_ids_to_tokens(number), tokenizer.decode([number])
    # A model may have more embeddings than its tokenizer has tokens.
    if piece is None:
        return f"<{number}>"
    if (data := _bytes_of(piece, text)) is not None:
        return data
    # A decoder that drops the space before a first word drops it before every token decoded alone.
    if piece.startswith(("▁", "Ġ")) and not text.startswith(" "):
        text = f" {text}"
    return str(text or piece)


def _bytes_of(piece: str | bytes, text: str) -> bytes | None:
    """Return the bytes of a token that may be parts of characters; None if it is text.

    Bytes are written as <0xE4>, in the alphabet of GPT-2 and of ByteLevel in `tokenizers`, or as Latin-1.
    """
    if isinstance(piece, bytes):
        return piece
    if byte := BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    # Ordinary words are written in the same letters: only what is no text by itself is bytes.
    if REPLACEMENT in text and all(letter in BYTE_LEVEL for letter in piece):
        return bytes(BYTE_LEVEL[letter] for letter in piece)
    if not text and len(piece) == 1 and ord(piece) < 0x100:  # ByT5 drops what is no character
        return bytes([ord(piece)])
    return None


def encode_ids(tokenizer: Any, text: str, special: bool = False) -> list[int]:
    """Return the token ids of a text, with the special tokens around it if `special`."""
    if hasattr(tokenizer, "encode_batch"):  # of the `tokenizers` package
        ids: list[int] = tokenizer.encode(text, add_special_tokens=special).ids
    else:
        ids = tokenizer(text, add_special_tokens=special)["input_ids"]
    return ids


def start_tokens(tokenizer: Any) -> list[int]:
    """Return the token that the tokenizer puts before a text, as a list; an empty one if it puts none."""
    return encode_ids(tokenizer, "", special=True)[:1]
