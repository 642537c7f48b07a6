"""A model inside the saved page: its weights and its tokenizer as blocks, which `web/model/` runs.

The matrices of a rounded model are stored as whole numbers and a step for each row. All other weights are in
float16 where that is exact, as it is for the included model, else in float32: the page computes with the same
numbers as the library. This file knows models and bytes; `bundle` knows HTML.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.heads.labels import MIN_SCORES
from regard.heads.tables.head_sentence import TARGETS
from regard.recorder import Capture
from regard.recorder.tokens_of_maps.predictions import LIKELIEST
from regard.show.data.contents import Contents
from regard.show.saved.packed_layer import Array, byte_planes, deflate
from regard.show.saved.rounded_model import RoundedModel, can_read

MOST_BYTES = 20_000_000  # of a whole page that holds a model
MOST_CHARACTERS = 1 << 20  # of a text that the page reads
PLANES_WITH_LETTERS = (0, 1, 2, 3, 14)  # of Unicode; all others are private or empty
SPACES: tuple[int, ...] = (0x9, 0xD, 0x20, 0x20, 0x85, 0x85, 0xA0, 0xA0, 0x1680, 0x1680, 0x2000, 0x200A)
SPACES += (0x2028, 0x2029, 0x202F, 0x202F, 0x205F, 0x205F, 0x3000, 0x3000)  # Unicode's White_Space


class ModelBlocks(NamedTuple):
    """What a page needs to run a model: a description as plain data, and the blocks by name, in base64."""

    description: dict[str, Any]
    blocks: dict[str, str]


def check_model(model: object) -> GPT:
    """Return the model if a page can run it; ValueError says why not."""
    if not isinstance(model, GPT):
        raise ValueError(
            f"model: expected a model that Regard's GPT can run, got {type(model).__name__}: "
            "write the page without its model"
        )
    # Rounded weights take about 5.4 bits, and 7.2 in base64, so that a model of this size never fits.
    if (least := model.num_parameters * 9 // 10) > MOST_BYTES:
        raise ValueError(
            f"model: expected one that fits into a page of {MOST_BYTES / 1e6:.0f} MB, got {least / 1e6:,.0f} "
            "MB of weights: write the page without its model"
        )
    return model


def pack_model(model: GPT | RoundedModel, contents: Contents) -> ModelBlocks:
    """Pack a model with its tokenizer; ValueError says what does not fit.

    Arguments:
        model: a `GPT` of any `Config`, with a byte-level BPE or a tokenizer of characters; or a rounded one.
        contents: what the page shows: captures of this model, with all of its layers and heads.
    """
    model, steps = (model.model, model.steps) if isinstance(model, RoundedModel) else (model, {})
    check_model(model)
    arrays = []
    for name, tensor in model.state_dict().items():
        if (step := steps.get(name)) is None:
            arrays.append(_exact_array(name, tensor))
        else:
            numbers = (tensor.detach() / step).round().to(torch.int16).numpy()
            arrays += [Array(name, "i16", numbers), _exact_array(f"{name}_step", step)]
    description = {
        "config": {**model.config.to_json(), "windows": list(model.config.windows)},
        "tensors": [{"name": a.name, "type": a.type, "shape": list(a.data.shape)} for a in arrays],
        "likeliest": LIKELIEST,
        "characters": MOST_CHARACTERS,
        "layers": _layers(model, contents),
        "targets": TARGETS,
        "min_scores": MIN_SCORES,
        "ids": [readable_ids(capture, contents.batch_index) for capture in contents.texts],
    }
    tokenizer = json.dumps(describe_tokenizer(model)).encode("ascii")
    blocks = {
        "model-weights": deflate(b"".join(map(byte_planes, arrays)), noise=True),
        "model-tokenizer": deflate(tokenizer),
    }
    return ModelBlocks(description, blocks)


def _layers(model: GPT, contents: Contents) -> list[dict[str, Any]]:
    """Describe the layers as they are on any text; ValueError unless the captures are of this model."""
    described: list[dict[str, Any]] = contents.meta["texts"][0]["layers"]
    config = model.config
    sizes = [(x["key"], len(x["heads"]), x["kv_heads"], x["width"]) for x in described]
    own = [(str(n), config.num_heads, config.num_kv_heads, config.head_dim) for n in range(config.num_layers)]
    if sizes != own:
        raise ValueError(
            "model: expected the one that was captured, with all of its layers and heads, got captures of "
            "another: write the page without it"
        )
    return described


def readable_ids(capture: Capture, entry: int) -> list[int]:
    """Return the tokens that the model read; an empty list if the page cannot read them."""
    if capture.ids is None or not can_read(capture, entry):
        return []
    return [int(token) for token in capture.ids[entry]]


def _exact_array(name: str, tensor: Tensor) -> Array:
    """Return a tensor in float16 if that holds it exactly, else in float32."""
    x = tensor.detach().float().cpu()
    half = x.half()
    exact = bool((half.float() == x).all())
    return Array(name, "f16" if exact else "f32", (half if exact else x).numpy())


def describe_tokenizer(model: GPT) -> dict[str, Any]:
    """Describe a model's tokenizer as `tokenizer.js` reads it; ValueError says what it cannot do.

    `pieces` are those of every id, `merges` the pairs of ids that are merged, first ones first, each followed
    by the id of both together. `special` tokens are found in a text before anything else, and `prefix` stands
    before every text. `letters`, `numbers` and `spaces` are ranges of code points, as this tokenizer has
    them: those of a browser may be of another version of Unicode.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("model: expected a model with a tokenizer, got one without")
    plain = json.loads(tokenizer.to_str())
    _check_tokenizer(plain)
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [""] * model.config.vocab_size
    for piece, number in vocabulary.items():
        # A tokenizer may have more tokens than the model has rows.
        if number < len(pieces):
            pieces[number] = piece
    # tokenizers before 0.20 write a merge as "a b", later ones as a pair.
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in plain["model"]["merges"]]
    in_bytes = plain["pre_tokenizer"] is not None
    letters, numbers = _letters_and_numbers() if in_bytes else ((), ())
    return {
        "bytes": in_bytes,
        "pieces": pieces,
        "merges": [number for a, b in merges for number in (vocabulary[a], vocabulary[b], vocabulary[a + b])],
        "special": [{"id": token["id"], "text": token["content"]} for token in plain["added_tokens"]],
        "prefix": _prefix(tokenizer),
        "letters": letters,
        "numbers": numbers,
        "spaces": SPACES,
    }


