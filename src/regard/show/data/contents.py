"""What the page shows, of one or more captures: the same for the server and for the saved file.

`meta` describes everything in a form that JSON holds; the rest is computed when someone looks. Texts are
numbered, layers go by their key ("3", "decoder.3"), heads by their number in the model. This file knows
captures; it knows neither models nor how the page draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import And, Mask
from regard.attention.masks.named import Window
from regard.heads import describe
from regard.lru import LRUCache
from regard.maps import AttentionMap
from regard.maps.index import Axes
from regard.recorder import Capture, Evidence, Layer
from regard.show.data import tiles
from regard.show.data.eviction import eviction
from regard.show.data.row_steps import working
from regard.show.data.stage_example import example
from regard.show.data.thumbnails import Thumbnail, glance
from regard.show.data.tiles import TileCells

VERSION = 1
TILES = 192  # that are remembered, of at most 512 KiB each
MAPS = 64  # that are remembered; those in memory take no more of it


class One(NamedTuple):
    """One head of one layer on one text."""

    layer: Layer
    map: AttentionMap  # (1, 1, T, S)
    values: Tensor | None  # (S, E)


class Contents:
    """Captures, ready to be looked at.

    `entry` says which entry of each capture's batch is meant; `titles` names the texts. `can` says what more
    whoever serves the page can do: {"generate": …, "capture": …}. `time` is what `read_run` reads of a
    training run; `generation` the lines of one that was recorded, for a page that has no model; `start` the
    layer and the head that a reader sees first.
    """

    def __init__(
        self,
        seen: Capture | Sequence[Capture],
        *,
        entry: int = 0,
        titles: Sequence[str] | None = None,
        can: dict[str, bool] | None = None,
        time: dict[str, Any] | None = None,
        generation: Sequence[Mapping[str, Any]] | None = None,
        start: tuple[str, int] | None = None,
    ) -> None:
        self.texts: list[Capture] = []
        self.titles: list[str] = []
        self.entry, self.can, self.time, self.generation = entry, can or {}, time, generation
        self.start = start
        self._tiles: LRUCache[TileCells] = LRUCache(TILES)
        self._maps: LRUCache[AttentionMap] = LRUCache(MAPS)
        self._glances: dict[tuple[int, str], Thumbnail] = {}
        self._heads: dict[int, list[dict[str, Any]]] = {}
        self._evictions: dict[tuple[int, str], dict[str, Any]] = {}
        given = [seen] if isinstance(seen, Capture) else list(seen)
        for number, one in enumerate(given):
            self.add(one, titles[number] if titles else None)
        if not self.texts:
            raise ValueError("seen: expected at least one capture to show, got none")

    def add(self, seen: Capture, title: str | None = None) -> int:
        """Show one more text; returns its number."""
        if not seen.layers:
            raise ValueError("seen: expected a capture that saw something, got one without layers")
        B = seen.layers[0].shape[0]
        if not 0 <= self.entry < B:
            raise ValueError(f"entry: expected one of the capture's {B} texts, from 0, got {self.entry}")
        self.texts.append(seen)
        self.titles.append(title or _title(seen, self.entry, len(self.texts)))
        self.__dict__.pop("meta", None)
        return len(self.texts) - 1

    @cached_property
    def meta(self) -> dict[str, Any]:
        """Everything but weights: what the page needs to know before it asks for any."""
        values = all(layer.values is not None for seen in self.texts for layer in seen.layers)
        return {
            "version": VERSION,
            "model": self.texts[0].model,
            "texts": [self._text(number) for number in range(len(self.texts))],
            "can": {"generate": False, "capture": False, **self.can, "values": values},
            "time": self.time,
            "example": example(),
            "generation": None if self.generation is None else list(self.generation),
            "start": None if self.start is None else {"layer": self.start[0], "head": self.start[1]},
        }

    def one(self, text: int, layer: str | int, head: int) -> One:
        """The map of one head, (1, 1, T, S); KeyError says what there is instead."""
        found = self.layer(text, layer)
        if head not in found.heads:
            raise KeyError(f"head: expected one of {list(found.heads)}, got {head!r}")
        h = found.heads.index(head)
        B, H = found.shape[:2]
        whole, values = self.whole(text, found.key), found.values
        if values is not None:
            values = values.reshape(B, -1, *values.shape[-2:])
            values = values[self.entry, h // (H // values.shape[1])]
        return One(found, whole[:, h : h + 1], values)

    def layer(self, text: int, layer: str | int) -> Layer:
        """A layer as it ran on a text."""
        self._check(text)
        return self.texts[text].layer(layer)

    def whole(self, text: int, layer: str | int) -> AttentionMap:
        """The map of all heads of a layer, (1, H, T, S). A few are remembered: they may lie in files."""
        found = self.layer(text, layer)

        def read() -> AttentionMap:
            m = found.map
            whole = m._with(axes=Axes(), precise=m.precise)
            one: AttentionMap = whole[self.entry : self.entry + 1]
            return one

        return self._maps.get((text, found.key), read)

    def tile(
        self, text: int, layer: str | int, head: int, z: int, i: int, j: int, without: int | None = None
    ) -> TileCells:
        """Tile (i, j) of level z of one head; `without` one key if told (see `pyramid`)."""
        m = self.one(text, layer, head).map
        _, _, T, S = m.matrix
        if not 0 <= z < tiles.levels(T, S):
            raise KeyError(f"z: expected a level from 0 to {tiles.levels(T, S) - 1}, got {z}")
        high, wide = tiles.tiles(T, S, z)
        if not (0 <= i < high and 0 <= j < wide):
            raise KeyError(f"tile: expected one of {high} × {wide} at level {z}, got ({i}, {j})")

        def child(z: int, i: int, j: int) -> TileCells:
            return self._tiles.get((text, str(layer), head, z, i, j), lambda: tiles.tile(m, z, i, j, child))

        found = child(z, i, j)
        return found if without is None else tiles.without(m, found, z, i, j, without)

    def row(self, text: int, layer: str | int, head: int | str, row: int) -> Tensor:
        """What one query looks at, (S,); head or layer "mean" is the mean over all of them."""
        return self._mean(text, layer, head, lambda m: _line(m, "row", row))

    def column(self, text: int, layer: str | int, head: int | str, col: int) -> Tensor:
        """Who looks at one key, (T,); head or layer "mean" is the mean over all of them."""
        return self._mean(text, layer, head, lambda m: _line(m, "col", col))

    def glance(self, text: int, layer: str | int) -> Thumbnail:
        """A layer's small pictures and sinks."""
        found = self.layer(text, layer)
        key = (text, found.key)
        if key not in self._glances:
            self._glances[key] = glance(self.whole(text, found.key), self._is_token(text, found))
        return self._glances[key]

    def _is_token(self, text: int, layer: Layer) -> Tensor | None:
        """Which keys of a layer are no padding, (S,), None if all or not known."""
        seen = self.texts[text]
        ids = seen._read_by(layer)
        if seen.real is None or ids is None or ids.shape != seen.real.shape:
            return None
        return seen.real[self.entry]

    def steps(self, text: int, layer: str | int, head: int, row: int) -> dict[str, Any]:
        """The whole computation of one row, step by step (see `working`)."""
        found, m, values = self.one(text, layer, head)
        return working(m, values, row, found.map.matrix[1], found.map.k.shape[1])

    def heads(self, text: int) -> list[dict[str, Any]]:
        """What every head does on a text: the rows of `regard.heads.describe`, as plain data."""
        self._check(text)
        if text not in self._heads:
            seen, some = self.texts[text], slice(self.entry, self.entry + 1)
            read = [seen._read_by(layer) for layer in seen.layers]
            # Layers that read the same get the very same ids: what they have in common is then found once.
            own = {id(ids): ids[some] for ids in read if ids is not None}
            table = describe(
                [self.whole(text, layer.key) for layer in seen.layers],
                [None if ids is None else own[id(ids)] for ids in read],
                keys=[layer.key for layer in seen.layers],
                heads=[layer.heads for layer in seen.layers],
                attention_mask=None if seen.real is None else seen.real[some],
            )
            # The page knows a layer by its key.
            self._heads[text] = [
                {**data, "layer": row.key} for row, data in zip(table, table.to_data(), strict=True)
            ]
        return self._heads[text]

    def eviction(self, text: int, layer: str | int) -> dict[str, Any]:
        """What a cache of first and latest keys would lose, for every head of a layer (see `eviction`)."""
        found = self.layer(text, layer)
        key = (text, found.key)
        if key not in self._evictions:
            self._evictions[key] = eviction(self.whole(text, found.key))
        return self._evictions[key]

    def _mean(
        self, text: int, layer: str | int, head: int | str, look: Callable[[AttentionMap], Tensor]
    ) -> Tensor:
        self._check(text)
        layers = self.texts[text].layers if layer == "mean" else [self.layer(text, layer)]
        total, count = torch.zeros(()), 0
        for found in layers:
            whole = self.whole(text, found.key)
            chosen = whole if head == "mean" else self.one(text, found.key, _number("head", head)).map
            weights = look(chosen)  # (heads, n)
            if total.shape and weights.shape[-1] != total.shape[-1]:
                raise ValueError("layer: the layers see different texts, so that they have no mean")
            total, count = total + weights.sum(0), count + len(weights)
        return total / count

    def _check(self, text: int) -> None:
        if not 0 <= text < len(self.texts):
            raise KeyError(f"text: expected a number from 0 to {len(self.texts) - 1}, got {text!r}")

    def _text(self, number: int) -> dict[str, Any]:
        seen = self.texts[number]
        tokens = seen.tokens[self.entry] if seen.tokens else None
        targets = seen.target_tokens[self.entry] if seen.target_tokens else None
        return {
            "title": self.titles[number],
            "tokens": tokens,
            "target_tokens": targets,
            "boundary": seen.boundary,
            "layers": [
                _layer(layer, evidence, tokens or [], targets)
                for layer, evidence in zip(seen.layers, seen.certificate, strict=True)
            ],
            "missing": [{"name": name, "kind": kind} for name, kind in seen.missing.items()],
        }


