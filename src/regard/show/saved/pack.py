"""The saved file's data: q, k and lse of every layer in a compact binary form, and the error of that form.

A block is a list of arrays (see `packed_arrays`). q and k are rounded to a step for each head and channel,
so that a page can be sent: their scores get a known rounding noise, and the lse is that of the rounded q and
k, so that weights still sum to 1. Keys are stored as differences from their mean, to which the softmax is
invariant. A small file, an exact one, and layers whose weights would change by more than 0.03, store q and k
in 24 bits. A layer whose scores are too large for that keeps float32, with its lse in float64. Linear layers
keep q, k, decays and strengths. This file knows captures; `bundle` knows HTML.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.gpt import GPT
from regard.maps import AttentionMap, LinearAttentionMap, attention_map, linear_attention_map
from regard.recorder import Layer, Predictions
from regard.show.data.contents import Contents
from regard.show.data.map_view.quantity import Quantity
from regard.show.data.retention import first_tokens
from regard.show.data.survey_rows import describe_survey_heads
from regard.show.saved.mask_block import pack_mask
from regard.show.saved.model_block import MOST_BYTES, pack_model
from regard.show.saved.packed_arrays import Array, byte_planes, deflate
from regard.show.saved.rounded_model import RoundedModel, can_read

TOLERANCE = 0.01  # maximum relative error of a weight that is packed in 24 bits
ROUNDED_TOLERANCE = 0.03  # maximum absolute error of a weight whose q and k are rounded
SCORE_NOISES = (0.02, 0.005)  # standard deviations of what rounding q and k adds to a score, to be tried
FINE = 250_000  # numbers in all queries and keys up to which each keeps 24 bits: 1 MB of the file
CHUNK = 1 << 22  # weights computed at a time
SAMPLED_ROWS = 128  # of a layer, on which the error is measured
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


class Blocks:
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
    out = Blocks()
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
    out: Blocks,
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
            arrays, error = _pack_linear_layer(m)
            description["delta_rule"] = m.delta_rule
        else:
            arrays, error = _pack_layer(m, fine)
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
    return (None if fine else _float16("factors", factors)) or _float24("factors", factors)


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
            arrays, _ = _pack_linear_layer(m) if isinstance(m, LinearAttentionMap) else _pack_layer(m, fine)
            characters = len(deflate(b"".join(map(byte_planes, arrays)), noise=True))
            size += characters * layer["rows"] / max(m.matrix[2], 1)
    return round(size)


def _count_numbers(meta: dict[str, Any]) -> int:
    """Count the numbers in all queries and keys."""
    layers = [layer for text in meta["texts"] for layer in text["layers"]]
    return sum(x["width"] * (len(x["heads"]) * x["rows"] + x["kv_heads"] * x["cols"]) for x in layers)


def _put_values(
    out: Blocks,
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
        return [_float16("v", v) or Array("v", "f32", v.float().numpy())]
    return _quantise("v", v.double(), v.double().std(1, keepdim=True, correction=0) / VALUE_STEPS)


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
    # Rounded first, since that is what the file holds and the page adds.
    mean = torch.from_numpy(_float24("mean", mean).data).double()
    for noise in () if fine else SCORE_NOISES:
        arrays = _round_layer(m, q, k, mean, noise)
        error = _measure_error(m, _unpack(m, arrays))
        if error[1] <= ROUNDED_TOLERANCE:
            return arrays, error
    shifted = k - mean
    lse = m.precise_lse()[0].cpu() - _shift_scores(m, q, mean)  # (H, T)
    rest = [Array("mean", "f32", mean[:, 0].float().numpy()), Array("lse", "f32", lse.float().numpy())]
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


def _round_layer(m: AttentionMap, q: Tensor, k: Tensor, mean: Tensor, noise: float) -> list[Array]:
    """Round q (H, T, D) and k (G, S, D) without their mean, so that scores get some noise.

    An error of a query's channel counts as much as the keys are large in it, and the reverse: a step is
    inversely proportional to their root mean square, and all channels add the same to the noise.
    """
    if not q.numel() or not k.numel():
        return [*_quantise("q", q, q[:, :1]), *_quantise("k", k, k[:, :1]), *_mean_and_lse(m, q, k, mean)]
    group = len(q) // len(k)
    shifted = k - mean
    size_q = q.pow(2).reshape(len(k), -1, q.shape[-1]).mean(1, keepdim=True).sqrt()  # (G, 1, D)
    size_k = shifted.pow(2).mean(1, keepdim=True).sqrt()  # (G, 1, D)
    # A step's error is uniform, with a variance of a twelfth; both sides of D channels add theirs.
    step = noise / m.scale * (12 / (2 * q.shape[-1])) ** 0.5
    q_arrays = _quantise("q", q, (step / size_k).repeat_interleave(group, 0))
    k_arrays = _quantise("k", shifted, step / size_q)
    rounded = [torch.from_numpy(x.data).float() * torch.from_numpy(s.data) for x, s in (q_arrays, k_arrays)]
    return [*q_arrays, *k_arrays, *_mean_and_lse(m, rounded[0].double(), rounded[1].double() + mean, mean)]


def _mean_and_lse(m: AttentionMap, q: Tensor, k: Tensor, mean: Tensor) -> list[Array]:
    """Pack the keys' mean, and the lse of q and k without what the mean gives to all scores of a row."""
    own = attention_map(
        q.float()[None],
        k.float()[None],
        mask=m.mask,
        scale=m.scale,
        softcap=m.softcap,
        sinks=None if m.sinks is None else m.sinks.cpu(),
    )
    return [_float24("mean", mean[:, 0]), _float24("lse", own.precise_lse()[0] - _shift_scores(m, q, mean))]


def _shift_scores(m: AttentionMap, q: Tensor, mean: Tensor) -> Tensor:
    """Return what the keys' mean (G, 1, D) adds to all scores of each query, (H, T)."""
    shift: Tensor = m.scale * (q * mean.repeat_interleave(len(q) // len(mean), 0)).sum(-1)
    return shift


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


def _quantise(name: str, x: Tensor, step: Tensor) -> list[Array]:
    """Round (heads, n, D) to steps (heads, 1, D), or to larger ones where 16 bits need them."""
    # 1e-30: a channel of zeros has step 0, and 0 / 0 is NaN. Infinite steps are those of channels that do
    # not matter, since the other side is 0 in them.
    largest = x.abs().amax(1, keepdim=True) if x.numel() else x[:, :1]
    steps = _float24(f"{name}_step", torch.maximum(step, largest / 32000).clamp(min=1e-30, max=1e30))
    return [Array(name, "i16", (x / torch.from_numpy(steps.data)).round().to(torch.int16).numpy()), steps]


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
