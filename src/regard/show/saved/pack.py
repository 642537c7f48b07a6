"""The saved file's data: q, k and lse of every layer in a compact binary form, and the error of that form.

A block is a list of arrays (see `packed_arrays`). q and k are quantised to 16-bit integers with one step for
each head and channel, which loses less of a score than float16 does in as many bytes. Keys are stored as
differences from their mean, to which the softmax is invariant. If the file stays small, or if a layer's
weights would otherwise be off by more than 1%, they are stored in 24 bits. A layer whose scores are too large
for that keeps float32, with its lse in float64. Linear layers keep q, k, decays and strengths. This file
knows captures; `bundle` knows HTML.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks.base import Grid, grid
from regard.gpt import GPT
from regard.maps import AttentionMap, LinearAttentionMap, linear_attention_map
from regard.recorder import Layer, Predictions
from regard.show.data.contents import Contents
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.repeats import repeat_rows
from regard.show.data.survey_rows import describe_survey_heads
from regard.show.saved.model_block import MOST_BYTES, pack_model
from regard.show.saved.packed_arrays import Array, byte_planes, deflate

TOLERANCE = 0.01  # maximum relative error of a packed weight
FINE = 2_000_000  # numbers in all queries and keys up to which each keeps 24 bits: a file of 8 MB
CHUNK = 1 << 22  # weights computed at a time
SAMPLED_ROWS = 128  # of a layer, on which the error is measured
VALUES_LIMIT = 24_000_000  # bytes of the whole file up to which it includes values
STORED_TOKENS = 5  # likely tokens whose contributions are stored, after one position
DENSE_LIMIT = 1 << 26  # numbers of a bias that depends on more than the distance


class Packed(NamedTuple):
    """The blocks by name, in base64, and the largest relative and absolute error of a weight."""

    blocks: dict[str, str]
    relative: float
    absolute: float
    later: dict[str, str] = {}  # noqa: RUF012 (a field of a NamedTuple, never changed)
    """The blocks of the model, which the page does not need for its first picture."""


def pack(contents: Contents, *, values: bool | None = None, model: GPT | None = None) -> Packed:
    """Pack everything that the saved page needs.

    `values` says whether to include the values v; None includes them if the file stays small. `model` is
    included if it is given; ValueError says if it does not fit.
    """
    packed_model = None if model is None else pack_model(model, contents)
    later = {} if packed_model is None else packed_model.blocks
    limit = VALUES_LIMIT if packed_model is None else MOST_BYTES - sum(map(len, later.values()))
    # A copy by JSON: `meta` is cached in the contents, and is changed below.
    meta = json.loads(json.dumps(contents.meta))
    blocks: dict[str, str] = {}
    fields: dict[str, list[dict[str, Any]]] = {}
    masks: dict[bytes, str] = {}
    relative = absolute = 0.0
    fine = _count_numbers(meta) <= min(FINE, limit // 4)  # 24 bits are 4 characters

    def put(name: str, arrays: Sequence[Array], noise: bool = False) -> None:
        fields[name] = [{"name": a.name, "type": a.type, "shape": list(a.data.shape)} for a in arrays]
        blocks[name] = deflate(b"".join(map(byte_planes, arrays)), noise)

    stored = [_stored_quantities(contents, text) for text in range(len(contents.texts))]
    for text, capture in enumerate(contents.texts):
        if predicted := meta["texts"][text]["predicted"]:
            predicted["positions"] = [predicted["start"]]
            predicted["tokens"] = [quantity.token for quantity in stored[text] if quantity.shade == "logit"]
        thumbs = [contents.thumbnail(text, layer.key).thumbs for layer in capture.layers]
        put(f"thumbs-{text}", [Array("pictures", "u8", np.concatenate(thumbs))])
        for layer, description in zip(capture.layers, meta["texts"][text]["layers"], strict=True):
            m = contents.layer_map(text, layer.key)
            if isinstance(m, LinearAttentionMap):
                arrays, error = _pack_linear_layer(m)
                description["delta_rule"] = m.delta_rule
            else:
                arrays, error = _pack_layer(m, fine)
            relative, absolute = max(relative, error[0]), max(absolute, error[1])
            description["block"] = f"layer-{text}-{layer.key}"
            put(description["block"], arrays, noise=True)
            # Layers with equal masks share one block.
            mask = _pack_mask(m)
            digest = b"".join(a.name.encode() + a.data.tobytes() for a in mask)
            if digest not in masks:
                masks[digest] = f"mask-{len(masks)}"
                put(masks[digest], mask)
            description["mask_block"] = masks[digest]
        for quantity in stored[text]:
            for layer in capture.layers:
                put(
                    _factors_block(text, layer, quantity),
                    [_pack_factors(contents, text, layer, quantity)],
                    True,
                )
        if capture.predictions is not None:
            put(f"predictions-{text}", _pack_predictions(capture.predictions, contents.batch_index))
    if values is not False and meta["can"]["values"]:
        _put_values(contents, meta, put, blocks, None if values else limit)
    shown = [layer for text in meta["texts"] for layer in text["layers"] if not layer["recurrence"]]
    if any("values_block" not in layer for layer in shown):
        meta["can"]["values"] = False
    meta["precision"] = {"relative": relative, "absolute": absolute, "rows": SAMPLED_ROWS}
    head = {
        "meta": meta,
        "blocks": fields,
        "sinks": [
            {layer.key: contents.thumbnail(text, layer.key).sinks for layer in capture.layers}
            for text, capture in enumerate(contents.texts)
        ],
        "heads": [contents.heads(text) for text in range(len(contents.texts))],
        "repeats": repeat_rows(contents.repeats),
        "attributions": [
            _stored_attributions(contents, text, quantities) for text, quantities in enumerate(stored)
        ],
        "words": [_words(capture.predictions, contents.batch_index) for capture in contents.texts],
        "model": None if packed_model is None else packed_model.description,
    }
    if contents.survey is not None:
        examples = describe_survey_heads(contents.survey)
        blocks["survey"] = deflate(json.dumps(examples, allow_nan=False).encode("ascii"))
    # allow_nan=False: Python writes NaN, which the browser's JSON.parse refuses.
    blocks["regard-data"] = deflate(json.dumps(head, allow_nan=False).encode("ascii"))
    return Packed(blocks, relative, absolute, later)


def _stored_quantities(contents: Contents, text: int) -> list[Quantity]:
    """Return the contributions that a file holds: of values, and to the likeliest tokens after a position."""
    shades = contents.shades(text)
    quantities = [Quantity("values")] if "values" in shades else []
    if "logit" in shades:
        position = contents.meta["texts"][text]["predicted"]["start"]
        likeliest = contents.attribution(text, Quantity("logit", position=position))["candidates"]
        quantities += [
            Quantity("logit", position=position, token=one["id"]) for one in likeliest[:STORED_TOKENS]
        ]
    return quantities


def _stored_attributions(contents: Contents, text: int, quantities: list[Quantity]) -> list[dict[str, Any]]:
    """Return where the logits of the stored tokens come from; these are the ones to choose from."""
    found = [contents.attribution(text, quantity) for quantity in quantities if quantity.shade == "logit"]
    candidates = [one["token"] for one in found]
    return [{**one, "candidates": candidates} for one in found]


def _factors_block(text: int, layer: Layer, quantity: Quantity) -> str:
    """Return the name of the block with the factors of a layer's keys, as `saved_weights.js` has it."""
    if quantity.shade == "values":
        return f"norms-{text}-{layer.key}"
    return f"logit-{text}-{layer.key}-{quantity.position}-{quantity.token}"


