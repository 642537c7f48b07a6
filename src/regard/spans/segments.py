"""Cuts text into characters, words and sentences, by the properties that Unicode gives each code point.

A character is what a reader takes for one: a letter with its combining marks, a flag, a family of emoji with
its joiners. This file knows text; it knows neither tokens nor tokenizers. It needs no dictionary, so that
scripts without spaces are cut into characters.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import pairwise
from unicodedata import category

ZERO_WIDTH_SPACE, ZERO_WIDTH_JOINER = "\u200b", "\u200d"
# Thai and Lao, Myanmar, Khmer, kana and bopomofo, the Han blocks, half-width kana.
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x312F),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)
VOWELS_AFTER = "\u0e33\u0eb3"  # Thai and Lao am: letters to Unicode, but never apart from what they follow
SIGNS_BEFORE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"  # Arabic, above a number
INSIDE_WORDS = "'’·"  # between two letters they belong to the word: don't, l’eau
INSIDE_NUMBERS = ".,"  # between two digits they belong to the number: 3.14
CLOSERS = r"""["'”’»)\]}」』）】]*"""
SENTENCE_END = re.compile(rf"[.!?…؟۔।॥]+{CLOSERS}(?=\s)|[。！？｡]+{CLOSERS}|(?=\n\s*\n)|(?=\u2029)")
NEXT_SIGN = re.compile(r"\s*(\S)")
LONGEST_WORD = 8  # characters before a point that may be an abbreviation
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr vs etc fig no vol pp cf al e.g i.e z.b bzw d.h".split()  # noqa: SIM905 (a line each)
)


def characters(text: str) -> list[int]:
    """The edges of the characters of a text, from 0 to its length.

    >>> characters("e\u0301a")  # e with an accent of its own, then a
    [0, 2, 3]
    """
    edges = [0]
    flags = 0  # regional indicators since the last edge; two are a flag
    for i in range(1, len(text)):
        if text[i].isascii() and text[i - 1].isascii():  # most of most texts, and quickly told
            if text[i - 1 : i + 1] != "\r\n":
                edges.append(i)
            flags = 0
            continue
        flags = flags + 1 if _is_regional_indicator(text[i - 1]) else 0
        if not _continues(text[i - 1], text[i], flags):
            edges.append(i)
            flags = 0
    return [*edges, len(text)] if text else [0]


def _continues(before: str, after: str, flags: int) -> bool:
    """Whether `after` belongs to the character of `before`: the rules of Unicode's Annex 29, in short."""
    if before == "\r" and after == "\n":
        return True
    if category(before) in ("Cc", "Zl", "Zp"):
        return False
    kind = category(after)
    if kind == "Cc" or kind in ("Zl", "Zp"):
        return False
    if kind.startswith("M") or (kind == "Cf" and after != ZERO_WIDTH_SPACE) or after in VOWELS_AFTER:
        return True  # combining marks, variation selectors, joiners
    if before in SIGNS_BEFORE or (before == ZERO_WIDTH_JOINER and not after.isspace()):
        return True
    if 0x1F3FB <= ord(after) <= 0x1F3FF:
        return True  # a skin tone
    if _is_regional_indicator(after):
        return flags % 2 == 1
    return _is_hangul(before) and _joins_syllable(before, after)


