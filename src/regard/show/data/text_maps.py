"""The maps of one text of the page: tiles, rows and columns of every head, as weights and as contributions.

Layers are named by their key ("3", "decoder.3"), heads by their number in the model. This file knows captures
and their maps; it knows neither the other texts' descriptions nor how the page draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap, WeightedMap
from regard.maps.index import Axes
from regard.recorder import Capture, Layer
from regard.recorder.contributions import Attribution
from regard.show.data import contributions
from regard.show.data.cuts import Cut
from regard.show.data.layer_description import AxisTokens, find_axis_tokens
from regard.show.data.map_view.display_precision import for_display
from regard.show.data.map_view.quantity import PLAIN, Quantity, Shade, axis_edges, text_units
from regard.show.data.map_view.tiles import TileCells, TilePyramid
from regard.show.data.patch_tokens import patch_axes, token_lists
from regard.show.data.predictions import likely_tokens
from regard.support.lru import LRUCache

CACHED_TILES = 96  # of at most 512 KiB each
CACHED_ATTRIBUTIONS = 16
CACHED_MAPS = 64  # views of maps in memory take no more of it; those read from files do

LayerMap = AttentionMap | LinearAttentionMap
ShownMap = LayerMap | WeightedMap


class HeadMap(NamedTuple):
    """One head of one layer on one text."""

    layer: Layer
    map: LayerMap  # (1, 1, T, S)
    values: Tensor | None  # (S, E)


class AxisEdges(NamedTuple):
    """Where words or sentences begin on both axes of a layer, and the axes' sizes; None for tokens."""

    rows: list[int] | None
    cols: list[int] | None


class EditedRun(NamedTuple):
    """What an edited run is of: the number of the text that the model read, and what was cut."""

    text: int
    cuts: tuple[Cut, ...]
    random: float | None = None
    """The mean loss with random heads cut instead; None if the model did not run with them."""


class MapCaches:
    """What was computed last of a text."""

    def __init__(self) -> None:
        self.tiles: LRUCache[TileCells] = LRUCache(CACHED_TILES)
        self.maps: LRUCache[LayerMap] = LRUCache(CACHED_MAPS)
        self.factors: LRUCache[Tensor] = LRUCache(CACHED_MAPS)
        self.attributions: LRUCache[Attribution] = LRUCache(CACHED_ATTRIBUTIONS)