def _pack_factors(contents: Contents, text: int, layer: Layer, quantity: Quantity) -> Array:
    """Pack the factors of a layer's keys, (H, S), in 24 bits: they are within 4e-6 of the library's."""
    return _float24("factors", contents.factors(text, layer.key, quantity)[0].double().cpu())


def _count_numbers(meta: dict[str, Any]) -> int:
    """Count the numbers in all queries and keys."""
    layers = [layer for text in meta["texts"] for layer in text["layers"]]
    return sum(x["width"] * (len(x["heads"]) * x["rows"] + x["kv_heads"] * x["cols"]) for x in layers)


def _put_values(
    contents: Contents, meta: dict[str, Any], put: Any, blocks: dict[str, str], limit: int | None
) -> None:
    """Include the values, unless the blocks would then have more than `limit` characters."""
    layers = [
        (text, layer, description)
        for text, capture in enumerate(contents.texts)
        for layer, description in zip(capture.layers, meta["texts"][text]["layers"], strict=True)
        if not layer.is_linear  # it has no steps to show them in
    ]
    # Values take 2 bytes each, and base64 makes 4 characters of 3 bytes.
    values_size = sum(_values(contents, layer).numel() * 8 // 3 for _, layer, _ in layers)
    if limit is not None and sum(map(len, blocks.values())) + values_size > limit:
        return
    for text, layer, description in layers:
        description["values_block"] = f"values-{text}-{layer.key}"
        v = _values(contents, layer)
        put(
            description["values_block"],
            [_float16("v", v) or Array("v", "f32", v.float().numpy())],
            noise=True,
        )


def _values(contents: Contents, layer: Layer) -> Tensor:
    assert layer.values is not None
    return layer.values.reshape(-1, *layer.values.shape[-3:])[contents.batch_index].cpu()  # (G, S, E)


def _pack_layer(m: AttentionMap, fine: bool) -> tuple[list[Array], tuple[float, float]]:
    """Pack a map (1, H, T, S) into arrays.

    Returns them with the largest relative and absolute error of a weight. `fine` keeps 24 bits in any case.
    """
    # Subtract the keys' mean, and from each lse what that takes from the row's scores.
    q, k = m.q[0].double().cpu(), m.k[0].double().cpu()  # (H, T, D), (G, S, D)
    k = k.masked_fill(~k.isfinite(), 0)  # padding may hold anything, and is not visible
    mean = (
        # tanh of a soft cap is not invariant to a shift of all scores, so that keys keep their mean.
        k.mean(1, keepdim=True) if m.softcap is None and k.shape[1] else k.new_zeros(len(k), 1, k.shape[-1])
    )
    # Rounded to float32 first, since that is what the file holds and the page adds.
    mean = mean.float().double()
    group = len(q) // len(k)
    lse = m.precise_lse()[0].cpu() - m.scale * (q * mean.repeat_interleave(group, 0)).sum(-1)  # (H, T)
    shifted = k - mean
    rest = [Array("mean", "f32", mean[:, 0].float().numpy()), Array("lse", "f32", lse.float().numpy())]
    # Take the smallest form that is accurate enough: 16 bits, then 24.
    if not fine:
        arrays = [*_quantise("q", q), *_quantise("k", shifted), *rest]
        error = _measure_error(m, _unpack(m, arrays))
        if error[0] <= TOLERANCE:
            return arrays, error
    arrays = [_float24("q", q), _float24("k", shifted), *rest]
    error = _measure_error(m, _unpack(m, arrays))
    if error[0] <= TOLERANCE:
        return arrays, error
    # The scores are large: q and k in float32, and the lse in float64.
    arrays = [
        Array("q", "f32", q.float().numpy()),
        Array("k", "f32", k.float().numpy()),
        Array("mean", "f32", torch.zeros_like(mean[:, 0]).float().numpy()),
        Array("lse", "f64", m.precise_lse()[0].cpu().numpy()),
    ]
    return arrays, _measure_error(m, _unpack(m, arrays))


def _pack_linear_layer(m: LinearAttentionMap) -> tuple[list[Array], tuple[float, float]]:
    """Pack a linear layer's map (1, H, T, S): q and k as they enter the recurrence, decays and strengths.

    Returns them with the largest relative and absolute error of a weight, as `_measure_error` does.
    """
    _, H, _, S = m.matrix
    inputs, everything = m.inputs(torch.float64), slice(0, S)
    keys, norms = inputs.keys(everything)
    one_of_group = slice(None, None, H // max(m.k.shape[1], 1))  # the heads of a group have the same q and k
    q, k = (x[0, one_of_group].cpu() for x in (inputs.queries(everything), keys * norms))  # (G, S, D)
    skip = torch.zeros(H, device="cpu") if m.skip is None else m.skip
    arrays = [
        _float24("q", q),
        _float24("k", k),
        *(
            Array(name, "f32", x.float().cpu().numpy())
            for name, x in (("decay", m.decay[0]), ("beta", m.beta[0]), ("skip", skip))
        ),
    ]
    q, k, decay, beta, skip = (torch.from_numpy(a.data).double() for a in arrays)
    packed = linear_attention_map(
        q[None], k[None], decay=decay[None], beta=beta[None], skip=skip, delta_rule=m.delta_rule
    )
    return arrays, _measure_error(m, packed._with(rows=m.rows))


def _unpack(m: AttentionMap, arrays: list[Array]) -> AttentionMap:
    """Return the map as the page computes it: numbers times steps in float32, then all in float64."""
    by_name = {a.name: torch.from_numpy(a.data).float() for a in arrays if a.name != "lse"}
    q, k = (by_name[name] * by_name.get(f"{name}_step", torch.ones((), device="cpu")) for name in ("q", "k"))
    lse = torch.from_numpy(next(a.data for a in arrays if a.name == "lse")).double()
    # Without the sink logits, which the lse includes already.
    return m._with(q=q.double()[None], k=k.double()[None], lse=lse[None], sinks=None)


def _measure_error(
    m: AttentionMap | LinearAttentionMap, packed: AttentionMap | LinearAttentionMap
) -> tuple[float, float]:
    """Return the largest relative and absolute error of a weight, over evenly sampled rows of every head.

    Weights of a linear layer are sums of either sign: their error is relative to the greatest of their row.
    """
    _, H, T, S = m.matrix
    if not T or not S:
        return 0.0, 0.0
    rows = torch.linspace(0, T - 1, min(T, SAMPLED_ROWS), device="cpu").round().long()
    relative = absolute = 0.0
    for first in range(0, len(rows), step := max(1, CHUNK // (H * S))):
        chunk = rows[first : first + step]
        true = m.tile(chunk.to(m.device)).cpu()  # (1, H, rows, S)
        error = (packed.tile(chunk) - true).abs_()
        absolute = max(absolute, float(error.max()))
        size = true.abs().amax(-1, keepdim=True) if isinstance(m, LinearAttentionMap) else true
        # A relative error of weights below 1e-9 would be one of rounding errors.
        relative = max(relative, float(error.div_(size).masked_fill_(size < 1e-9, 0).max()))
    return relative, absolute


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
        _float24("probabilities", predictions.probabilities[entry]),
        Array("losses", "f32", predictions.losses[entry].numpy()),
        Array("ranks", "u32", predictions.ranks[entry].numpy()),
    ]


def _pack_mask(m: AttentionMap | LinearAttentionMap) -> list[Array]:
    """Pack the visible keys, as ranges for each query, and the bias that the mask adds to the scores."""
    T = m.matrix[2]
    # 512 queries at a time, so that no T×S table of booleans is made.
    chunks = [_visible_ranges(m, slice(first, min(first + 512, T))) for first in range(0, T, 512)]
    heads = max((len(counts) for counts, _ in chunks), default=1)
    counts = np.concatenate(
        [np.broadcast_to(c, (heads, c.shape[1])) for c, _ in chunks] or [np.zeros((1, 0))], 1
    )
    # Ranges are computed a chunk of queries at a time: put those of one head together.
    by_head = [[ranges[min(h, len(ranges) - 1)] for _, ranges in chunks] for h in range(heads)]
    flat = np.concatenate([np.concatenate(ranges) for ranges in by_head if ranges] or [np.zeros((0, 2))])
    offsets = np.concatenate([[0], counts.reshape(-1).cumsum()])
    arrays = [Array("offsets", "u32", offsets.astype("<u4")), Array("ranges", "u32", flat.astype("<u4"))]
    return arrays + _pack_bias(m) if m.mask.biased else arrays


def _visible_ranges(
    m: AttentionMap | LinearAttentionMap, rows: slice
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Find the ranges of visible keys of each query.

    Returns the number of ranges of each query, (heads, rows), and each head's ranges, (n, 2). A mask that is
    the same for all heads counts as one head.
    """
    allowed = m.mask.allowed(_grid(m, rows))
    allowed = allowed.expand(1, allowed.shape[1], rows.stop - rows.start, m.matrix[3])
    allowed = allowed[0].cpu()  # (heads, rows, S)
    edge = allowed.new_zeros(*allowed.shape[:2], 1)
    steps = torch.cat([edge, allowed, edge], -1).to(torch.int8).diff(dim=-1)  # 1 where a range begins
    counts = (steps == 1).sum(-1).numpy()
    starts, ends = (steps == 1).nonzero(), (steps == -1).nonzero()
    pairs = torch.stack([starts[:, -1], ends[:, -1]], -1)
    return counts, [pairs[starts[:, 0] == h].numpy() for h in range(len(allowed))]


def _pack_bias(m: AttentionMap | LinearAttentionMap) -> list[Array]:
    """Pack the mask's bias: one number for each distance if it depends on nothing else, or all numbers."""
    _, _, T, S = m.matrix
    first = m.mask.score_bias(_grid(m, slice(0, 1)))
    assert first is not None
    heads = first.shape[1]
    if heads * T * S > DENSE_LIMIT:
        raise ValueError(
            f"mask {m.mask}: expected a bias of at most {DENSE_LIMIT:,} numbers to save in a page, "
            f"got {heads} × {T} × {S}: serve the capture instead, with seen.show() or regard inspect"
        )
    added = m.mask.score_bias(_grid(m, slice(0, T)))
    assert added is not None
    dense = added.detach().expand(1, heads, T, S)[0].float().cpu().clamp(min=-1e30)  # (heads, T, S)
    relative = torch.cat([dense[:, :, 0].flip(1), dense[:, 0, 1:]], 1)  # by key − query, from 1 − T to S − 1
    index = torch.arange(S, device="cpu") - torch.arange(T, device="cpu")[:, None] + T - 1
    if bool(torch.equal(relative[:, index], dense)):
        return [Array("relative", "f32", relative.numpy())]
    return [Array("dense", "f32", dense.numpy())]


def _grid(m: AttentionMap | LinearAttentionMap, rows: slice) -> Grid:
    return grid(rows, slice(0, m.matrix[3]), m.matrix, m.device)


def _quantise(name: str, x: Tensor) -> list[Array]:
    """Quantise (heads, n, D) to 16 bits.

    A step is 1/2048 of the channel's standard deviation, or larger if 16 bits need it.
    """
    if not x.numel():
        return [Array(name, "i16", x.to(torch.int16).numpy())]
    # correction=0: with Bessel's correction, one key alone has a standard deviation of NaN.
    step = torch.maximum(x.std(1, keepdim=True, correction=0) / 2048, x.abs().amax(1, keepdim=True) / 32767)
    # 1e-30: a channel of zeros has step 0, and 0 / 0 is NaN.
    step = step.clamp(min=1e-30).float()  # (heads, 1, D)
    steps = (x / step).round().clamp(-32767, 32767).to(torch.int16)
    return [Array(name, "i16", steps.numpy()), Array(f"{name}_step", "f32", step.numpy())]


def _float16(name: str, x: Tensor) -> Array | None:
    """Return an array in float16, or None if a number is too large for it."""
    half = x.to(torch.float16)
    return Array(name, "f16", half.numpy()) if bool(half.isfinite().all()) else None


def _float24(name: str, x: Tensor) -> Array:
    """Return an array in float32, rounded so that the last byte of each number can be dropped."""
    words = x.float().numpy().view(np.uint32)
    # uint64: adding half of the last byte may carry past 32 bits.
    rounded = ((words.astype(np.uint64) + 0x80) & 0xFFFFFF00).astype(np.uint32)
    return Array(name, "f24", rounded.view(np.float32))
