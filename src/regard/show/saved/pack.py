"""The saved file's data: every layer of every text in a compact binary form, and the error of that form.

A block is a list of arrays; those of a layer are in `packed_layer`. This file knows
captures; `bundle` knows HTML.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.gpt import GPT
from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder import Layer, Predictions
from regard.show.data.contents import Contents
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.retention import first_tokens
from regard.show.data.survey_rows import describe_survey_heads
from regard.show.saved.model_block import MOST_BYTES, pack_model
from regard.show.saved.packed_layer import (
    SAMPLED_ROWS,
    Array,
    byte_planes,
    deflate,
    float16,
    float24,
    pack_layer,
    pack_linear_layer,
    pack_mask,
    quantise,
)
from regard.show.saved.rounded_model import RoundedModel, can_read

FINE = 250_000  # numbers in all queries and keys up to which each keeps 24 bits: 1 MB of the file
SAMPLED_TOKENS = 512  # of a layer, by which its size is estimated
VALUE_STEPS = 12  # of rounded values, in a standard deviation of their channel
VALUES_LIMIT = 24_000_000  # bytes of the whole file up to which it includes values
STORED_TOKENS = 5  # likely tokens whose contributions are stored, after one position


class Packed(NamedTuple):
    """The blocks by name, in base64, and the largest relative and absolute error of a weight."""

    blocks: dict[str, str]
    relative: float
    absolute: float
    later: dict[str, str] = {}  # noqa: RUF012 (a field of a NamedTuple, never changed)
    """The blocks of the model, which the page does not need for its first picture."""


class FileBlocks:
    """The blocks of a file, by name. Layers with equal masks share one block."""

    def __init__(self) -> None:
        self.blocks: dict[str, str] = {}
        self.fields: dict[str, list[dict[str, Any]]] = {}
        self._masks: dict[bytes, str] = {}
        self._bands: dict[tuple[Any, ...], str] = {}  # the blocks of masks that are a band, by it, T and S

    def put(self, name: str, arrays: Sequence[Array], noise: bool = False) -> None:
        """Add a block of arrays; `noise` says that they are as good as random, which is faster to pack."""
        self.fields[name] = [{"name": a.name, "type": a.type, "shape": list(a.data.shape)} for a in arrays]
        self.blocks[name] = deflate(b"".join(map(byte_planes, arrays)), noise)

    def put_mask(self, m: AttentionMap | LinearAttentionMap) -> str:
        """Add the mask of a map if it is not there yet; return the name of its block."""
        # The ranges of 8,192 queries take a second to find; a band is known without them.
        band = None if m.mask.biased else m.mask.band(*m.matrix[2:])
        key = band, *m.matrix[2:]
        if band is not None and key in self._bands:
            return self._bands[key]
        mask = pack_mask(m)
        digest = b"".join(a.name.encode() + a.data.tobytes() for a in mask)
        block = self._masks.setdefault(digest, f"mask-{len(self._masks)}")
        if block not in self.blocks:
            self.put(block, mask)
        if band is not None:
            self._bands[key] = block
        return block


def pack(
    contents: Contents,
    *,
    values: bool | None = None,
    model: GPT | RoundedModel | None = None,
    exact: bool = False,
) -> Packed:
    """Pack everything that the saved page needs.

    Arguments:
        contents: what the page shows.
        values: whether to include the values v. None includes them if the file stays small.
        model: the model that was captured, to include it; ValueError says if it does not fit. A rounded one
            reads texts again in the page, which stores the layer that it shows first.
        exact: whether q, k and v keep 24, 24 and 16 bits, however large the file gets.
    """
    packed_model = None if model is None else pack_model(model, contents)
    later = {} if packed_model is None else packed_model.blocks
    limit = VALUES_LIMIT if packed_model is None else MOST_BYTES - sum(map(len, later.values()))
    # A copy by JSON: `meta` is cached in the contents, and is changed below.
    meta = json.loads(json.dumps(contents.meta))
    out = FileBlocks()
    relative = absolute = 0.0
    fine = exact or _count_numbers(meta) <= FINE
    texts = range(len(contents.texts))
    # Texts that the page's own model reads: it computes everything that is not stored here.
    is_read = [
        isinstance(model, RoundedModel) and can_read(seen, contents.batch_index) for seen in contents.texts
    ]
    stored = [[] if is_read[text] else _stored_quantities(contents, text) for text in texts]
    for text in texts:
        error = _put_text(out, contents, text, meta["texts"][text], stored[text], is_read[text], fine)
        relative, absolute = max(relative, error[0]), max(absolute, error[1])
    if values is not False and meta["can"]["values"]:
        _put_values(out, contents, meta, None if values else limit, fine, is_read)
    shown = [layer for text in meta["texts"] for layer in text["layers"] if not layer["recurrence"]]
    if any("values_block" not in layer for layer in shown):
        meta["can"]["values"] = False
    meta["precision"] = {"relative": relative, "absolute": absolute, "rows": SAMPLED_ROWS}
    meta["can"]["retained"] = bool(contents.retention)  # of a page that was served, too
    meta["rounding"] = model.change if isinstance(model, RoundedModel) else None
    head = {
        "meta": meta,
        "blocks": out.fields,
        "sinks": [
            {layer.key: contents[text].thumbnail(layer.key).sinks for layer in capture.layers}
            for text, capture in enumerate(contents.texts)
        ],
        "heads": [contents[text].heads() for text in texts],
        "attributions": [
            _stored_attributions(contents, text, quantities) for text, quantities in enumerate(stored)
        ],
        "retained": [contents.retention.get(text) for text in texts],
        "words": [_words(capture.predictions, contents.batch_index) for capture in contents.texts],
        "model": None if packed_model is None else packed_model.description,
    }
    if contents.survey is not None:
        examples = describe_survey_heads(contents.survey)
        out.blocks["survey"] = deflate(json.dumps(examples, allow_nan=False).encode("ascii"))
    # allow_nan=False: Python writes NaN, which the browser's JSON.parse refuses.
    out.blocks["regard-data"] = deflate(json.dumps(head, allow_nan=False).encode("ascii"))
    return Packed(out.blocks, relative, absolute, later)


def _put_text(
    out: FileBlocks,
    contents: Contents,
    text: int,
    described: dict[str, Any],
    stored: list[Quantity],
    is_read: bool,
    fine: bool,
) -> tuple[float, float]:
    """Add the blocks of a text, and their names to what `described` says of it.

    Returns the largest relative and absolute error of a weight. Of a text that `is_read` by the page's model
    only the layer is stored that the page shows first.
    """
    capture, relative, absolute = contents.texts[text], 0.0, 0.0
    first_shown = (0, contents.start[0] if contents.start else str(contents.texts[0].layers[0].key))
    if described["predicted"] and not is_read:
        described["predicted"]["positions"] = [described["predicted"]["start"]]
        described["predicted"]["tokens"] = [one.token for one in stored if one.shade == "logit"]
    thumbs = [contents[text].thumbnail(layer.key).thumbs for layer in capture.layers]
    out.put(f"thumbs-{text}", [Array("pictures", "u8", np.concatenate(thumbs))])
    for layer, description in zip(capture.layers, described["layers"], strict=True):
        if is_read:
            # As `live_weights.js` names the blocks of what it has read.
            for kind, field in (("layer", "block"), ("mask", "mask_block"), ("values", "values_block")):
                description[field] = f"{kind}-{text}-{layer.key}"
            if (text, str(layer.key)) != first_shown:
                continue
        m = contents[text].layer_map(layer.key)
        if isinstance(m, LinearAttentionMap):
            arrays, error = pack_linear_layer(m)
            description["delta_rule"] = m.delta_rule
        else:
            arrays, error = pack_layer(m, fine)
        relative, absolute = max(relative, error[0]), max(absolute, error[1])
        description["block"] = f"layer-{text}-{layer.key}"
        out.put(description["block"], arrays, noise=True)
        description["mask_block"] = out.put_mask(m)
    for quantity in stored:
        for layer in capture.layers:
            factors = _pack_factors(contents, text, layer, quantity, fine)
            out.put(_factors_block(text, layer, quantity), [factors], noise=True)
    if capture.predictions is not None:
        out.put(f"predictions-{text}", _pack_predictions(capture.predictions, contents.batch_index))
    return relative, absolute


def _stored_quantities(contents: Contents, text: int) -> list[Quantity]:
    """Return the contributions that a file holds: of values, and to the likeliest tokens after a position."""
    shades = contents[text].shades()
    quantities = [Quantity("values")] if "values" in shades else []
    if "logit" in shades:
        position = contents.meta["texts"][text]["predicted"]["start"]
        likeliest = contents[text].attribution(Quantity("logit", position=position))["candidates"]
        quantities += [
            Quantity("logit", position=position, token=one["id"]) for one in likeliest[:STORED_TOKENS]
        ]
    return quantities


def _stored_attributions(contents: Contents, text: int, quantities: list[Quantity]) -> list[dict[str, Any]]:
    """Return where the logits of the stored tokens come from; these are the ones to choose from."""
    found = [contents[text].attribution(quantity) for quantity in quantities if quantity.shade == "logit"]
    candidates = [one["token"] for one in found]
    return [{**one, "candidates": candidates} for one in found]


def _factors_block(text: int, layer: Layer, quantity: Quantity) -> str:
    """Return the name of the block with the factors of a layer's keys, as `saved_weights.js` has it."""
    if quantity.shade == "values":
        return f"norms-{text}-{layer.key}"
    return f"logit-{text}-{layer.key}-{quantity.position}-{quantity.token}"


