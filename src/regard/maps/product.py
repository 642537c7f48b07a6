"""`m @ v`: the weights of a map times values, by fused attention. The matrix is never built."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.attend import attend
from regard.maps.data import MapData
from regard.maps.index import select_kv_heads
from regard.maps.tile_passes import precision
from regard.maps.tile_passes.sweep import finite_lse


def multiply(m: MapData, v: Tensor) -> Tensor:
    """The weights times values (B, G or H, S, E), (B, H, T, E) in the dtype of v."""
    B, H, T, _ = m.matrix
    if v.shape[1] != m.k.shape[1]:  # values for each query head: each reads its own copy of the keys
        # `precise` stays: repeating keys changes neither the scores nor which heads are large.
        m = m._with(k=m.k.repeat_interleave(H // m.k.shape[1], 1), precise=m.precise)
    output = v.new_empty(B, H, T, v.shape[-1])
    for group in precision.head_groups(m):
        values = select_kv_heads(v[group.batch], group.heads, H)
        output[group.batch, group.heads] = _multiply(group.data, values).to(v.dtype)
    return output


def _multiply(m: MapData, v: Tensor) -> Tensor:
    """The weights times values (B, G, S, E), in a dtype that loses nothing of q, k or v."""
    wide = m.lse.dtype if m.lse.dtype == torch.float64 else m.q.dtype
    dtype = torch.promote_types(wide, v.dtype)
    output, lse = attend(
        m.q.to(dtype),
        m.k.to(dtype),
        v.to(dtype),
        mask=m.mask,
        scale=m.scale,
        softcap=m.softcap,
        sinks=m.sinks,
        return_lse=True,
    )
    # Rescale to the map's own lse, from which all its other numbers are computed: a wrong one has to show.
    return output * (lse.detach() - finite_lse(m.lse)).exp_().unsqueeze(-1)
