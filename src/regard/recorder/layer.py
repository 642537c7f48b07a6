"""`Layer`: one attention module of a model as it ran, with its map and the evidence for it.

`LayerId` says where the module is in its model, `LayerData` holds the tensors, and `LayerSettings` the few
numbers that describe a layer without its tensors. Nothing here knows about models or files; a layer that is
stored in a file is a subclass in `storage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import and_
from typing import Any, NamedTuple

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder.certificates.certificate import NO_TOKENS, Evidence, ShardEvidence
from regard.recorder.map_preparation import write_count
from regard.recorder.placement import Placement
from regard.recorder.summary import LayerSummary, summarise
from regard.support.table import Table

LayerMap = AttentionMap | LinearAttentionMap
"""The map of a layer: of softmax attention, or of a linear-attention or state-space layer."""
VALUES = "values"
"""The name of the values beside the tensors of a map."""
WRITTEN = "its queries, keys or decays were written to after its attention had run"


class LayerId(NamedTuple):
    """The position of an attention module in its model."""

    number: int
    """Its number in its stack, counted from 0."""
    name: str
    """The module's name in the model: `transformer.h.0.attn`."""
    stack: str = ""
    """The empty string in a model with one stack; otherwise "encoder", "decoder", "cross" or another name."""

    @property
    def key(self) -> int | str:
        """The key of its layer in a capture: 3, or "decoder.3" where the model has several stacks."""
        return f"{self.stack}.{self.number}" if self.stack else self.number

    @property
    def names(self) -> tuple[str, str, str]:
        """By what `layers=` may name its layer: number, key or module, as text."""
        return str(self.number), str(self.key), self.name


