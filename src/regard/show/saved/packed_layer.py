"""A layer as arrays of a saved file: its queries, keys, lse and mask, and how far that changes its weights.

Arrays are text in an HTML file: byte planes (all first bytes, then all second ones), deflated, in base64,
which `packed.js` reads.

q and k are rounded to a step for each head and channel, so that a page can be sent: their scores get a known
rounding noise, and the lse is that of the rounded q and k, so that weights still sum to 1. Keys are stored as
differences from their mean, to which the softmax is invariant. A small file, an exact one, and layers whose
weights would change by more than 0.03, store q and k in 24 bits. A layer whose scores are too large for that
keeps float32, with its lse in float64. Linear layers keep q, k, decays and strengths.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.masks.base import Grid, grid
from regard.maps import AttentionMap, LinearAttentionMap, attention_map, linear_attention_map


class Array(NamedTuple):
    """A named array of a block, and the type in which it is stored."""

    name: str
    type: str  # "u8", "u32", "i16", "f16", "f24", "f32" or "f64"
    """Most numbers of "i16" are small: 128 is added, so that the high byte of those from −128 to 127 is 0."""
    data: NDArray[Any]


def byte_planes(array: Array) -> bytes:
    """Return all lowest bytes, then all second ones, and so on: similar bytes compress better together."""
    dtype = {"u8": "u1", "u32": "<u4", "i16": "<i2", "f16": "<f2", "f24": "<f4", "f32": "<f4", "f64": "<f8"}[
        array.type
    ]
    raw = np.ascontiguousarray(array.data.astype(dtype, copy=False)).reshape(-1)
    if array.type == "i16":
        raw = raw + np.int16(128)
    planes = raw.view(np.uint8).reshape(-1, raw.itemsize).T
    return np.ascontiguousarray(planes[1:] if array.type == "f24" else planes).tobytes()


def deflate(data: bytes, noise: bool = False) -> str:
    """Compress with zlib and encode in base64.

    `noise` searches for runs of one byte only: random numbers repeat nothing else, and it is ten times as
    fast.
    """
    strategy = zlib.Z_RLE if noise else zlib.Z_DEFAULT_STRATEGY
    # 7: zlib then begins a new Huffman code after 8,192 numbers, which suits heads of different sizes.
    packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, 7, strategy)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


DENSE_LIMIT = 1 << 26  # numbers of a bias that depends on more than the distance


def pack_mask(m: AttentionMap | LinearAttentionMap) -> list[Array]:
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


TOLERANCE = 0.01  # maximum relative error of a weight that is packed in 24 bits
ROUNDED_TOLERANCE = 0.03  # maximum absolute error of a weight whose q and k are rounded
SCORE_NOISES = (0.02, 0.005)  # standard deviations of what rounding q and k adds to a score, to be tried
CHUNK = 1 << 22  # weights computed at a time
SAMPLED_ROWS = 128  # of a layer, on which the error is measured


def pack_layer(m: AttentionMap, fine: bool) -> tuple[list[Array], tuple[float, float]]:
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
    mean = torch.from_numpy(float24("mean", mean).data).double()
    for noise in () if fine else SCORE_NOISES:
        arrays = _round_layer(m, q, k, mean, noise)
        error = _measure_error(m, _unpack(m, arrays))
        if error[1] <= ROUNDED_TOLERANCE:
            return arrays, error
    shifted = k - mean
    lse = m.precise_lse()[0].cpu() - _shift_scores(m, q, mean)  # (H, T)
    rest = [Array("mean", "f32", mean[:, 0].float().numpy()), Array("lse", "f32", lse.float().numpy())]
    arrays = [float24("q", q), float24("k", shifted), *rest]
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
        return [*quantise("q", q, q[:, :1]), *quantise("k", k, k[:, :1]), *_mean_and_lse(m, q, k, mean)]
    group = len(q) // len(k)
    shifted = k - mean
    size_q = q.pow(2).reshape(len(k), -1, q.shape[-1]).mean(1, keepdim=True).sqrt()  # (G, 1, D)
    size_k = shifted.pow(2).mean(1, keepdim=True).sqrt()  # (G, 1, D)
    # A step's error is uniform, with a variance of a twelfth; both sides of D channels add theirs.
    step = noise / m.scale * (12 / (2 * q.shape[-1])) ** 0.5
    q_arrays = quantise("q", q, (step / size_k).repeat_interleave(group, 0))
    k_arrays = quantise("k", shifted, step / size_q)
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
    return [float24("mean", mean[:, 0]), float24("lse", own.precise_lse()[0] - _shift_scores(m, q, mean))]


def _shift_scores(m: AttentionMap, q: Tensor, mean: Tensor) -> Tensor:
    """Return what the keys' mean (G, 1, D) adds to all scores of each query, (H, T)."""
    shift: Tensor = m.scale * (q * mean.repeat_interleave(len(q) // len(mean), 0)).sum(-1)
    return shift


def pack_linear_layer(m: LinearAttentionMap) -> tuple[list[Array], tuple[float, float]]:
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
        float24("q", q),
        float24("k", k),
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


def quantise(name: str, x: Tensor, step: Tensor) -> list[Array]:
    """Round (heads, n, D) to steps (heads, 1, D), or to larger ones where 16 bits need them."""
    # 1e-30: a channel of zeros has step 0, and 0 / 0 is NaN. Infinite steps are those of channels that do
    # not matter, since the other side is 0 in them.
    largest = x.abs().amax(1, keepdim=True) if x.numel() else x[:, :1]
    steps = float24(f"{name}_step", torch.maximum(step, largest / 32000).clamp(min=1e-30, max=1e30))
    return [Array(name, "i16", (x / torch.from_numpy(steps.data)).round().to(torch.int16).numpy()), steps]


def float16(name: str, x: Tensor) -> Array | None:
    """Return an array in float16, or None if a number is too large for it."""
    half = x.to(torch.float16)
    return Array(name, "f16", half.numpy()) if bool(half.isfinite().all()) else None


def float24(name: str, x: Tensor) -> Array:
    """Return an array in float32, rounded so that the last byte of each number can be dropped."""
    words = x.float().numpy().view(np.uint32)
    # uint64: adding half of the last byte may carry past 32 bits.
    rounded = ((words.astype(np.uint64) + 0x80) & 0xFFFFFF00).astype(np.uint32)
    return Array(name, "f24", rounded.view(np.float32))