def _layer(layer: Layer, evidence: Evidence, tokens: list[str], targets: list[str] | None) -> dict[str, Any]:
    """A layer's facts. `queries_of` and `keys_of` say which tokens its axes stand for, from which one on."""
    _, H, T, S = layer.map.matrix
    decodes = targets is not None and layer.stack in ("decoder", "cross")
    queries = targets if targets is not None and decodes else tokens
    keys = tokens if layer.stack == "cross" else queries
    known = len(queries) >= T and len(keys) >= S and (layer.stack != "cross" or decodes)
    D, G = layer.map.q.shape[-1], layer.map.k.shape[1]
    return {
        "key": layer.key,
        "name": layer.name,
        "stack": layer.stack,
        "number": layer.number,
        "heads": list(layer.heads),
        "kv_heads": G,
        "group": H // G,
        "width": D,
        "value_width": None if layer.values is None else layer.values.shape[-1],
        "scale": layer.map.scale,
        "softcap": layer.map.softcap,
        "sinks": layer.map.sinks is not None,
        "mask": str(layer.map.mask),
        "window": window_of(layer.map.mask),
        "rows": T,
        "cols": S,
        "queries_of": "target_tokens" if queries is targets else "tokens",
        "keys_of": "target_tokens" if keys is targets else "tokens",
        "queries_from": len(queries) - T if known else None,
        "keys_from": len(keys) - S if known else None,
        "evidence": _evidence(evidence),
    }


