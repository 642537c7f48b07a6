"""Limits of a tokenizer: what a small `tokenizer.json` may make of a text, checked before it is built.

Each step of a tokenizer may lengthen a text by a factor, and the factors multiply: 24 replacements of "t" by
"tt" make 16 million letters of one. This file reads the parsed JSON and bounds those factors from above, and
with them the numbers of steps, the ids that are added to a text, and the lengths of tokens. It knows neither
the `tokenizers` library nor what a token means.
"""

from __future__ import annotations

import base64
import binascii
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.support.files import check_type, get_field, shorten

MAX_STEPS = 32
"""The most steps of each part of a tokenizer, as its normalizers or its decoders."""
MAX_GROWTH = 8192
"""The most bytes that normalizers and pre-tokenizers may make of one: those of ALBERT make up to 5,000."""
MAX_DECODED_GROWTH = 256
MAX_COPIES = 4  # of a text by templates
MAX_ADDED_IDS = 1024  # by templates, to each text
MAX_TOKEN = 4096  # characters of a token
MAX_PIECE = 256  # characters of a token of a Unigram, whose time grows with their square
MAX_PIECES_BYTES, MAX_MEAN_PIECE = 600_000, 24
"""The tokens of a Unigram have at most so many bytes in all, or on average: each takes 300 in memory."""
MAX_AFFIX = 16  # characters of a prefix or suffix of subwords, as "##" or "</w>"
MAX_WORD = 256  # characters of a word in WordPiece, whose time grows with their cube
MAX_NORMALIZED = 1 << 21  # bytes that the normalizers may make of the added tokens

NESTED = ("normalizers", "pretokenizers", "processors", "decoders")  # the fields of a Sequence

Step = Mapping[str, Any]
GROWTHS: dict[str, dict[str, float | str]] = tomllib.loads(
    Path(__file__).with_name("tokenizer_growth.toml").read_text(encoding="utf-8")
)


def check_limits(described: Mapping[str, Any]) -> None:
    """Raise a ValueError if a tokenizer, given as its parsed JSON, exceeds a limit; it names the part."""
    normalized = _growth(described, "normalizer")
    growth = normalized * _growth(described, "pre_tokenizer")
    _check_most("normalizer and pre_tokenizer: bytes of one byte of a text", growth, MAX_GROWTH)
    decoded = _growth(described, "decoder")
    _check_most("decoder: bytes of one byte of a token", decoded, MAX_DECODED_GROWTH)
    _check_post_processor(described)
    _check_added_tokens(described, normalized)
    _check_model(described.get("model"))


def _check_most(name: str, value: float, most: int) -> None:
    if value > most:
        raise ValueError(f"{name}: expected at most {most:,}, got {value:,.0f}")


def _steps(described: Mapping[str, Any], part: str) -> Iterator[tuple[str, Step]]:
    """The type and the fields of each step of a part, with those inside Sequences."""
    waiting = [] if described.get(part) is None else [described[part]]
    count = 0
    while waiting:
        step = check_type(part, waiting.pop(), dict)
        # Counted while the steps are taken apart: a Sequence may hold Sequences, of any depth.
        count += 1
        _check_most(f"{part}: steps", count, MAX_STEPS)
        for name in NESTED:
            nested = check_type(f"{part}.{name}", step.get(name, []), list)
            _check_most(f"{part}: steps", count + len(waiting) + len(nested), MAX_STEPS)
            waiting += nested
        yield get_field(step, "type", str), step


def _growth(described: Mapping[str, Any], part: str) -> float:
    """The most bytes that the steps of a part make of one byte."""
    product = 1.0
    for kind, step in _steps(described, part):
        if kind not in GROWTHS[part]:
            raise ValueError(f"{part}: expected a type of {', '.join(GROWTHS[part])}, got {shorten(kind)}")
        growth = GROWTHS[part][kind]
        product = min(product * (OWN_GROWTHS[kind](step) if isinstance(growth, str) else growth), math.inf)
    return product


def _replace_growth(step: Step) -> float:
    """The growth of a Replace: a regular expression may match nothing, before every character."""
    pattern, content = step.get("pattern"), _size(get_field(step, "content", str))
    length = _size(pattern["String"]) if isinstance(pattern, dict) and "String" in pattern else 0
    return max(1.0, content / length) if length else content + 1.0


