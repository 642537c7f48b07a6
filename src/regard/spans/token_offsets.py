"""Where the tokens of a text are in it: the characters of each token, for every kind of tokenizer.

Tokenizers of the `tokenizers` package, which `GPT` and the fast ones of Transformers use, know the offsets of
their tokens. For the others, pieces are decoded until they make up whole characters, and looked up in the
text. Neither package is imported here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple
from unicodedata import combining, normalize

MAX_PIECES = 16  # tokens that are decoded together at most until they give a character
REPLACEMENT = "\ufffd"  # stands for bytes that are no character


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
        return _known_offsets(tokenizer.encode(text), special_ids, text)
    if not callable(tokenizer):
        raise ValueError(
            "tokenizer: expected one of Transformers, of the tokenizers package, or model.tokenizer of a "
            f"GPT, got {type(tokenizer).__name__}"
        )
    # getattr: a tokenizer of another library may have neither.
    special_ids = set(getattr(tokenizer, "all_special_ids", ()))
    encoding = tokenizer(text)
    if getattr(tokenizer, "is_fast", False):
        return _known_offsets(encoding.encodings[0], special_ids, text)
    return _found_offsets(tokenizer, encoding["input_ids"], special_ids, text)


def _known_offsets(encoding: Any, special_ids: set[int], text: str) -> list[TextToken]:
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


def _found_offsets(tokenizer: Any, ids: list[int], special_ids: set[int], text: str) -> list[TextToken]:
    """The tokens of a tokenizer that knows no offsets: each piece is looked up after the one before it.

    Case, accents and spaces are not compared. A piece that is not found, such as an unknown token, stands for
    the text between those that are.
    """
    plain = _PlainText(text)
    pieces = tokenizer.convert_ids_to_tokens(ids)
    unknown = getattr(tokenizer, "unk_token_id", None)
    places: list[tuple[int, int] | None] = []  # None where it is not found
    pending: list[str] = []  # pieces that make up no character yet
    special = [number in special_ids and number != unknown for number in ids]
    for number, (piece, is_special) in enumerate(zip(pieces, special, strict=True)):
        if is_special:
            places += [None] * len(pending)
            pending = []
            places.append(plain.find(piece, next_only=True) or (plain.end, plain.end))
            continue
        pending.append(piece)
        decoded = tokenizer.convert_tokens_to_string(pending)
        last = number + 1 == len(ids) or special[number + 1]
        if (decoded and REPLACEMENT not in decoded) or len(pending) == MAX_PIECES or last:
            # "##" is WordPiece's mark of a continued word, which BertTokenizer's decoding of a lone piece
            # leaves in.
            places += [plain.find(decoded.removeprefix("##"))] * len(pending)
            pending = []
    return [
        TextToken(*place, piece, is_special)
        for place, piece, is_special in zip(_fill(places, len(text)), pieces, special, strict=True)
    ]


class _PlainText:
    """A text without its case, accents and spaces, in which pieces are looked up one after another."""

    def __init__(self, text: str) -> None:
        plain = [(letter, place) for place, character in enumerate(text) for letter in _letters(character)]
        self.letters = "".join(letter for letter, _ in plain)
        self.places = [place for _, place in plain]
        self._next = 0  # the first letter after the piece that was found last

    @property
    def end(self) -> int:
        """The end of the piece that was found last, counted in characters of the text."""
        return self.places[self._next - 1] + 1 if self._next else 0

    def find(self, piece: str, *, next_only: bool = False) -> tuple[int, int] | None:
        """The start and the end of a piece in the text, None if it is not found after the last one."""
        letters = "".join(letter for character in piece for letter in _letters(character))
        if not letters:
            return (self.end, self.end) if not next_only else None
        at = self.letters.find(letters, self._next)
        if at < 0 or (next_only and at > self._next):
            return None
        self._next = at + len(letters)
        return self.places[at], self.end


def _letters(character: str) -> str:
    """A character without case and accents; nothing for a space."""
    return "".join(
        letter
        # NFKD, since uncased tokenizers strip accents and SentencePiece normalises by NFKC: both sides lose
        # the same.
        for letter in normalize("NFKD", character).casefold()
        if not letter.isspace() and not combining(letter)
    )


def _fill(places: list[tuple[int, int] | None], length: int) -> list[tuple[int, int]]:
    """Give every run of tokens that were not found the text between its neighbours."""
    known = [(-1, 0, 0), *((n, *place) for n, place in enumerate(places) if place is not None)]
    filled: list[tuple[int, int]] = []
    for (before, _, end), (after, start, stop) in pairwise([*known, (len(places), length, length)]):
        filled += [(end, max(end, start))] * (after - before - 1)
        if after < len(places):
            filled.append((start, stop))
    return filled