def _check_tokenizer(plain: dict[str, Any]) -> None:
    """Raise ValueError unless `tokenizer.js` gives the same tokens as a tokenizer, which is given as JSON."""
    model, splitter = plain["model"], plain["pre_tokenizer"]
    plain_merges = not any(
        model.get(name)
        for name in (
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
            "ignore_merges",
        )
    )
    plain_splitter = splitter is None or (
        splitter["type"] == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
    )
    special = [token for token in plain["added_tokens"]]
    plain_tokens = not any(token[name] for token in special for name in ("single_word", "lstrip", "rstrip"))
    if (
        model["type"] != "BPE"
        or not plain_merges
        or not plain_splitter
        or not plain_tokens
        or plain["normalizer"]
    ):
        raise ValueError(
            "tokenizer: expected a BPE of bytes, as GPT-2's, or of characters, without a normalizer, got "
            "another one: write the page without its model"
        )


def _prefix(tokenizer: Any) -> list[int]:
    """Return the tokens before every text; ValueError if there are some after it."""
    prefix: list[int] = tokenizer.encode("").ids
    own = tokenizer.encode("a", add_special_tokens=False).ids
    if tokenizer.encode("a").ids != prefix + own:
        raise ValueError(
            "tokenizer: expected special tokens before a text only, got some after it: write the page "
            "without its model"
        )
    return prefix


@cache
def _letters_and_numbers() -> tuple[list[int], list[int]]:
    r"""Return the ranges of code points that \p{L} and \p{N} have in the patterns of `tokenizers`."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import Split

    codes = [
        code
        for plane in PLANES_WITH_LETTERS
        for code in range(plane << 16, (plane + 1) << 16)
        # Surrogates are no characters: Rust's strings cannot hold them.
        if not 0xD800 <= code < 0xE000
    ]
    text = "".join(map(chr, codes))
    classes = []
    for pattern in (r"\p{L}", r"\p{N}"):
        rest = Split(Regex(pattern + "+"), "removed").pre_tokenize_str(text)
        gaps = [(stop, start) for (_, (_, stop)), (_, (start, _)) in pairwise(rest)]
        classes.append(list(chain.from_iterable(_ranges(codes, gaps))))
    return classes[0], classes[1]


def _ranges(codes: list[int], gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of places in a list of codes as first and last codes, cut where codes are missing."""
    ranges = []
    for first, stop in gaps:
        start = first
        for place in range(first + 1, stop + 1):
            if place == stop or codes[place] != codes[place - 1] + 1:
                ranges.append((codes[start], codes[place - 1]))
                start = place
    return ranges
