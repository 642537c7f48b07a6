"""The saved file's data: q, k and lse of every layer in a compact binary form, with the error that it makes.

A block is a list of arrays, one after another, each with its bytes in planes (all first bytes, then all
second ones), deflated. q and k are whole numbers of 16 bits times a step for each head and channel: of a
score they lose less than float16 does, in as many bytes. Keys are kept as differences from their mean, which
the softmax does not see. Where there is room for 24 bits, or a layer's weights would otherwise be more than
1% off, it is 24 bits. A layer whose scores are too large for that keeps float32, and its lse in float64. This
file knows captures and bytes; `page` knows HTML, and `packed.js` reads what is written here.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks.base import Grid, grid
from regard.maps import AttentionMap
from regard.recorder import Layer
from regard.show.data.contents import Contents

ALLOWED = 0.01  # of a weight, at most, by which a packed one may be off
FINE = 2_000_000  # numbers in all queries and keys up to which each keeps 24 bits, a file of 8 MB
LARGE = 1 << 22  # weights that are computed at a time
MEASURED = 128  # rows of a layer that are looked at to know by how much it is
VALUES_LIMIT = 24_000_000  # bytes of the whole file up to which values are taken along
DENSE_LIMIT = 1 << 26  # numbers of a bias that follows no rule


class Array(NamedTuple):
    name: str
    type: str  # "u8", "u32", "i16", "f16", "f24", "f32" or "f64"
    data: NDArray[Any]


class Packed(NamedTuple):
    """Blocks of base64 by name, and the largest relative and absolute error of a weight."""

    blocks: dict[str, str]
    relative: float
    absolute: float


def pack(contents: Contents, *, values: bool | None = None) -> Packed:
    """Everything that the saved page needs. Values are taken along if there is room, or as told."""
    meta = json.loads(json.dumps(contents.meta))
    blocks: dict[str, str] = {}
    fields: dict[str, list[dict[str, Any]]] = {}
    masks: dict[bytes, str] = {}
    worst = (0.0, 0.0)
    fine = _numbers(meta) <= FINE

    def put(name: str, arrays: Sequence[Array], noise: bool = False) -> None:
        fields[name] = [{"name": a.name, "type": a.type, "shape": list(a.data.shape)} for a in arrays]
        blocks[name] = _deflated(b"".join(map(_planes, arrays)), noise)

    for text, seen in enumerate(contents.texts):
        thumbs = [contents.glance(text, layer.key).thumbs for layer in seen.layers]
        put(f"thumbs-{text}", [Array("pictures", "u8", np.concatenate(thumbs))])
        for layer, about in zip(seen.layers, meta["texts"][text]["layers"], strict=True):
            one = contents.whole(text, layer.key)
            arrays, error = _layer(one, fine)
            worst = (max(worst[0], error[0]), max(worst[1], error[1]))
            about["block"] = f"layer-{text}-{layer.key}"
            put(about["block"], arrays, noise=True)
            rule = _mask(one)
            digest = b"".join(a.name.encode() + a.data.tobytes() for a in rule)
            if digest not in masks:
                masks[digest] = f"mask-{len(masks)}"
                put(masks[digest], rule)
            about["mask_block"] = masks[digest]
    if values is not False and meta["can"]["values"]:
        _put_values(contents, meta, put, blocks, values is True)
    if any("values_block" not in layer for text in meta["texts"] for layer in text["layers"]):
        meta["can"]["values"] = False
    meta["precision"] = {"relative": worst[0], "absolute": worst[1], "rows": MEASURED}
    head = {
        "meta": meta,
        "blocks": fields,
        "sinks": [
            {layer.key: contents.glance(text, layer.key).sinks for layer in seen.layers}
            for text, seen in enumerate(contents.texts)
        ],
        "heads": [contents.heads(text) for text in range(len(contents.texts))],
    }
    blocks["regard-data"] = _deflated(json.dumps(head, allow_nan=False).encode("ascii"))
    return Packed(blocks, *worst)


def _numbers(meta: dict[str, Any]) -> int:
    """How many numbers all queries and keys are."""
    layers = [layer for text in meta["texts"] for layer in text["layers"]]
    return sum(x["width"] * (len(x["heads"]) * x["rows"] + x["kv_heads"] * x["cols"]) for x in layers)


def _put_values(
    contents: Contents, meta: dict[str, Any], put: Any, blocks: dict[str, str], must: bool
) -> None:
    """Take the values along, unless they would make the file too large."""
    layers = [
        (text, layer, about)
        for text, seen in enumerate(contents.texts)
        for layer, about in zip(seen.layers, meta["texts"][text]["layers"], strict=True)
    ]
    size = sum(map(len, blocks.values())) + sum(
        _values(contents, one).numel() * 8 // 3 for _, one, _ in layers
    )
    if size > VALUES_LIMIT and not must:
        return
    for text, layer, about in layers:
        about["values_block"] = f"values-{text}-{layer.key}"
        v = _values(contents, layer)
        put(about["values_block"], [_float16("v", v) or Array("v", "f32", v.float().numpy())], noise=True)


def _values(contents: Contents, layer: Layer) -> Tensor:
    assert layer.values is not None
    return layer.values.reshape(-1, *layer.values.shape[-3:])[contents.entry].cpu()  # (G, S, E)


def _layer(m: AttentionMap, fine: bool) -> tuple[list[Array], tuple[float, float]]:
    """A map (1, H, T, S) as arrays, and how far its weights are off. `fine` keeps 24 bits in any case."""
    q, k = m.q[0].double().cpu(), m.k[0].double().cpu()  # (H, T, D), (G, S, D)
    k = k.masked_fill(~k.isfinite(), 0)  # padding may hold anything, and nobody looks at it
    mean = (
        k.mean(1, keepdim=True) if m.softcap is None and k.shape[1] else k.new_zeros(len(k), 1, k.shape[-1])
    )
    mean = mean.float().double()
    group = len(q) // len(k)
    lse = m.precise_lse()[0].cpu() - m.scale * (q * mean.repeat_interleave(group, 0)).sum(-1)  # (H, T)
    shifted = k - mean
    rest = [Array("mean", "f32", mean[:, 0].float().numpy()), Array("lse", "f32", lse.float().numpy())]
    if not fine:
        arrays = [*_stepped("q", q), *_stepped("k", shifted), *rest]
        error = _error(m, arrays)
        if error[0] <= ALLOWED:
            return arrays, error
    arrays = [_float24("q", q), _float24("k", shifted), *rest]
    error = _error(m, arrays)
    if error[0] <= ALLOWED:
        return arrays, error
    # Large scores: all of q and k, if they are not float64, and an lse that fits them.
    arrays = [
        Array("q", "f32", q.float().numpy()),
        Array("k", "f32", k.float().numpy()),
        Array("mean", "f32", torch.zeros_like(mean[:, 0]).float().numpy()),
        Array("lse", "f64", m.precise_lse()[0].cpu().numpy()),
    ]
    return arrays, _error(m, arrays)


def _error(m: AttentionMap, arrays: list[Array]) -> tuple[float, float]:
    """The largest error of a weight, relative and absolute, over evenly sampled rows of every head."""
    _, H, T, S = m.matrix
    if not T or not S:
        return 0.0, 0.0
    # As the page computes: numbers times steps are float32, everything after that is float64.
    by_name = {a.name: torch.from_numpy(a.data).float() for a in arrays if a.name != "lse"}
    q, k = (by_name[name] * by_name.get(f"{name}_step", torch.ones(())) for name in ("q", "k"))
    lse = torch.from_numpy(next(a.data for a in arrays if a.name == "lse")).double()
    small = m._with(q=q.double()[None], k=k.double()[None], lse=lse[None], sinks=None)
    rows = torch.linspace(0, T - 1, min(T, MEASURED)).round().long()
    relative = absolute = 0.0
    for some in range(0, len(rows), step := max(1, LARGE // (H * S))):
        here = rows[some : some + step]
        true = m.tile(here.to(m.device)).cpu()
        off = (small.tile(here) - true).abs_()
        absolute = max(absolute, float(off.max()))
        relative = max(relative, float(off.div_(true).masked_fill_(true < 1e-9, 0).max()))
    return relative, absolute


def _mask(m: AttentionMap) -> list[Array]:
    """Who may look at whom, as ranges of keys for each query, and what is added to the scores."""
    T = m.matrix[2]
    found = [_ranges(m, slice(first, min(first + 512, T))) for first in range(0, T, 512)]
    heads = max((len(counts) for counts, _ in found), default=1)
    counts = np.concatenate(
        [np.broadcast_to(c, (heads, c.shape[1])) for c, _ in found] or [np.zeros((1, 0))], 1
    )
    # Ranges come a stretch of queries at a time: put those of one head together.
    ranges = [[lists[min(h, len(lists) - 1)] for _, lists in found] for h in range(heads)]
    flat = np.concatenate([np.concatenate(one) for one in ranges if one] or [np.zeros((0, 2))])
    offsets = np.concatenate([[0], counts.reshape(-1).cumsum()])
    arrays = [Array("offsets", "u32", offsets.astype("<u4")), Array("ranges", "u32", flat.astype("<u4"))]
    return arrays + _bias(m) if m.mask.biased else arrays


def _ranges(m: AttentionMap, rows: slice) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """For each head that has a rule of its own: ranges a query (heads, rows), and the ranges (n, 2)."""
    allowed = m.mask.allowed(_grid(m, rows))
    allowed = allowed.expand(1, allowed.shape[1], rows.stop - rows.start, m.matrix[3])[
        0
    ].cpu()  # (heads, r, S)
    edge = allowed.new_zeros(*allowed.shape[:2], 1)
    steps = torch.cat([edge, allowed, edge], -1).to(torch.int8).diff(dim=-1)  # 1 where a range begins
    counts = (steps == 1).sum(-1).numpy()
    starts, ends = (steps == 1).nonzero(), (steps == -1).nonzero()
    pairs = torch.stack([starts[:, -1], ends[:, -1]], -1)
    return counts, [pairs[starts[:, 0] == h].numpy() for h in range(len(allowed))]


def _bias(m: AttentionMap) -> list[Array]:
    """What the mask adds: by distance if that is all it depends on, else every number."""
    _, _, T, S = m.matrix
    first = m.mask.score_bias(_grid(m, slice(0, 1)))
    assert first is not None
    heads = first.shape[1]
    if heads * T * S > DENSE_LIMIT:
        raise ValueError(
            f"mask {m.mask}: expected a bias of at most {DENSE_LIMIT:,} numbers to save in a page, "
            f"got {heads} × {T} × {S}: serve the capture instead"
        )
    added = m.mask.score_bias(_grid(m, slice(0, T)))
    assert added is not None
    dense = added.detach().expand(1, heads, T, S)[0].float().cpu().clamp(min=-1e30)  # (heads, T, S)
    relative = torch.cat([dense[:, :, 0].flip(1), dense[:, 0, 1:]], 1)  # by key − query, from 1 − T to S − 1
    index = torch.arange(S) - torch.arange(T)[:, None] + T - 1
    if bool(torch.equal(relative[:, index], dense)):
        return [Array("relative", "f32", relative.numpy())]
    return [Array("dense", "f32", dense.numpy())]


def _grid(m: AttentionMap, rows: slice) -> Grid:
    return grid(rows, slice(0, m.matrix[3]), m.matrix, m.device)


def _stepped(name: str, x: Tensor) -> list[Array]:
    """(heads, n, D) in steps of a 2,048th of each channel's spread, or larger ones if 16 bits need them."""
    if not x.numel():
        return [Array(name, "i16", x.to(torch.int16).numpy())]
    step = torch.maximum(x.std(1, keepdim=True, correction=0) / 2048, x.abs().amax(1, keepdim=True) / 32767)
    step = step.clamp(min=1e-30).float()  # (heads, 1, D)
    whole = (x / step).round().clamp(-32767, 32767).to(torch.int16)
    return [Array(name, "i16", whole.numpy()), Array(f"{name}_step", "f32", step.numpy())]


