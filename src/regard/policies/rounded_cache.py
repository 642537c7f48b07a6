"""Rounded caches: keys and values in a few bits, and what that changes of the weights and the outputs.

Rounding is uniform between the smallest and the greatest number of a group, as in KIVI (Liu et al. 2024,
arXiv:2402.02750), which rounds keys by channel and values by token. Every key is rounded, also the latest,
which KIVI keeps as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.maps import AttentionMap, attention_map
from regard.policies.joined_layers import CachedLayer
from regard.policies.measurement import attend_whole, relative_change, row_blocks, stack_layers
from regard.support.cell_output import PrintedOutput

Direction = Literal["channel", "token"]
"""What the numbers of a group share: a channel, over neighbouring tokens, or a token, over its channels."""
MOST_BITS = 16


class MapRounding(NamedTuple):
    """What rounding changes in every row of a map, (B, H, T) each, float64."""

    variation: Tensor
    """The total variation between the weights before and after: half the sum of their differences."""
    error: Tensor | None
    """The norm of the output's change over the norm of the output; None without values."""


def round_cache(x: Tensor, bits: int, by: Direction, group: int = 32) -> Tensor:
    """Round keys or values x (B, G, S, D) to 2**bits levels in every group, and return them in their dtype.

    A group are `group` neighbouring tokens of one channel, if `by` is "channel", or `group` channels of one
    token; its levels go from its smallest number to its greatest.
    """
    bits, group = check_whole_number("bits", bits, 1, MOST_BITS), check_whole_number("group", group)
    if by not in ("channel", "token"):
        raise ValueError(f"by: expected 'channel' or 'token', got {by!r}")
    wide = x.double().mT if by == "channel" else x.double()  # groups along the last axis
    n = wide.shape[-1]
    group = min(group, max(n, 1))
    # The last group may be shorter: it is filled up with its last number, which changes no extreme.
    filled = torch.cat([wide, wide[..., -1:].expand(*wide.shape[:-1], -n % group)], -1)
    groups = filled.reshape(*wide.shape[:-1], -1, group)
    least = groups.amin(-1, keepdim=True)
    step = (groups.amax(-1, keepdim=True) - least) / (2**bits - 1)
    levels = ((groups - least) / step.where(step > 0, 1.0)).round()
    rounded: Tensor = (least + levels * step).flatten(-2)[..., :n]
    return (rounded.mT if by == "channel" else rounded).to(x.dtype)


def measure_rounding(
    m: AttentionMap,
    v: Tensor | None,
    bits: int,
    *,
    keys: Direction | None = "channel",
    values: Direction | None = "token",
    group: int = 32,
) -> MapRounding:
    """Measure what rounded keys and values change of a map with values v (B, G, S, E), which may be None.

    - `bits`: the number of bits of each number.
    - `keys`, `values`: by what they are rounded, "channel" or "token"; None leaves them as they are.
    - `group`: how many numbers share a scale.
    """
    k = m.k if keys is None else round_cache(m.k, bits, keys, group)
    rounded = attention_map(m.q, k, mask=m.mask, scale=m.scale, softcap=m.softcap, sinks=m.sinks)
    variation = torch.cat([_total_variation(m, rounded, rows) for rows in row_blocks(m)], -1)
    if v is None:
        return MapRounding(variation, None)
    other = attend_whole(rounded, v if values is None else round_cache(v, bits, values, group))
    return MapRounding(variation, relative_change(other.output, attend_whole(m, v).output))


def _total_variation(m: AttentionMap, rounded: AttentionMap, rows: slice) -> Tensor:
    """Half the sum of the differences of the weights of some rows, what sink logits take included."""
    change = rounded.tile(rows).double() - m.tile(rows)
    total = change.abs().sum(-1)
    return (total if m.sinks is None else total + change.sum(-1).abs()) / 2


@dataclass(frozen=True)
class Rounded(PrintedOutput):
    """What a rounded cache changes in every layer, head and query. Prints as two sentences."""

    bits: int
    keys: Direction | None
    values: Direction | None
    places: tuple[tuple[int | str, tuple[int, ...]], ...]
    """The key of every layer, with the numbers of its heads."""
    layers: tuple[MapRounding, ...]
    """What changes in each layer: `.variation` and `.error`, (B, H, T) each."""

    @property
    def variation(self) -> Tensor:
        """The total variation of every row, (layers, B, H, T): 0 is no change, 1 is entirely other keys."""
        return stack_layers(self.layers, "variation")

    @property
    def error(self) -> Tensor:
        """The relative error of every head's output, (layers, B, H, T)."""
        return stack_layers(self.layers, "error")

    def __repr__(self) -> str:
        heads = sum(len(numbers) for _, numbers in self.places)
        return f"Rounded({self.bits} bits, keys by {self.keys}, values by {self.values}, {heads} heads)"

    def __str__(self) -> str:
        parts = [f"{x} by {by}" for x, by in (("keys", self.keys), ("values", self.values)) if by is not None]
        heads = {
            f"{key}.{head}": float(layer.variation[:, n].mean())
            for (key, numbers), layer in zip(self.places, self.layers, strict=True)
            for n, head in enumerate(numbers)
        }
        most = max(heads, key=heads.__getitem__)
        errors = [float(x.error.nanmean()) for x in self.layers if x.error is not None]
        output = f", and the outputs change by {math.fsum(errors) / len(errors):.1%}" if errors else ""
        mean = math.fsum(heads.values()) / len(heads)
        return (
            f"{self.bits} bits ({' and '.join(parts)}): "
            f"{mean:.2%} of the attention goes to other keys{output}. "
            f"Most in head {most}: {heads[most]:.2%}."
        )


def round_layers(
    layers: Iterable[CachedLayer],
    bits: int,
    keys: Direction | None = "channel",
    values: Direction | None = "token",
    group: int = 32,
) -> Rounded:
    """Measure a rounded cache on some layers; the arguments are those of `measure_rounding`."""
    if keys is None and values is None:
        raise ValueError("keys: expected 'channel' or 'token' for the keys, the values or both, got neither")
    places, found = [], []
    for layer in layers:
        places.append((layer.key, layer.heads))
        found.append(measure_rounding(layer.map, layer.values, bits, keys=keys, values=values, group=group))
    if not found:
        raise ValueError("bits: expected a layer of softmax attention, got none")
    return Rounded(bits, keys, values, tuple(places), tuple(found))
