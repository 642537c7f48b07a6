"""Joins the shards of a capture: `JoinedLayer` is a layer of which several ranks have captured a part each.

Only the descriptions of shards are read at first; the tensors of a layer are put together when it is used.
Key/value heads that several ranks have are kept once. Whether the shards fit together is checked, since
anyone may have written them: a ValueError says what does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.head_join import join_heads
from regard.maps import AttentionMap
from regard.recorder.capture_result import Capture
from regard.recorder.certificates.certificate import Evidence, join_shard_evidence
from regard.recorder.layer import VALUES, Layer, LayerData, LayerMap, shard_evidence
from regard.recorder.placement import Runs, kv_slots
from regard.recorder.summary import LayerSummary
from regard.support.files import CaptureFileError


def join_captures(shards: Sequence[Capture]) -> Capture:
    """Return the capture whose shards these are, one for each rank; a ValueError if they do not fit."""
    filled = [(rank, shard) for rank, shard in enumerate(shards) if shard.layers]
    if not filled:
        raise ValueError("layers: expected at least one on some rank, got none")
    first_rank, first = filled[0]
    for rank, shard in filled[1:]:
        for name in ("model", "ids", "target_ids", "attention_mask", "boundary", "edits"):
            if not _equal(getattr(first, name), getattr(shard, name)):
                raise ValueError(
                    f"{name}: expected the same on all ranks, but ranks {first_rank} and {rank} differ"
                )
    parts: dict[int | str, list[Layer]] = {}
    evidence: dict[int | str, list[Evidence]] = {}
    for shard in shards:
        for layer, layer_evidence in zip(shard.layers, shard.certificate, strict=True):
            parts.setdefault(layer.key, []).append(layer)
            evidence.setdefault(layer.key, []).append(layer_evidence)
    joined = dataclasses.replace(
        first,
        layers=[_join_layer(layers, evidence[key]) for key, layers in parts.items()],
        missing={name: kind for shard in shards for name, kind in shard.missing.items()},
        other_mixers={name: kind for shard in shards for name, kind in shard.other_mixers.items()},
        is_whole=all(shard.is_whole for shard in shards),
        shard=None,
        elsewhere=(),
        fingerprint=None,
    )
    for name in ("tokens", "target_tokens", "predictions", "pictures"):
        known = (x for shard in shards if (x := getattr(shard, name)) is not None)
        setattr(joined, name, next(known, None))
    joined.seal()
    return joined


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _join_layer(parts: list[Layer], evidence: list[Evidence]) -> Layer:
    """Return the layer whose parts these are: a part that is the whole layer, or a `JoinedLayer`."""
    whole = [part for part in parts if part.placement is None]
    if not whole:
        return JoinedLayer(parts, join_shard_evidence(list(map(shard_evidence, parts, evidence))))
    if len(whole) < len(parts) or any(part.heads != whole[0].heads for part in whole):
        raise ValueError(f"layer {parts[0].key}: expected parts of it or the whole layer, got both")
    evidence = sorted(evidence, key=lambda x: x.certified)  # the same layer on several ranks: the worst
    whole[0].evidence = evidence[0]
    return whole[0]


Piece = tuple[Tensor, list[int], Runs | None]
"""A tensor (B, heads, positions, …) of a part, and where it goes in that of the layer: None is everywhere."""


def _put_together(pieces: Sequence[Piece], shape: Sequence[int]) -> Tensor:
    """Return the tensor (B, H, T, …) of this shape, up to its last axes, whose pieces these are."""
    first, *_ = pieces[0]
    whole = first.new_empty(*shape, *first.shape[3:])
    for tensor, heads, positions in pieces:
        runs = ((0, shape[2]),) if positions is None else positions
        rows = torch.cat([torch.arange(*run, device="cpu") for run in runs])
        expected = (shape[0], len(heads), len(rows), *first.shape[3:])
        if tensor.shape != expected or tensor.dtype != first.dtype:
            raise ValueError(f"expected {expected} {first.dtype}, got {tuple(tensor.shape)} {tensor.dtype}")
        if positions is None:  # a copy of whole heads, which takes less time than one of numbered rows
            whole[:, heads] = tensor
        else:
            whole[:, torch.tensor(heads, device="cpu")[:, None], rows] = tensor
    return whole


class JoinedLayer(Layer):
    """A layer whose heads or rows several ranks have captured.

    `parts` are layers with a placement. Their descriptions must cover the layer, every head with all of its
    rows; a ValueError says what is missing.
    """

    def __init__(self, parts: Sequence[Layer], evidence: Evidence) -> None:
        first = parts[0]
        self.parts = [(part, part.placement) for part in parts if part.placement is not None]
        self._check_same("name", [part.name for part in parts])
        self._check_same("total_heads", [placement.total_heads for _, placement in self.parts])
        self._check_same("batch", [part.shape[0] for part in parts])
        heads = sorted({head for part in parts for head in part.heads})
        super().__init__(first.number, first.name, first.stack, None, evidence, heads)

        # Which key/value head each head reads, and which positions of each some rank has.
        self._kv_head_of: dict[int, int] = {}
        rows: dict[int, set[tuple[int, int]]] = {}
        keys: dict[int, set[tuple[int, int]]] = {}
        for part, placement in self.parts:
            _, H, T, S = part.shape
            group = H // max(len(placement.kv_heads), 1)
            for i, head in enumerate(part.heads):
                kv_head = placement.kv_heads[i // group] if placement.kv_heads else -1
                self._check_same("kv_heads", [self._kv_head_of.setdefault(head, kv_head), kv_head])
                rows.setdefault(head, set()).update(placement.rows or ((0, T),))
            for kv_head in placement.kv_heads:
                keys.setdefault(kv_head, set()).update(placement.keys or ((0, S),))
        self._slots = kv_slots([self._kv_head_of[head] for head in heads])
        self._shape = (first.shape[0], len(heads), self._extent("rows", rows), self._extent("keys", keys))

    def _check_same(self, name: str, values: Sequence[object]) -> None:
        if any(value != values[0] for value in values):
            key = self.parts[0][0].key
            raise ValueError(
                f"layer {key}: expected the same {name} on all ranks, got {values[0]} and others"
            )

    def _extent(self, name: str, runs: dict[int, set[tuple[int, int]]]) -> int:
        """Return how many rows or keys the layer has; a ValueError if some head has not all of them."""
        size = max((stop for head_runs in runs.values() for _, stop in head_runs), default=0)
        for head, head_runs in runs.items():
            end = 0
            for first, stop in sorted(head_runs):
                if first != end:
                    break
                end = stop
            if end != size:
                raise ValueError(
                    f"layer {self.key}: expected {name} 0 to {size} of head {head}, got {sorted(head_runs)}"
                )
        return size

    def head_map(self, head: int) -> LayerMap:
        """Return the map (B, T, S) of one head; if one rank has all of it, from that rank's file alone."""
        for part, placement in self.parts:
            if head in part.heads and placement.is_map:
                return part.head_map(head)
        return super().head_map(head)

    def data(self) -> LayerData:
        """Read the files of all parts and put their tensors together."""
        try:
            return self._join()
        # It says already which file is damaged; it is a ValueError, too.
        except CaptureFileError:
            raise
        except (ValueError, IndexError, RuntimeError) as error:  # shapes and dtypes that do not fit
            raise CaptureFileError(f"layer {self.key} cannot be joined: {error}") from None

    def _join(self) -> LayerData:
        data = [part.data() for part, _ in self.parts]
        maps = [x.map for x in data if isinstance(x.map, AttentionMap)]
        if len(maps) not in (0, len(data)) or len({x.values is None for x in data}) > 1:
            raise ValueError("expected the same kinds of tensors of all ranks, got more of some")
        if not maps and any(x.summary is None for x in data):
            raise ValueError("its map is of linear attention, of which each rank must have the whole layer")
        if not maps and not all(placement.is_map for _, placement in self.parts):
            raise ValueError("expected statistics of all rows on every rank, got some of them")
        for name in ("scale", "softcap"):
            self._check_same(name, [getattr(m, name) for m in maps])
        tensors = [x.tensors() for x in data]
        if len({"sinks" in x for x in tensors}) > 1:
            raise ValueError("expected sink logits on all ranks or on none")
        joined: dict[str, Any] = {
            name: self._join_tensors(name, [x[name] for x in tensors]) for name in tensors[0]
        }
        values = joined.pop(VALUES, None)
        if not maps:
            return LayerData(values=values, summary=LayerSummary(**joined))
        mask, first = self._join_masks([m.mask for m in maps]), maps[0]
        m = AttentionMap(**joined, mask=mask, scale=first.scale, softcap=first.softcap)
        m.mask.check(m.matrix)
        return LayerData(m, values)

    def _join_tensors(self, name: str, tensors: Sequence[Tensor]) -> Tensor:
        """Join one tensor of all parts, with each key/value head as often as the layer needs it."""
        if name == "sinks":
            return self._join_tensors("", [x[None, :, None] for x in tensors]).flatten()
        pieces: list[Piece] = []
        for x, (part, placement) in zip(tensors, self.parts, strict=True):
            if name not in ("k", VALUES):
                heads = [self.heads.index(head) for head in part.heads]
                pieces.append((x, heads, placement.rows if name in ("q", "lse") else None))
                continue
            if x.shape[1] != len(placement.kv_heads):
                raise ValueError(f"expected {len(placement.kv_heads)} key/value heads, got {x.shape[1]}")
            slots = [i for i, head in enumerate(self._slots) if head in placement.kv_heads]
            local = [placement.kv_heads.index(self._slots[i]) for i in slots]
            pieces.append((x[:, local], slots, placement.keys))
        count = len(self._slots if name in ("k", VALUES) else self.heads)
        lengths = {"q": self.shape[2], "lse": self.shape[2], "k": self.shape[3], VALUES: self.shape[3]}
        return _put_together(pieces, (len(tensors[0]), count, lengths.get(name, tensors[0].shape[2])))

    def _join_masks(self, masks: Sequence[Mask]) -> Mask:
        listed = [head for part, _ in self.parts for head in part.heads]
        order = [listed.index(head) for head in self.heads]
        mask = join_heads(masks, [len(part.heads) for part, _ in self.parts], order)
        if mask is None:
            names = ", ".join(dict.fromkeys(map(str, masks)))
            raise ValueError(f"expected the same mask on all ranks, got different ones ({names})")
        return mask