def _is_regional_indicator(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF


def _is_hangul(character: str) -> bool:
    code = ord(character)
    return 0x1100 <= code <= 0x11FF or 0xA960 <= code <= 0xA97F or 0xAC00 <= code <= 0xD7FF


def _joins_syllable(before: str, after: str) -> bool:
    """Whether a letter of Hangul continues a syllable: vowels and finals do, and an initial after another."""
    initial = [0x1100 <= ord(x) <= 0x115F or 0xA960 <= ord(x) <= 0xA97F for x in (before, after)]
    later = 0x1160 <= ord(after) <= 0x11FF or 0xD7B0 <= ord(after) <= 0xD7FF
    return later or all(initial) or (initial[0] and 0xAC00 <= ord(after) <= 0xD7A3)


def words(text: str) -> list[int]:
    """The edges of the words of a text, from 0 to its length.

    A word is a run of letters, digits and marks, with an apostrophe or a decimal point inside. The space
    before a word belongs to it, as in most tokenizers, and what follows the last word to that. Every other
    sign is a word of its own, a run of the same one is one word. In scripts without spaces (Chinese,
    Japanese, Thai, Lao, Khmer, Burmese) every character is a word.

    >>> text = "It's 3.14... 你好"
    >>> [text[a:b] for a, b in pairwise(words(text))]
    ["It's", ' 3.14', '...', ' 你', '好']
    """
    edges = characters(text)
    pieces = [text[a:b] for a, b in pairwise(edges)]
    starts = [
        edge for number, edge in enumerate(edges[:-1]) if number == 0 or not _is_same_word(pieces, number)
    ]
    if len(starts) > 1 and text[starts[-1] :].isspace():
        starts.pop()
    return [*starts, len(text)] if text else [0]


def _is_same_word(pieces: list[str], number: int) -> bool:
    """Whether the character `number` belongs to the word of the one before it."""
    before, piece = pieces[number - 1], pieces[number]
    if before.isspace():
        return True
    if piece.isspace():
        return False
    if _has_no_spaces(before) or _has_no_spaces(piece):
        return False
    if _is_word(before) and _is_word(piece):
        return True
    if _is_word(before) and number + 1 < len(pieces):
        return _joins(before, piece, pieces[number + 1])
    if _is_word(piece) and number > 1:
        return _joins(pieces[number - 2], before, piece)
    return piece == before and not _is_word(piece)


def _is_word(piece: str) -> bool:
    return category(piece[0])[0] in "LNM" or category(piece[0]) == "Pc"


def _has_no_spaces(piece: str) -> bool:
    """Whether a character is of a script that is written without spaces."""
    code = ord(piece[0])
    return code >= WITHOUT_SPACES[0][0] and any(first <= code <= last for first, last in WITHOUT_SPACES)


def _joins(before: str, sign: str, after: str) -> bool:
    """Whether a sign between two characters belongs to one word with them."""
    if _has_no_spaces(before) or _has_no_spaces(after):
        return False
    if sign in INSIDE_NUMBERS:
        return before.isdecimal() and after.isdecimal()
    return sign in INSIDE_WORDS and before[0].isalpha() and after[0].isalpha()


def sentences(text: str) -> list[int]:
    """The edges of the sentences of a text, from 0 to its length.

    A sentence ends with . ! ? … and quotes or brackets that close there, before a space, with 。！？, or at a
    blank line. A point after a single letter or a common abbreviation ends none, nor does one before a small
    letter. The space before a sentence belongs to it.

    >>> text = "Dr. Li came. “Who?” she said. 你好。再见。"
    >>> [text[a:b] for a, b in pairwise(sentences(text))]
    ['Dr. Li came.', ' “Who?” she said.', ' 你好。', '再见。']
    """
    edges = characters(text)
    starts = [0]
    for match in SENTENCE_END.finditer(text):
        end = edges[bisect_left(edges, match.end())]
        if starts[-1] < end and text[starts[-1] : end].strip() and _ends_sentence(text, match):
            starts.append(end)
    if len(starts) > 1 and not text[starts[-1] :].strip():
        starts.pop()
    return [*starts, len(text)] if text else [0]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends at signs that may end one."""
    signs = match.group()
    if not signs or signs[0] in "。！？｡":
        return True
    after = NEXT_SIGN.match(text, match.end())
    if after is not None and after[1].islower():
        return False
    # An opening quote or bracket before a word is no part of it: (cf. and “Dr. are abbreviations.
    before = re.split(r"[\s(\[“\"']", text[max(0, match.start() - LONGEST_WORD) : match.start()])[-1]
    is_initial = len(before) == 1 and before.isalpha()
    return not (signs == "." and (is_initial or before.casefold() in ABBREVIATIONS))
