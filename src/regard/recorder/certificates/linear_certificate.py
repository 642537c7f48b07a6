"""The certificate of a linear layer: evidence that its map is what the model computed.

A layer is certified if, on the rows that were compared, the map's entries times the values reproduce the
output of the model's own recurrence to within rounding. Where the model goes on from a state, or hands one
on, that state counts as the part of the sum that lies before the call, and is compared along a few random
directions. Everything is computed in float64. This file knows maps and tensors; it does not know models.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.maps import LinearAttentionMap, linear_attention_map
from regard.maps.recurrence import ChunkedRecurrence
from regard.recorder.certificates.certificate import Evidence, sampled_rows
from regard.recorder.certificates.output_comparison import (
    DISTINCT,
    ROUNDING_UNITS,
    SIMILAR_VALUES,
    at_rows,
    smallest_error,
)

# Transformers' fallback and flash-linear-attention add up the decays of 64 tokens at a time.
CHUNK = 64
LARGEST_DECAY_ERROR = 2.0**-9  # beyond this a layer that forgets so fast is not certified by its rounding
ENTRY_UNITS = 8  # units in the last place by which an entry may be off, relative to its two vectors
CLOSED_GATE = "its gate is 0 throughout a head, so that its output does not determine its weights"
PROBES = 4  # random directions along which a state is compared
HEAD_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 30}  # of a tensor (heads, T, width) that are compared at a time


def examine_linear(
    m: LinearAttentionMap,
    v: Tensor,
    output: Tensor,
    *,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    gate: Tensor | None = None,
    convolution: int | None = None,
    problem: str | None = None,
    rows: Tensor | None = None,
) -> Evidence:
    """Compare a map (B, H, T, T) and its values v (B, H, T, E) with the model's output (B, H, T, E).

    - `initial_state`, `final_state` (B, H, D, E): the state that the call began with, and that it returned.
    - `gate` (B, H, T, E): what the model's kernel has multiplied its output by.
    - `convolution`: the number of tokens of a short convolution before the recurrence, which the map does not
      show.
    - `problem`: a reason why the layer cannot be certified, if one is known.
    - `rows`: the rows to compare, if `output` and `gate` have only these; by default a sample.
    """
    B, H, T, _ = m.matrix
    if rows is None:
        rows = sampled_rows(T)
        output, gate = at_rows(output, rows), None if gate is None else at_rows(gate, rows)
    worst, tolerance, similar = 0.0, 1.0, False
    step = max(1, HEAD_NUMBERS["cuda" if m.device.type == "cuda" else "cpu"] // max(1, B * T * m.k.shape[-1]))
    for first in range(0, H if B * T else 0, step):
        heads = slice(first, min(first + step, H))
        ratio, allowed = _compare(
            m.select(slice(None), heads),
            v[:, heads],
            output[:, heads],
            rows,
            *(None if x is None else x[:, heads] for x in (initial_state, final_state, gate)),
        )
        at = int(ratio.nan_to_num(torch.inf, torch.inf).argmax())
        # `not … <=`, since NaN is worse than any number.
        if not math.isnan(worst) and not ratio[at] <= worst:
            worst, tolerance = float(ratio[at]), float(allowed[at])
        similar |= T > 1 and _are_similar(v[:, heads], _rounding(m, output))
    if gate is not None and T > 1 and problem is None and bool((gate == 0).flatten(2).all(-1).any()):
        problem = CLOSED_GATE
    kind = m.kind if convolution is None else f"{m.kind}, after a convolution over {convolution} tokens"
    return Evidence(
        difference=worst * tolerance,
        tolerance=tolerance,
        row_sums=0.0,
        rows=len(rows),
        total_rows=T,
        mask=str(m.mask),
        scale=m.scale,
        problem=problem or (SIMILAR_VALUES if similar else None),
        recurrence=kind,
    )


def _precision(m: LinearAttentionMap) -> torch.dtype:
    """The dtype in which a recurrence was computed: most kernels take float32 also for inputs in float64."""
    return torch.float64 if m.q.dtype == m.decay.dtype == torch.float64 else torch.float32


def _rounding(m: LinearAttentionMap, x: Tensor) -> float:
    """The error relative to its parts that rounding may add to a sum that was stored as x is."""
    stored = max(torch.finfo(x.dtype).eps, torch.finfo(m.q.dtype).eps)
    return 2.0 * stored + ROUNDING_UNITS[_precision(m)] * torch.finfo(_precision(m)).eps


def _entry_rounding(m: LinearAttentionMap) -> float:
    """The error of an entry relative to the lengths of its vectors.

    For a single token some implementations multiply key, β and value in half precision.
    """
    eps = ENTRY_UNITS * torch.finfo(_precision(m)).eps
    return max(eps, 2.0 * torch.finfo(m.q.dtype).eps) if m.matrix[2] == 1 else eps


def _decay_rounding(m: LinearAttentionMap) -> Tensor:
    """The relative error that a kernel's cumulative decay, of 64 tokens, may add in each head: (B, H, 1, 1).

    A decay from one token to another is the exponential of a difference of such sums.
    """
    decay = m.decay.abs() if m.decay.ndim == 3 else m.decay.abs().amax(-1)  # (B, H, S)
    padded = torch.nn.functional.pad(decay.double(), (0, -decay.shape[-1] % CHUNK))
    steepest = padded.reshape(*padded.shape[:-1], -1, CHUNK).sum(-1).amax(-1)  # (B, H)
    error = 2.0 * torch.finfo(_precision(m)).eps * steepest
    return error.clamp(max=LARGEST_DECAY_ERROR)[..., None, None]


def _squared(m: LinearAttentionMap) -> LinearAttentionMap:
    """A map of the squares of |q_t| |k_s| β_s e^{decay}: no rounding of an entry exceeds this by much.

    An entry is a dot product, and rounds as the lengths of its two vectors do, however small it is itself.
    Such errors are independent, so that their squares add up.
    """
    inputs, everything = m.inputs(torch.float64), slice(0, m.matrix[3])
    q, (k, norms) = inputs.queries(everything), inputs.keys(everything)
    decay = m.decay if m.decay.ndim == 3 else m.decay.amax(-1)
    return linear_attention_map(
        q.square().sum(-1, keepdim=True),
        (k * norms).square().sum(-1, keepdim=True),
        decay=2.0 * decay.double(),
        beta=m.beta.double().square(),
    )


def _compare(
    m: LinearAttentionMap,
    v: Tensor,
    output: Tensor,
    rows: Tensor,
    initial_state: Tensor | None,
    final_state: Tensor | None,
    gate: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The error of each compared number in units of its tolerance, and that tolerance, (numbers,) each."""
    recurrence, squares = (ChunkedRecurrence(x.inputs(torch.float64), m.matrix[2]) for x in (m, _squared(m)))
    at = rows.to(m.device)
    factor = None if gate is None else gate.double()
    own = m.diagonal()[:, :, at, None].double().abs() * v[:, :, at].double().abs()  # nothing decays there
    lengths = m.inputs(torch.float64).queries(at).square().sum(-1, keepdim=True)
    compared = [(recurrence.back(rows), squares.back(rows), lengths, output, factor, own)]
    if final_state is not None:
        # The same directions in every run, on any device.
        generator = torch.Generator().manual_seed(0)
        probes = torch.randn(
            PROBES, m.k.shape[-1], generator=generator, dtype=torch.float64, device="cpu"
        ).to(m.device)
        u = probes.expand(*m.matrix[:2], -1, -1)
        read = (probes @ final_state.double()).to(final_state.dtype)  # (B, H, PROBES, E)
        lengths = u.square().sum(-1, keepdim=True)
        none = torch.zeros_like(read, dtype=torch.float64)
        square_blocks = squares.back_from_end(lengths)
        compared.append((recurrence.back_from_end(u), square_blocks, lengths, read, None, none))
    ratios, tolerances = [], []
    for blocks, square_blocks, lengths, expected, factor, own in compared:
        total, size, variance = torch.zeros(3, *expected.shape, dtype=torch.float64, device=m.device)
        for block in blocks:
            values = v[:, :, block.keys].double()
            total[:, :, block.rows] += block.entries @ values
            size[:, :, block.rows] += block.entries.abs() @ values.abs()
        for block in square_blocks:
            variance[:, :, block.rows] += block.entries @ v[:, :, block.keys].double().square()
        if initial_state is not None:
            state = initial_state.double()
            total += recurrence.left @ state
            size += recurrence.left.abs() @ state.abs()
        tolerance = size * _rounding(m, expected) + _entry_rounding(m) * variance.sqrt()
        tolerance += (size - own).clamp(min=0.0) * _decay_rounding(m)
        tolerance += 4.0 * smallest_error(m.q.dtype) * lengths.sqrt()
        if factor is not None:
            total, tolerance = total * factor, tolerance * factor.abs()
        tolerance = tolerance + smallest_error(expected.dtype)
        ratios.append(((total - expected.double()).abs() / tolerance).flatten())
        tolerances.append(tolerance.flatten())
    return torch.cat(ratios), torch.cat(tolerances)


def _are_similar(v: Tensor, rounding: float) -> bool:
    """Whether the values (B, H, T, E) of some head are too similar to determine the weights.

    They are if fewer than a quarter of them differ from the median, which a few large values do not move.
    """
    median = v.median(2, keepdim=True).values
    room = DISTINCT * rounding * torch.maximum(v.abs(), median.abs())
    differs = ~((v - median).abs() <= room).all(-1)  # (B, H, T); NaN counts
    return bool((4 * differs.sum(-1) < v.shape[2]).any())