def _float16(name: str, x: Tensor) -> Array | None:
    """None if a number is too large."""
    half = x.to(torch.float16)
    return Array(name, "f16", half.numpy()) if bool(half.isfinite().all()) else None


def _float24(name: str, x: Tensor) -> Array:
    """float32 rounded to what is left when its last byte is not kept."""
    words = x.float().numpy().view(np.uint32)
    rounded = ((words.astype(np.uint64) + 0x80) & 0xFFFFFF00).astype(np.uint32)
    return Array(name, "f24", rounded.view(np.float32))


def _planes(array: Array) -> bytes:
    """First all lowest bytes, then the next: what is alike stands together."""
    dtype = {"u8": "u1", "u32": "<u4", "i16": "<i2", "f16": "<f2", "f24": "<f4", "f32": "<f4", "f64": "<f8"}[
        array.type
    ]
    raw = np.ascontiguousarray(array.data.astype(dtype, copy=False)).reshape(-1)
    planes = raw.view(np.uint8).reshape(-1, raw.itemsize).T
    return np.ascontiguousarray(planes[1:] if array.type == "f24" else planes).tobytes()


def _deflated(data: bytes, noise: bool = False) -> str:
    """zlib, then base64. In noise no repeats are looked for: there are none, and it is ten times as fast."""
    strategy = zlib.Z_HUFFMAN_ONLY if noise else zlib.Z_DEFAULT_STRATEGY
    packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, 9, strategy)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")