def _precompiled_growth(step: Step) -> float:
    """The length of the longest replacement in the table of a SentencePiece model.

    The table is the length of an index, the index, and replacements that each end with a zero byte.
    """
    try:
        table = base64.b64decode(check_type("precompiled_charsmap", step.get("precompiled_charsmap"), str))
    except binascii.Error as error:
        raise ValueError(f"precompiled_charsmap: expected base64: {error}") from None
    # Four bytes, little-endian: the format of SentencePiece's precompiled normaliser.
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1.0, *map(len, replacements.split(b"\0")))


def _size(text: object) -> int:
    """The number of UTF-8 bytes of a text of the file."""
    return len(check_type("pattern", text, str).encode())


OWN_GROWTHS: dict[str, Callable[[Step], float]] = {
    "Metaspace": lambda step: 1.0 + _size(get_field(step, "replacement", str)),
    "Precompiled": _precompiled_growth,
    "Prepend": lambda step: 1.0 + _size(get_field(step, "prepend", str)),
    "Replace": _replace_growth,
}
"""The growth of the steps for which the table has a text."""


def _check_post_processor(described: Mapping[str, Any]) -> None:
    """Check how many ids and how many copies of a text the templates make."""
    ids, copies = 0, 1
    for _, step in _steps(described, "post_processor"):
        specials = check_type("special_tokens", step.get("special_tokens", {}), dict)
        sizes = {
            name: len(get_field(check_type("special_tokens", token, dict), "ids", list))
            for name, token in specials.items()
        }
        for name in ("single", "pair"):
            pieces = [check_type(name, piece, dict) for piece in check_type(name, step.get(name, []), list)]
            names = [
                check_type(name, x["SpecialToken"], dict).get("id") for x in pieces if "SpecialToken" in x
            ]
            if missing := [x for x in names if not isinstance(x, str) or x not in sizes]:
                raise ValueError(f"{name}: expected names of special_tokens, got {shorten(missing[0])}")
            ids += sum(sizes[x] for x in names)
        copies *= max(1, sum("Sequence" in piece for piece in step.get("single", [])))
        _check_most("post_processor: ids added to a text", ids, MAX_ADDED_IDS)
        _check_most("post_processor: copies of a text", copies, MAX_COPIES)


def _check_added_tokens(described: Mapping[str, Any], growth: float) -> None:
    """Check the added tokens, which the normalizers lengthen by `growth` when the tokenizer is built."""
    size = 0
    for token in check_type("added_tokens", described.get("added_tokens", []), list):
        content = get_field(check_type("added_tokens", token, dict), "content", str)
        _check_most("added_tokens: characters of a token", len(content), MAX_TOKEN)
        # Only added tokens with normalized: true pass through the normalizers, when the tokenizer is built.
        size += _size(content) if token.get("normalized") else 0
    if growth > 1:
        _check_most("added_tokens: bytes once they are normalized", size * growth, MAX_NORMALIZED)


def _check_model(model: Any) -> None:
    """Check the lengths of tokens, subword prefixes and words."""
    model = check_type("model", model, dict)
    vocab = model.get("vocab")
    # Unigram's vocabulary is a list of pairs; BPE, WordPiece and WordLevel have an object.
    if isinstance(vocab, list):
        # Pairs of a token and its score.
        pieces = [pair[0] for pair in vocab if isinstance(pair, list) and pair and isinstance(pair[0], str)]
        _check_most("model.vocab: characters of a token", max(map(len, pieces), default=0), MAX_PIECE)
        most = max(MAX_PIECES_BYTES, MAX_MEAN_PIECE * len(pieces))
        _check_most("model.vocab: bytes of all tokens", sum(map(_size, pieces)), most)
    elif isinstance(vocab, dict):
        _check_most("model.vocab: characters of a token", max(map(len, vocab), default=0), MAX_TOKEN)
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name) is not None:
            _check_most(f"model.{name}: characters", len(get_field(model, name, str)), MAX_AFFIX)
    if model.get("unk_token") is not None:
        _check_most("model.unk_token: characters", len(get_field(model, "unk_token", str)), MAX_TOKEN)
    word = model.get("max_input_chars_per_word", 0)
    _check_most("model.max_input_chars_per_word", check_type("max_input_chars_per_word", word, int), MAX_WORD)