class LayerData(NamedTuple):
    """The tensors that a capture stores for a layer: its map, or with store="statistics" only a summary."""

    map: LayerMap | None = None
    values: Tensor | None = None  # (B, G, S, E); a linear layer has values for every head
    summary: LayerSummary | None = None

    @property
    def matrix(self) -> tuple[int, int, int, int]:
        """The shape (B, H, T, S) of the layer's attention matrix."""
        if self.map is not None:
            return self.map.matrix
        if self.summary is None:
            raise ValueError("layer: expected a map or a summary of one, got neither")
        B, H, T = self.summary.entropy.shape
        return B, H, T, self.summary.received.shape[-1]

    @property
    def nbytes(self) -> int:
        """The number of bytes of all its tensors."""
        return sum(x.nbytes for x in self if x is not None)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the map or of the summary by their fields, and the values."""
        own = self.map.tensors() if self.map is not None else {}
        own |= self.summary._asdict() if self.summary is not None else {}
        return own if self.values is None else own | {VALUES: self.values}


class LayerSettings(NamedTuple):
    """A description of a layer that holds no tensors, so that it can be cached for a layer in a file."""

    mask: str
    """Which keys queries see, such as "causal"; "full" if all of them."""
    bias: str
    """The part of the mask that hides nothing and adds numbers to the scores; "" if it has none."""
    window: int | None
    scale: float
    softcap: float | None
    sinks: bool
    """Whether the layer has sink logits."""
    kv_heads: int
    width: int
    """The width D of its queries and keys."""
    value_width: int | None
    """The width E of its values; None if they were not stored."""
    recurrence: str = ""
    """The recurrence of a linear layer in words; "" for softmax attention."""

    @staticmethod
    def of(data: LayerData) -> LayerSettings:
        """Describe a layer whose map is stored."""
        m, values = data.map, data.values
        if m is None:
            raise ValueError("layer: expected a map, got statistics only")
        conjuncts = m.mask.conjuncts()
        return LayerSettings(
            mask=_join([mask for mask in conjuncts if mask.hides]) or "full",
            bias=_join([mask for mask in conjuncts if not mask.hides]),
            window=m.mask.window_size(),
            scale=m.scale,
            softcap=m.softcap,
            sinks=m.sinks is not None,
            kv_heads=m.k.shape[1],
            width=m.k.shape[-1],
            value_width=None if values is None else values.shape[-1],
            recurrence=m.kind if isinstance(m, LinearAttentionMap) else "",
        )


def _join(masks: Sequence[Mask]) -> str:
    """Return masks joined by `&` in words; "" for none."""
    return str(reduce(and_, masks)) if masks else ""


class Layer:
    """One attention module of a model as it ran.

    - `number`, `name`, `stack`: where it is in the model, as in `LayerId`.
    - `attention_map`: its map (B, H, T, S), or None where only a summary is stored.
    - `evidence`: how the map compares with the model's own output.
    - `heads`: for each head of the map, its number in the model.
    - `values`: its values (B, G, S, E), if they are stored; `summary`: its statistics, if they are stored.
    - `placement`: where the map is in that of the model's layer, if other ranks have parts of the layer.
    """

    def __init__(
        self,
        number: int,
        name: str,
        stack: str,
        attention_map: LayerMap | None,
        evidence: Evidence,
        heads: Sequence[int],
        values: Tensor | None = None,
        summary: LayerSummary | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.number = number
        """Its number in its stack, counted from 0."""
        self.name = name
        """The module's name in the model: `transformer.h.0.attn`."""
        self.stack = stack
        """The empty string in a model with one stack; otherwise "encoder", "decoder", "cross" or another
        name.

        "cross" is the attention of a decoder to its encoder."""
        self._evidence = evidence
        self.heads = tuple(heads)
        """For each head of the map, its number in the model."""
        self.placement = placement
        """Where its map is in that of the model's layer, or None if it is the whole layer."""
        self._data = LayerData(attention_map, values, summary)
        self._shape: tuple[int, int, int, int] | None = None  # of a layer whose tensors are elsewhere
        self._write_counts = self._count_writes()

    def _count_writes(self) -> list[tuple[Tensor, int | None]]:
        """Return the tensors of the map and how often each was written to.

        They are the capture's own, so only who writes to `seen[layer].q` changes them.
        """
        tensors = (getattr(self._data.map, name, None) for name in ("q", "k", "decay", "beta"))
        return [(x, write_count(x)) for x in tensors if x is not None]

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy gets, whose evidence is that of the layer as it is now."""
        return {**vars(self), "_evidence": self.evidence, "_write_counts": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._write_counts = self._count_writes()

    @property
    def evidence(self) -> Evidence:
        """How its map compares with the model's own output."""
        if all(write_count(x) == count for x, count in self._write_counts):
            return self._evidence
        return replace(self._evidence, problem=WRITTEN)

    @evidence.setter
    def evidence(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def _with_data(self, data: LayerData, evidence: Evidence) -> Layer:
        """Return the same layer with other tensors, in memory, and the evidence for them."""
        heads, placement = self.heads, self.placement
        return Layer(*self.layer_id, data.map, evidence, heads, data.values, data.summary, placement)

    def data(self) -> LayerData:
        """Return the layer's tensors. A layer in a file reads the file at every call."""
        return self._data

    @cached_property
    def settings(self) -> LayerSettings:
        """Its mask, scale, widths and so on, without any tensor. A layer in a file reads the file once."""
        return LayerSettings.of(self._with_map(self.data()))

    @property
    def in_memory(self) -> bool:
        """Whether its tensors are in memory, and not read from a file."""
        return any(x is not None for x in self._data)

    @property
    def layer_id(self) -> LayerId:
        """Its position in the model."""
        return LayerId(self.number, self.name, self.stack)

    @property
    def key(self) -> int | str:
        """Its key in a capture: 3, or "decoder.3" where the model has several stacks."""
        return self.layer_id.key

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (B, H, T, S) of its map."""
        return self._shape or self._data.matrix

    @property
    def map(self) -> LayerMap:
        """Its map (B, H, T, S). A layer that stores statistics only raises a ValueError."""
        attention_map = self._with_map(self.data()).map
        assert attention_map is not None
        return attention_map

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear-attention or state-space layer, whose map is signed."""
        return bool(self._evidence.recurrence)

    def softmax_map(self, what: str) -> AttentionMap:
        """Its map, if it is softmax attention; else a ValueError that says that `what` is not defined."""
        m = self.map
        if isinstance(m, LinearAttentionMap):
            raise ValueError(
                f"layer {self.key}: {what} is defined for softmax attention only, and this layer computes a "
                f"{m.kind}, with weights of either sign"
            )
        return m

    def check_tokens(self, what: str) -> None:
        """Raise a ValueError if its rows and keys are not known to be tokens, which `what` needs."""
        if (reason := self._evidence.unplaced) is not None:
            raise ValueError(
                f"layer {self.key}: {what} is defined between tokens, and {NO_TOKENS}: {reason}; "
                "regard.capture(…, verify=True) looks closer, by changing tokens"
            )

    def head_map(self, head: int) -> LayerMap:
        """Return the map (B, T, S) of one head, by its number in the model."""
        if head not in self.heads:
            elsewhere = self.placement is not None and 0 <= head < self.placement.total_heads
            where = ", which is on another rank: see regard.load(folder)" if elsewhere else ""
            raise KeyError(f"head: expected one of those captured {list(self.heads)}, got {head!r}{where}")
        head_map: LayerMap = self.map[:, self.heads.index(head)]
        return head_map

    def _with_map(self, data: LayerData) -> LayerData:
        if self.placement is not None and not self.placement.is_map:
            raise ValueError(
                f"layer {self.key}: this rank has a part of its rows or keys only: open the folder of all "
                "ranks with regard.load(folder)"
            )
        if data.map is None:
            raise ValueError(
                f"layer {self.key}: only its statistics were stored: see seen.layer({self.key!r}).summary; "
                'for its map, capture again with store="maps", and with folder=… if memory is short'
            )
        return data

    @property
    def summary(self) -> LayerSummary:
        """Its overview and the statistics of its rows and keys, computed now unless they were stored."""
        data = self.data()
        return summarise(self.map) if data.summary is None else data.summary

    @summary.setter
    def summary(self, summary: LayerSummary) -> None:
        self._data = self._data._replace(summary=summary)

    @property
    def values(self) -> Tensor | None:
        """Its values (B, G, S, E), or None unless the capture was made with `values=True`."""
        return self.data().values

    @property
    def nbytes(self) -> int:
        """The bytes that the layer takes, in memory or on disk."""
        return self.data().nbytes

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        return f"Layer({self.key}, {self.name}, {shape}, {self.evidence})"


class LayerList(list[Layer]):
    """The layers of a capture; a notebook shows them as a table."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: a row for each layer, without reading its tensors."""
        rows = []
        for layer in self:
            B, H, T, S = layer.shape
            certificate = "certified" if layer.evidence.certified else str(layer.evidence)
            rows.append((str(layer.key), layer.name, B, H, T, S, layer.evidence.settings, certificate))
        names = ("layer", "module", "texts", "heads", "queries", "keys", "mask", "certificate")
        return Table(names, rows).output(repr(self))


def shard_evidence(layer: Layer, evidence: Evidence) -> ShardEvidence:
    """Return the evidence for a layer, with which part of the model's layer it is about."""
    return ShardEvidence(layer.key, layer.heads, layer.placement and layer.placement.rows, evidence)