def _pack_factors(contents: Contents, text: int, layer: Layer, quantity: Quantity, fine: bool) -> Array:
    """Pack the factors of a layer's keys, (H, S): they are within 5e-4 of the library's, if `fine` 4e-6."""
    factors = contents[text].factors(layer.key, quantity)[0].double().cpu()
    return (None if fine else float16("factors", factors)) or float24("factors", factors)


def estimate_size(contents: Contents, exact: bool = False) -> int:
    """Estimate the bytes of a page's queries and keys: nearly all of a large page without a model.

    The first tokens of each layer are packed: heads with large scores take several times as many bits.
    """
    fine = exact or _count_numbers(contents.meta) <= FINE
    size = 0.0
    for text, described in enumerate(contents.meta["texts"]):
        for layer in described["layers"]:
            m = contents[text].layer_map(layer["key"])
            if isinstance(m, AttentionMap) and SAMPLED_TOKENS < layer["rows"] == layer["cols"]:
                m = first_tokens(m, SAMPLED_TOKENS)
            arrays, _ = pack_linear_layer(m) if isinstance(m, LinearAttentionMap) else pack_layer(m, fine)
            characters = len(deflate(b"".join(map(byte_planes, arrays)), noise=True))
            size += characters * layer["rows"] / max(m.matrix[2], 1)
    return round(size)


