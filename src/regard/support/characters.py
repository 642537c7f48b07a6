"""Characters that need care: those that a terminal obeys, that nobody sees, or that several tokens share.

Class names, messages, file names, titles, tokens and names of models may hold escape sequences, which move
the cursor, change colours, set the clipboard or hide what is there: every command prints such text through
`escape`. Characters of no width, of control, or turning the direction of a line are shown by Unicode's own
abbreviations, which figures and the page share. A byte-level tokenizer may cut one character, as of Chinese
or an emoji, into pieces of bytes: the text of such a token is the whole character with a mark, 世¹⁄₃ for the
first of three pieces. This file knows bytes and text; it knows no tokenizers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unicodedata import category

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line end
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # of no width, or bidi
    "\U000e0000-\U000e007f\ud800-\udfff]"  # tags, and lone surrogates, which no encoding has
)


def escape(text: str) -> str:
    r"""Return a text in which control, invisible and direction characters are written as JSON writes them.

    Tabs and line ends stay. JSON stays JSON, of the same value.

    >>> escape("\x1b[31mred\x07"), escape("a\u202eb\r\n")
    ('\\u001b[31mred\\u0007', 'a\\u202eb\\r\n')
    """
    # json.dumps writes a character beyond U+FFFF as a surrogate pair, which is what JSON needs to stay JSON.
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


SIGNS = {" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽", "\u2028": "↵", "\u2029": "↵"}
"""Signs for spaces and line ends, which stand in most texts."""
ABBREVIATIONS: dict[str, str] = {
    **tomllib.loads(Path(__file__).with_name("abbreviations.toml").read_text(encoding="utf-8")),
    # The variation selectors are of category Mn, as accents are, which HIDDEN must not hold.
    **{chr(0xFE00 + n): f"VS{n + 1}" for n in range(16)},
}
HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))  # categories of what cannot be seen


def show_invisible(text: str) -> str:
    r"""Return a text in which everything that is invisible has a sign, a name or its number.

    >>> show_invisible(" sea\n"), show_invisible("a\u200db\x1b"), show_invisible("\ud83d")
    ('·sea↵', 'a⟨ZWJ⟩b␛', '⟨U+D83D⟩')
    """
    return "".join(_show_character(character) for character in text)


def _show_character(character: str) -> str:
    if character in SIGNS:
        return SIGNS[character]
    if character in ABBREVIATIONS:
        return f"⟨{ABBREVIATIONS[character]}⟩"
    if category(character) not in HIDDEN:
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + min(code, 0x21))  # Unicode's pictures of the control characters
    return f"⟨U+{code:04X}⟩"


MOST_PIECES = 4  # UTF-8 has at most four bytes for a character
NUMBERS, COUNTS = "¹²³⁴", "₁₂₃₄"
# DOTALL: the character before the mark may be a line end.
MARKED = re.compile(rf"(.)([{NUMBERS}])⁄([{COUNTS}])", re.DOTALL)


class LocatedTokens(NamedTuple):
    """A text and where each of its tokens is: the pieces of one character have the same place."""

    text: str
    places: list[tuple[int, int]]
    """The first character of each token, and the one after its last."""


class _CharacterPiece(NamedTuple):
    """A marked character at the start or the end of a token."""

    character: str
    number: int
    pieces: int

    def __str__(self) -> str:
        return f"{self.character}{NUMBERS[self.number - 1]}⁄{COUNTS[self.pieces - 1]}"


def write_pieces(tokens: Sequence[str | bytes]) -> list[str]:
    """Return the text of each token of a sequence, of which those that hold parts of characters are bytes.

    A byte that belongs to no character is written as <0xE4>.

    >>> write_pieces(["the ", b"\\xe4", b"\\xb8\\x96!", b"\\xff"])
    ['the ', '世¹⁄₂', '世²⁄₂!', '<0xFF>']
    """
    texts: list[str] = []
    run: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            # A run is only written when it has ended, since the next token may hold the rest of the
            # character.
            run.append(token)
            continue
        texts += [*_write_run(run), token]
        run = []
    return texts + _write_run(run)


def _write_run(run: Sequence[bytes]) -> list[str]:
    owner = [number for number, piece in enumerate(run) for _ in piece]  # of each byte
    texts = ["" for _ in run]
    joined, start = b"".join(run), 0
    while start < len(joined):
        # More bytes than these cannot belong to it, and a copy of all that follows would be quadratic in the
        # run.
        character = _first_character(joined[start : start + MOST_PIECES])
        if character is None:
            texts[owner[start]] += f"<0x{joined[start]:02X}>"
            start += 1
            continue
        end = start + len(character.encode())
        # dict.fromkeys keeps the order, and a token that holds two bytes of a character counts once.
        owners = [*dict.fromkeys(owner[start:end])]
        for number, token in enumerate(owners, start=1):
            is_whole = len(owners) == 1
            texts[token] += character if is_whole else str(_CharacterPiece(character, number, len(owners)))
        start = end
    return texts


def _first_character(data: bytes) -> str | None:
    """The character that bytes begin with, or None if they begin with none."""
    for size in range(1, len(data) + 1):
        try:
            return data[:size].decode()
        except UnicodeDecodeError:
            continue
    return None


def locate(tokens: Sequence[str]) -> LocatedTokens:
    """Return the text that tokens write together, and the place of each in it.

    A character with a mark counts once if all of its pieces follow one another.

    >>> locate(["a", "世¹⁄₂", "世²⁄₂b"])
    LocatedTokens(text='a世b', places=[(0, 1), (1, 2), (1, 3)])
    """
    parts: list[str] = []
    places: list[tuple[int, int]] = []
    length = 0
    open_piece: _CharacterPiece | None = None  # the piece that the token before ends with
    for number, token in enumerate(tokens):
        start, rest = length, token
        first = _piece(MARKED.match(token))
        if open_piece is not None and first == open_piece._replace(number=open_piece.number + 1):
            # The character was written with its first piece, so that this token begins one place before its
            # own text.
            start, rest = length - 1, token[len(str(first)) :]
            if not rest and first.number < first.pieces:
                places.append((start, length))
                open_piece = first
                continue
        open_piece = _opened(rest, tokens, number)
        if open_piece is not None:
            rest = rest[: -len(str(open_piece))] + open_piece.character
        parts.append(rest)
        length += len(rest)
        places.append((start, length))
    return LocatedTokens("".join(parts), places)


def join(tokens: Sequence[str]) -> str:
    """Return the text that tokens write together; a character in pieces counts once."""
    return locate(tokens).text


def _piece(match: re.Match[str] | None) -> _CharacterPiece | None:
    if match is None:
        return None
    character, number, pieces = match.groups()
    return _CharacterPiece(character, NUMBERS.index(number) + 1, COUNTS.index(pieces) + 1)


def _opened(rest: str, tokens: Sequence[str], number: int) -> _CharacterPiece | None:
    """The first piece of a character at the end of a token, if the others follow it."""
    # A mark has four characters: the character, its number, the fraction slash, and the count.
    first = _piece(MARKED.fullmatch(rest[-4:]))
    if first is None or first.number != 1 or first.pieces == 1:
        return None
    last = first._replace(number=first.pieces)
    between = [str(first._replace(number=n)) for n in range(2, first.pieces)]
    following = tokens[number + 1 : number + first.pieces]
    # The pieces between are whole tokens; only the last may be followed by more text.
    whole = len(following) == first.pieces - 1 and list(following[:-1]) == between
    return first if whole and following[-1].startswith(str(last)) else None