def _evidence(found: Evidence) -> dict[str, Any]:
    return {
        "certified": found.certified,
        "text": str(found),
        "problem": found.problem,
        "difference": _finite(found.difference),
        "allowed": _finite(found.allowed),
        "row_sums": _finite(found.row_sums),
        "rows": found.rows,
        "of": found.of,
    }


def window_of(mask: Mask) -> int | None:
    """How many keys back a mask lets look, if it says so: `causal & window(128)` says 128."""
    if isinstance(mask, Window):
        return mask.size
    if isinstance(mask, And):
        sizes = [size for size in (window_of(mask.left), window_of(mask.right)) if size is not None]
        return min(sizes) if sizes else None
    return None


def _line(m: AttentionMap, name: str, index: int) -> Tensor:
    """One row or one column of every head of a map (1, H, T, S): (H, n)."""
    _, H, T, S = m.matrix
    size = T if name == "row" else S
    if not 0 <= index < size:
        raise KeyError(f"{name}: expected a number from 0 to {size - 1}, got {index}")
    at = slice(index, index + 1)
    tile = m.tile(at) if name == "row" else m.tile(slice(0, T), at)
    return tile.reshape(H, -1).float().cpu()


def _number(name: str, value: int | str) -> int:
    if not isinstance(value, int):
        raise KeyError(f'{name}: expected a number or "mean", got {value!r}')
    return value


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _title(seen: Capture, entry: int, number: int) -> str:
    """The first words of a text."""
    words = "".join(seen.tokens[entry]).split() if seen.tokens else []
    start = " ".join(words)[:48].strip()
    return start or f"text {number}"