class TextMaps:
    """The maps of a captured text.

    Arguments:
        capture: the text and its layers.
        number: its number among the texts of the page.
        batch_index: which entry of the capture's batch is shown.
        texts: all texts of the page, which may lend their units and their words.
        run: what the capture is an edited run of; None for the model's own.
    """

    def __init__(
        self,
        capture: Capture,
        number: int,
        batch_index: int,
        texts: Sequence[TextMaps],
        run: EditedRun | None = None,
    ) -> None:
        self.capture, self.number, self.batch_index, self.run = capture, number, batch_index, run
        self._caches, self._texts = MapCaches(), texts
        self._units: dict[str, dict[str, list[int]]] | None = None

    def layer(self, key: str | int) -> Layer:
        """Return a layer as it ran on the text; KeyError lists the layers that exist."""
        return self.capture.layer(key)

    def layer_map(self, key: str | int) -> LayerMap:
        """Return the map of all heads of a layer, (1, H, T, S). Recent ones are cached."""
        chosen = self.layer(key)

        def read() -> LayerMap:
            m = chosen.map
            entry, heads = slice(self.batch_index, self.batch_index + 1), slice(0, m.matrix[1])
            return m.select(entry, heads, Axes())

        return self._caches.maps.get(chosen.key, read)

    def head_map(self, key: str | int, head: int) -> HeadMap:
        """Return one head's map, (1, 1, T, S), its layer and its values; KeyError lists the heads."""
        chosen = self.layer(key)
        h = _head_index(chosen, head)
        B, H = chosen.shape[:2]
        values = chosen.values
        if values is not None:
            values = values.reshape(B, -1, *values.shape[-2:])  # (B, G, S, E)
            values = values[self.batch_index, h // (H // values.shape[1])]  # (S, E)
        return HeadMap(chosen, self.layer_map(chosen.key)[:, h : h + 1], values)

    def tokens_of(self, layer: Layer) -> AxisTokens:
        """Return the tokens along both axes of a layer."""
        lists = token_lists(self.capture, self.batch_index)
        return find_axis_tokens(layer, lists, patch_axes(self.capture, layer.key))

    def tile(
        self,
        key: str | int,
        head: int,
        z: int,
        i: int,
        j: int,
        quantity: Quantity = PLAIN,
    ) -> TileCells:
        """Return tile (i, j) of level z of one head (see `tiles`); `quantity` says what cells are made of."""
        chosen = self.layer(key)
        m = self._quantity_map(chosen, head, quantity)
        rows, cols = self._edges(chosen, quantity)
        name = (chosen.key, head, quantity)
        pyramid = TilePyramid(m, self._caches.tiles, name, rows=rows, cols=cols)
        return pyramid.tile(z, i, j)

    def row(self, key: str | int, head: int | str, row: int, quantity: Quantity = PLAIN) -> Tensor:
        """Return one query's weights, (S,), or those of a word or sentence on each of them.

        "mean" as the head or the layer averages over all of them. Contributions to a logit are added up
        instead, and are those of one query, also where its keys are words or sentences.
        """

        def read(m: ShownMap, edges: AxisEdges) -> Tensor:
            if quantity.shade == "logit" and edges.rows is not None:
                edges = edges._replace(rows=list(range(m.matrix[2] + 1)))
            return _line(m, "row", row, edges)

        return self._mean(key, head, quantity, read)

    def column(self, key: str | int, head: int | str, col: int, quantity: Quantity = PLAIN) -> Tensor:
        """Return every query's weight on one key, (T,). "mean" and units work as in `row`."""
        return self._mean(key, head, quantity, lambda m, edges: _line(for_display(m), "col", col, edges))

    def _mean(
        self,
        key: str | int,
        head: int | str,
        quantity: Quantity,
        read: Callable[[ShownMap, AxisEdges], Tensor],
    ) -> Tensor:
        """Average what `read` gives, (heads, n), over the named head and layer, or over all where "mean".

        Contributions to a logit are added up instead.
        """
        layers = self.capture.layers if key == "mean" else [self.layer(key)]
        number = None if head == "mean" else head
        if number is not None and not isinstance(number, int):
            raise KeyError(f'head: expected a number or "mean", got {head!r}')
        total, count = torch.zeros((), device="cpu"), 0
        for chosen in layers:
            m = self._quantity_map(chosen, number, quantity)
            m = for_display(m) if number is None else m
            entries = read(m, self._edges(chosen, quantity))  # (H or 1, n)
            if total.shape and entries.shape[-1] != total.shape[-1]:
                raise ValueError("layer: the layers have different lengths, so their mean is not defined")
            total, count = total + entries.sum(0), count + len(entries)
        return total if quantity.shade == "logit" else total / count

    def _quantity_map(self, layer: Layer, head: int | None, quantity: Quantity) -> ShownMap:
        """Return the map that a quantity is read from: of one head, (1, 1, T, S), or of all if None."""
        m: ShownMap = self.layer_map(layer.key)
        if quantity.shade != "weights":
            if not isinstance(m, AttentionMap):
                raise KeyError(
                    f"shade: expected weights, the only ones of a linear layer, got {quantity.shade!r}"
                )
            m = m.weighted(self.factors(layer.key, quantity))
        if head is None:
            return m
        h = _head_index(layer, head)
        return m.select(slice(0, 1), slice(h, h + 1))

    def units(self) -> dict[str, dict[str, list[int]]]:
        """Return where the words and sentences of the text begin, by its lists of tokens (see `units`)."""
        if self._units is None:
            lists = {"tokens": self.capture.tokens, "target_tokens": self.capture.target_tokens}
            self._units = {
                name: text_units(tokens[self.batch_index])
                for name, tokens in lists.items()
                if tokens and tokens[self.batch_index]
            }
        return self._units

    def _edges(self, layer: Layer, quantity: Quantity) -> AxisEdges:
        """Return the edges of the words or sentences on both axes of a layer; None for tokens."""
        if quantity.units == "tokens":
            return AxisEdges(None, None)
        number = self.number if quantity.units_of is None else quantity.units_of
        lender, axes = self._texts[number], self.tokens_of(layer)
        edges = []
        for name, first, size in (
            (axes.queries_of, axes.queries_from, layer.shape[2]),
            (axes.keys_of, axes.keys_from, layer.shape[3]),
        ):
            units = lender.units().get(name)
            if units is None or first is None or units[quantity.units][-1] < first + size:
                raise KeyError(f"units: the {quantity.units} of text {number} are not known for this layer")
            edges.append(axis_edges(units[quantity.units], first, size))
        return AxisEdges(*edges)

    def shades(self) -> list[Shade]:
        """Return what the cells of the text's maps can stand for."""
        return contributions.available_shades(self.capture)

    def factors(self, key: str | int, quantity: Quantity) -> Tensor:
        """Return what multiplies the weights of each key in maps of contributions, (1, H, S)."""
        chosen = self.layer(key)
        self._check_shade(quantity)

        def compute() -> Tensor:
            if quantity.shade == "values":
                factors = contributions.value_factors(self.capture, chosen, self.batch_index)
            else:
                factors = contributions.logit_factors(self._attribution(quantity), chosen)
            cuts = () if self.run is None else self.run.cuts
            return contributions.without_cut_heads(factors, chosen, cuts) if cuts else factors

        name = (chosen.key, quantity._replace(units="tokens", units_of=None))
        return self._caches.factors.get(name, compute)

    def attribution(self, quantity: Quantity) -> dict[str, Any]:
        """Return where the logit of a token after a position comes from (see `contributions`)."""
        self._check_shade(quantity._replace(shade="logit"))
        token, position = self._predicted(quantity), quantity.position
        predictions = self.capture.predictions
        assert predictions is not None
        others = likely_tokens(predictions, self.batch_index, -1 if position is None else position)
        chosen = next((one for one in others if one["id"] == token), None)
        if chosen is None:  # likely elsewhere, as in the model's own run of an edited text
            chosen = {"id": token, "token": self._word(token), "probability": None}
            others = [*others, chosen]
        found = self._attribution(quantity)
        return contributions.describe_attribution(found, self.capture, chosen, others)

    def _attribution(self, quantity: Quantity) -> Attribution:
        position, token = quantity.position, self._predicted(quantity)
        return self._caches.attributions.get(
            (position, token),
            lambda: self.capture.attribution(
                token, position=-1 if position is None else position, batch=self.batch_index
            ),
        )

    def _predicted(self, quantity: Quantity) -> int:
        """Return the id of the token that a quantity names, or of the likeliest one."""
        predictions = self.capture.predictions
        assert predictions is not None
        T = predictions.likeliest.shape[1]
        position = T - 1 if quantity.position is None else quantity.position
        if not 0 <= position < T:
            raise KeyError(f"position: expected a number from 0 to {T - 1}, got {position}")
        if quantity.token is not None:
            residual = self.capture.residual
            assert residual is not None
            assert residual.unembedding is not None
            if not 0 <= quantity.token < (V := len(residual.unembedding.weight)):
                raise KeyError(f"token: expected an id from 0 to {V - 1}, got {quantity.token}")
            return quantity.token
        return int(predictions.likeliest[self.batch_index, position, 0])

    def _word(self, token: int) -> str:
        """Return the text of a token that is likely somewhere on the page, or its id."""
        captures = (text.capture.predictions for text in self._texts)
        known = [predictions for predictions in captures if predictions is not None]
        return next((one for one in known if token in one.words), known[0]).word(token)

    def _check_shade(self, quantity: Quantity) -> None:
        """KeyError unless the capture has what a quantity needs."""
        if quantity.shade not in (shades := self.shades()):
            raise KeyError(
                f"shade: expected one of {', '.join(shades)}, got {quantity.shade!r}: capture with "
                "contributions=True and predictions=True"
            )


def _line(m: ShownMap, name: str, index: int, edges: AxisEdges) -> Tensor:
    """Return one row or one column of every head of a map (1, H, T, S), as (H, n).

    With edges it is that of a word or sentence: summed over keys, averaged over queries.
    """
    _, H, T, S = m.matrix
    rows, cols = (range(n + 1) if own is None else own for own, n in zip(edges, (T, S), strict=True))
    own = rows if name == "row" else cols
    if not 0 <= index < len(own) - 1:
        raise KeyError(f"{name}: expected a number from 0 to {len(own) - 2}, got {index}")
    span = own[index : index + 2]
    if edges.rows is not None:
        pooled = cast(Tensor, m.pool(span, cols) if name == "row" else m.pool(rows, span))
        return pooled.reshape(H, -1).float().cpu()
    line = slice(*span)
    entries = m.tile(line) if name == "row" else m.tile(slice(0, T), line)
    return entries.reshape(H, -1).float().cpu()


def _head_index(layer: Layer, head: int) -> int:
    """Return the index of a head by its number in the model; KeyError lists the heads."""
    if head not in layer.heads:
        raise KeyError(f"head: expected one of {list(layer.heads)}, got {head!r}")
    return layer.heads.index(head)