def _count_numbers(meta: dict[str, Any]) -> int:
    layers = [layer for text in meta["texts"] for layer in text["layers"]]
    return sum(x["width"] * (len(x["heads"]) * x["rows"] + x["kv_heads"] * x["cols"]) for x in layers)


def _put_values(
    out: FileBlocks,
    contents: Contents,
    meta: dict[str, Any],
    limit: int | None,
    fine: bool,
    is_read: list[bool],
) -> None:
    """Include the values, unless the blocks would then have more than `limit` characters.

    Those of texts that the page's model reads are left out.
    """
    layers = [
        (text, layer, description)
        for text, capture in enumerate(contents.texts)
        for layer, description in zip(capture.layers, meta["texts"][text]["layers"], strict=True)
        if not layer.is_linear and not is_read[text]  # a linear layer has no steps to show them in
    ]
    # Values take 2 bytes each, and base64 makes 4 characters of 3 bytes.
    values_size = sum(_values(contents, layer).numel() * 8 // 3 for _, layer, _ in layers)
    if limit is not None and sum(map(len, out.blocks.values())) + values_size > limit:
        return
    for text, layer, description in layers:
        description["values_block"] = f"values-{text}-{layer.key}"
        v = _values(contents, layer)
        out.put(description["values_block"], _pack_values(v, fine), noise=True)


def _values(contents: Contents, layer: Layer) -> Tensor:
    assert layer.values is not None
    return layer.values.reshape(-1, *layer.values.shape[-3:])[contents.batch_index].cpu()  # (G, S, E)


def _pack_values(v: Tensor, fine: bool) -> list[Array]:
    """Pack values (G, S, E): in float16 if they are `fine`, else in steps of a part of their deviation."""
    if fine:
        return [float16("v", v) or Array("v", "f32", v.float().numpy())]
    return quantise("v", v.double(), v.double().std(1, keepdim=True, correction=0) / VALUE_STEPS)


def _words(predictions: Predictions | None, entry: int) -> list[str]:
    """Return the texts of all likely next tokens, in the order of their ids."""
    if predictions is None:
        return []
    return [predictions.word(token) for token in torch.unique(predictions.likeliest[entry]).tolist()]


def _pack_predictions(predictions: Predictions, entry: int) -> list[Array]:
    """Pack the likeliest next tokens, as places in `_words`, and the loss and rank of what follows."""
    ids, places = torch.unique(predictions.likeliest[entry], return_inverse=True)  # places (T, k)
    return [
        Array("ids", "u32", ids.numpy()),
        Array("places", "u32", places.numpy()),
        float24("probabilities", predictions.probabilities[entry]),
        Array("losses", "f32", predictions.losses[entry].numpy()),
        Array("ranks", "u32", predictions.ranks[entry].numpy()),
    ]
