"""The data behind the page, for one or more captures: the same for the server and for the saved file.

`meta` describes everything as JSON can hold it; weights are computed when they are requested. Texts are
numbered from 0, layers are named by their key ("3", "decoder.3"), heads by their number in the model. This
file knows captures; it knows neither models nor how the page draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.heads import SurveyResult
from regard.heads.tables.score_words import SCORE_WORDS
from regard.heads.telling_head import find_selective_head, find_telling_head
from regard.maps import AttentionMap, LinearAttentionMap, WeightedMap
from regard.maps.index import Axes
from regard.policies import RetentionCurve
from regard.recorder import Capture, Layer
from regard.recorder.contributions import Attribution
from regard.show.data import contributions, predictions, retention, row_steps
from regard.show.data.copies import first_copies
from regard.show.data.cuts import Cut
from regard.show.data.head_rows import TextHeads
from regard.show.data.layer_description import describe_layer, find_axis_tokens
from regard.show.data.map_view import thumbnails, tiles
from regard.show.data.map_view.display_precision import for_display
from regard.show.data.map_view.quantity import PLAIN, Quantity, Shade
from regard.show.data.map_view.thumbnails import Thumbnail
from regard.show.data.map_view.tiles import TileCells, TilePyramid
from regard.show.data.map_view.units import axis_edges, text_units
from regard.show.data.patch_tokens import describe_pictures, patch_axes, token_lists
from regard.show.data.retention import LayerTable
from regard.show.data.stage_example import build_example
from regard.show.data.survey_rows import describe_survey
from regard.show.data.telling_token import telling_query
from regard.show.data.titles import distinct_title, title_of_tokens
from regard.support.characters import ABBREVIATIONS
from regard.support.lru import LRUCache

VERSION = 1
CACHED_TILES = 192  # of at most 512 KiB each
CACHED_ATTRIBUTIONS = 16
CACHED_MAPS = 64  # views of maps in memory take no more of it; those read from files do
MOST_SAMPLED = 4 << 30  # bytes of a capture up to which every layer is read to find its most telling head


LayerMap = AttentionMap | LinearAttentionMap
ShownMap = LayerMap | WeightedMap


class RemovedTextError(KeyError):
    """A text that was there and is not any more, as an edited run that another one has replaced."""


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


class Contents:
    """Captures, prepared for display.

    Arguments:
        captures: one capture, or one for each text.
        batch_index: which entry of each capture's batch is shown.
        titles: a title for each text; by default its first words.
        can: what the server of the page offers beside this: {"generate": …, "capture": …}.
        time: a training run, as `read_run` reads it.
        generation: the lines of a recorded generation, for a page without a model.
        survey: what a survey of a corpus found, as `read_survey` reads it.
        retained: what cache policies keep of the first text: `seen.retained([…], budget=[…])`.
        start: the layer key and the head that a reader sees first. "auto" chooses the most telling head of
            the first text (see `telling_head`), None the first one.
    """

    def __init__(
        self,
        captures: Capture | Sequence[Capture],
        *,
        batch_index: int = 0,
        titles: Sequence[str] | None = None,
        can: dict[str, bool] | None = None,
        time: dict[str, Any] | None = None,
        generation: Sequence[Mapping[str, Any]] | None = None,
        survey: SurveyResult | None = None,
        retained: RetentionCurve | None = None,
        start: tuple[str, int] | Literal["auto"] | None = "auto",
    ) -> None:
        self._lock = threading.RLock()  # several threads add, remove and describe texts
        self._meta: dict[str, Any] | None = None
        self.texts: list[Capture] = []
        self.titles: list[str] = []
        self.edited: dict[int, EditedRun] = {}
        """The texts that are edited runs, by their numbers."""
        self.removed: set[int] = set()
        """The numbers of texts and edited runs that are gone: a number is never used again."""
        self.batch_index, self.can, self.time, self.generation = batch_index, can or {}, time, generation
        self.survey = survey
        self.lookup: dict[str, Any] | None = None
        """What `record_lookup` recorded, for a page without a model."""
        self.retention: dict[int, dict[str, LayerTable]] = {}
        """What cache policies keep, by text and layer, for a page without Python; see `record_retention`."""
        self.left_out: list[str] = []
        """The heads that a page leaves out to stay small, as "4.0"; see `kept_heads`."""
        self._tiles: LRUCache[TileCells] = LRUCache(CACHED_TILES)
        self._maps: LRUCache[LayerMap] = LRUCache(CACHED_MAPS)
        self._thumbnails: dict[tuple[int, str], Thumbnail] = {}
        self._heads: dict[int, TextHeads] = {}
        self._retained: dict[int, dict[str, LayerTable]] = {}
        self._units: dict[int, dict[str, dict[str, list[int]]]] = {}
        self._telling: dict[int, int] = {}
        self._factors: LRUCache[Tensor] = LRUCache(CACHED_MAPS)
        self._attributions: LRUCache[Attribution] = LRUCache(CACHED_ATTRIBUTIONS)
        captures = [captures] if isinstance(captures, Capture) else list(captures)
        for number, capture in enumerate(captures):
            self.add(capture, titles[number] if titles else None)
        if not self.texts:
            raise ValueError("captures: expected at least one capture to show, got none")
        if retained is not None:
            curve, first = retention.check_curve(retained, self.texts[0]), self.texts[0]
            linear = ((layer.key, layer.heads, layer.map) for layer in first.layers if layer.is_linear)
            tables = retention.describe_curve(curve, first.layers[0].shape[3])
            self.retention[0] = tables | retention.measure_layers(linear)
        self._start = start

    @property
    def start(self) -> tuple[str, int] | None:
        """The layer key and the head that a reader sees first; None is the first one."""
        with self._lock:
            if self._start == "auto":
                self._start = self._find_telling_head()
            return self._start

    def add(self, capture: Capture, title: str | None = None, edited: EditedRun | None = None) -> int:
        """Add one more text and return its number.

        `title` is by default the text's first words. An `edited` run takes the place of an earlier one of the
        same text.
        """
        if not capture.layers:
            raise ValueError("capture: expected at least one captured layer, got a capture without layers")
        B = capture.layers[0].shape[0]
        if not 0 <= self.batch_index < B:
            raise ValueError(
                f"batch_index: expected a number from 0 to {B - 1}, since the capture has a batch of {B}, "
                f"got {self.batch_index}"
            )
        with self._lock:
            self.texts.append(capture)
            number = len(self.texts) - 1
            kind = "picture" if capture.pictures is not None and capture.ids is None else "text"
            title = title or title_of_tokens(self._tokens(number) or []) or f"{kind} {number + 1}"
            self.titles.append(title if edited is not None else distinct_title(title, self.titles))
            if edited is not None:
                for earlier in [n for n, run in self.edited.items() if run.text == edited.text]:
                    self.remove(earlier)
                self.edited[number] = edited
            self.forget_meta()
            return number

    def remove(self, number: int) -> int:
        """Remove a text with its edited run, or an edited run alone, and return which text to show next.

        Its number is not used again. Raises ValueError for the last text.
        """
        with self._lock:
            self.check_text(number)
            run = self.edited.pop(number, None)
            others = [n for n in range(len(self.texts)) if n not in {number, *self.edited, *self.removed}]
            if not others:
                raise ValueError("text: expected another text beside the one to remove, got the last one")
            for edited in [n for n, other in self.edited.items() if other.text == number]:
                self._discard(edited)
                del self.edited[edited]
            self._discard(number)
        return others[0] if run is None else run.text

    def _discard(self, number: int) -> None:
        """Free what was captured of a text and computed from it."""
        self.removed.add(number)
        self.texts[number] = Capture(model=self.texts[number].model)
        self.forget_meta()
        for by_text in (self._heads, self._units, self._telling, self.retention, self._retained):
            by_text.pop(number, None)
        for key in [key for key in list(self._thumbnails) if key[0] == number]:  # others may add meanwhile
            self._thumbnails.pop(key, None)
        for cache in (self._tiles, self._maps, self._factors, self._attributions):
            cache.discard_if(lambda key: key[0] == number)

    @property
    def meta(self) -> dict[str, Any]:
        """Everything but weights, as plain data: what the page needs before it requests any."""
        with self._lock:
            if self._meta is None:
                self._meta = self._describe()
            return self._meta

    def prepare_first_view(self) -> None:
        """Compute what a reader sees first before it is requested: `meta`, and the first map as a whole."""
        first = self.texts[0].layers[0]
        start = self.meta["start"] or {"layer": first.key, "head": first.heads[0]}
        T, S = self.layer(0, start["layer"]).shape[2:]
        z = max(0, tiles.level_count(T, S) - 2)  # two by two tiles at most
        high, wide = tiles.tile_counts(T, S, z)
        for i, j in product(range(high), range(wide)):
            self.tile(0, start["layer"], start["head"], z, i, j)

    def forget_meta(self) -> None:
        """Let `meta` be made anew, since something that it describes has changed."""
        with self._lock:
            self._meta = None

    def _describe(self) -> dict[str, Any]:
        layers = [layer for capture in self.texts for layer in capture.layers if not layer.is_linear]
        values = all(layer.settings.value_width is not None for layer in layers)  # for the steps of softmax
        return {
            "version": VERSION,
            "model": self.texts[0].model,
            "texts": [self._text(number) for number in range(len(self.texts))],
            "can": {
                "generate": False,
                "capture": False,
                "cut": False,
                "retained": bool(self.retention),
                **self.can,
                "values": values,
            },
            "time": self.time,
            "survey": None if self.survey is None else describe_survey(self.survey),
            "example": build_example(),
            "generation": None if self.generation is None else list(self.generation),
            "lookup": self.lookup,
            "left_out": self.left_out,
            "start": None if self.start is None else {"layer": self.start[0], "head": self.start[1]},
            # Constants and words that the page shares with Python.
            "tile": tiles.SIDE,
            "thumb": thumbnails.SIDE,
            "strongest": row_steps.STRONGEST,
            "scores": [score._asdict() for score in SCORE_WORDS],
            "invisible": ABBREVIATIONS,
        }

    def layer(self, text: int, layer: str | int) -> Layer:
        """Return a layer as it ran on a text; KeyError lists the layers that exist."""
        self.check_text(text)
        return self.texts[text].layer(layer)

    def layer_map(self, text: int, layer: str | int) -> LayerMap:
        """Return the map of all heads of a layer, (1, H, T, S). Recent ones are cached."""
        chosen = self.layer(text, layer)

        def read() -> LayerMap:
            m = chosen.map
            entry, heads = slice(self.batch_index, self.batch_index + 1), slice(0, m.matrix[1])
            return m.select(entry, heads, Axes())

        return self._maps.get((text, chosen.key), read)

    def head_map(self, text: int, layer: str | int, head: int) -> HeadMap:
        """Return one head's map, (1, 1, T, S), its layer and its values; KeyError lists the heads."""
        chosen = self.layer(text, layer)
        h = _head_index(chosen, head)
        B, H = chosen.shape[:2]
        values = chosen.values
        if values is not None:
            values = values.reshape(B, -1, *values.shape[-2:])  # (B, G, S, E)
            values = values[self.batch_index, h // (H // values.shape[1])]  # (S, E)
        return HeadMap(chosen, self.layer_map(text, chosen.key)[:, h : h + 1], values)

    def tile(
        self,
        text: int,
        layer: str | int,
        head: int,
        z: int,
        i: int,
        j: int,
        without: int | None = None,
        quantity: Quantity = PLAIN,
    ) -> TileCells:
        """Return tile (i, j) of level z of one head (see `tiles`).

        `without` is the position of a key to leave out: its weights count as 0. `quantity` says what the
        cells are made of.
        """
        chosen = self.layer(text, layer)
        m = self._quantity_map(text, chosen, head, quantity)
        rows, cols = self._edges(text, chosen, quantity)
        name = (text, chosen.key, head, quantity)
        pyramid = TilePyramid(m, self._tiles, name, rows=rows, cols=cols)
        return pyramid.tile(z, i, j) if without is None else pyramid.tile_without(z, i, j, without)

    def row(
        self, text: int, layer: str | int, head: int | str, row: int, quantity: Quantity = PLAIN
    ) -> Tensor:
        """Return one query's weights, (S,), or those of a word or sentence on each of them.

        "mean" as the head or the layer averages over all of them. Contributions to a logit are added up
        instead, and are those of one query, also where its keys are words or sentences.
        """

        def read(m: ShownMap, edges: AxisEdges) -> Tensor:
            if quantity.shade == "logit" and edges.rows is not None:
                edges = edges._replace(rows=list(range(m.matrix[2] + 1)))
            return _line(m, "row", row, edges)

        return self._mean(text, layer, head, quantity, read)

    def column(
        self, text: int, layer: str | int, head: int | str, col: int, quantity: Quantity = PLAIN
    ) -> Tensor:
        """Return every query's weight on one key, (T,). "mean" and units work as in `row`."""
        return self._mean(
            text, layer, head, quantity, lambda m, edges: _line(for_display(m), "col", col, edges)
        )

    def _quantity_map(self, text: int, layer: Layer, head: int | None, quantity: Quantity) -> ShownMap:
        """Return the map that a quantity is read from: of one head, (1, 1, T, S), or of all if None."""
        m: ShownMap = self.layer_map(text, layer.key)
        if quantity.shade != "weights":
            if not isinstance(m, AttentionMap):
                raise KeyError(
                    f"shade: expected weights, the only ones of a linear layer, got {quantity.shade!r}"
                )
            m = m.weighted(self.factors(text, layer.key, quantity))
        if head is None:
            return m
        h = _head_index(layer, head)
        return m.select(slice(0, 1), slice(h, h + 1))

    def _edges(self, text: int, layer: Layer, quantity: Quantity) -> AxisEdges:
        """Return the edges of the words or sentences on both axes of a layer; None for tokens."""
        if quantity.units == "tokens":
            return AxisEdges(None, None)
        units_of = text if quantity.units_of is None else quantity.units_of
        self.check_text(units_of)
        described = self.meta["texts"][text]["layers"][self.texts[text].layers.index(layer)]
        edges = []
        for axis, size in (("queries", layer.shape[2]), ("keys", layer.shape[3])):
            units = self.units(units_of).get(described[f"{axis}_of"])
            first = described[f"{axis}_from"]
            if units is None or first is None or units[quantity.units][-1] < first + size:
                raise KeyError(f"units: the {quantity.units} of text {units_of} are not known for this layer")
            edges.append(axis_edges(units[quantity.units], first, size))
        return AxisEdges(*edges)

    def shades(self, text: int) -> list[Shade]:
        """Return what the cells of a text's maps can stand for."""
        self.check_text(text)
        return contributions.available_shades(self.texts[text])

    def factors(self, text: int, layer: str | int, quantity: Quantity) -> Tensor:
        """Return what multiplies the weights of each key in maps of contributions, (1, H, S)."""
        chosen, capture = self.layer(text, layer), self.texts[text]
        self._check_shade(text, quantity)

        def compute() -> Tensor:
            if quantity.shade == "values":
                factors = contributions.value_factors(capture, chosen, self.batch_index)
            else:
                factors = contributions.logit_factors(self._attribution(text, quantity), chosen)
            run = self.edited.get(text)
            return factors if run is None else contributions.without_cut_heads(factors, chosen, run.cuts)

        name = (text, chosen.key, quantity._replace(units="tokens", units_of=None))
        return self._factors.get(name, compute)

    def attribution(self, text: int, quantity: Quantity) -> dict[str, Any]:
        """Return where the logit of a token after a position comes from (see `contributions`)."""
        self._check_shade(text, quantity._replace(shade="logit"))
        token, capture = self._predicted(text, quantity), self.texts[text]
        others = contributions.candidates(
            capture, self.batch_index, -1 if quantity.position is None else quantity.position
        )
        chosen = next((one for one in others if one["id"] == token), None)
        if chosen is None:  # likely elsewhere, as in the model's own run of an edited text
            chosen = {"id": token, "token": self._word(token), "probability": None}
            others = [*others, chosen]
        found = self._attribution(text, quantity)
        return contributions.describe_attribution(found, capture, chosen, others)

    def _predicted_at(self, text: int) -> dict[str, Any] | None:
        """Return the position whose next token is explained first, and what positions and tokens there are.

        None stands for all of them; without contributions to a logit there is nothing to return.
        """
        if "logit" not in self.shades(text):
            return None
        start = contributions.telling_position(self.texts[text], self.batch_index)
        return {"start": start, "positions": None, "tokens": None}

    def _attribution(self, text: int, quantity: Quantity) -> Attribution:
        position, token = quantity.position, self._predicted(text, quantity)
        return self._attributions.get(
            (text, position, token),
            lambda: self.texts[text].attribution(
                token, position=-1 if position is None else position, batch=self.batch_index
            ),
        )

    def _predicted(self, text: int, quantity: Quantity) -> int:
        """Return the id of the token that a quantity names, or of the likeliest one."""
        predictions = self.texts[text].predictions
        assert predictions is not None
        T = predictions.likeliest.shape[1]
        position = T - 1 if quantity.position is None else quantity.position
        if not 0 <= position < T:
            raise KeyError(f"position: expected a number from 0 to {T - 1}, got {position}")
        if quantity.token is not None:
            residual = self.texts[text].residual
            assert residual is not None
            assert residual.unembedding is not None
            if not 0 <= quantity.token < (V := len(residual.unembedding.weight)):
                raise KeyError(f"token: expected an id from 0 to {V - 1}, got {quantity.token}")
            return quantity.token
        return int(predictions.likeliest[self.batch_index, position, 0])

    def _word(self, token: int) -> str:
        """Return the text of a token that is likely somewhere in a text, or its id."""
        known = [one.predictions for one in self.texts if one.predictions is not None]
        return next((one for one in known if token in one.words), known[0]).word(token)

    def _check_shade(self, text: int, quantity: Quantity) -> None:
        """KeyError unless a text's capture has what a quantity needs."""
        if quantity.shade not in (shades := self.shades(text)):
            raise KeyError(
                f"shade: expected one of {', '.join(shades)}, got {quantity.shade!r}: capture with "
                "contributions=True and predictions=True"
            )

    def units(self, text: int) -> dict[str, dict[str, list[int]]]:
        """Return where the words and sentences of a text begin, by its lists of tokens (see `units`)."""
        self.check_text(text)
        if text not in self._units:
            capture = self.texts[text]
            lists = {"tokens": capture.tokens, "target_tokens": capture.target_tokens}
            self._units[text] = {
                name: text_units(tokens[self.batch_index])
                for name, tokens in lists.items()
                if tokens and tokens[self.batch_index]
            }
        return self._units[text]

    def telling(self, text: int) -> int:
        """Return the query of a text that a reader sees first, in the head that they see first."""
        self.check_text(text)
        if text not in self._telling:
            capture = self.texts[text]
            layers = {str(layer.key): layer for layer in capture.layers}
            key, head = self.start or ("", -1)
            layer = layers.get(key, capture.layers[0])
            h = layer.heads.index(head) if head in layer.heads else 0
            lists = token_lists(capture, self.batch_index)
            axes = find_axis_tokens(layer, lists, patch_axes(capture, layer.key))
            try:
                m = for_display(self.layer_map(text, layer.key)[:, h : h + 1])
                self._telling[text] = telling_query(m, axes.queries, axes.keys)
            except (OSError, ValueError):  # damaged files: whoever asks for their numbers is told
                self._telling[text] = layer.shape[2] - 1
        return self._telling[text]

    def thumbnail(self, text: int, layer: str | int) -> Thumbnail:
        """Return a layer's thumbnails, one for each head, and the heads' sinks."""
        chosen = self.layer(text, layer)
        key = (text, str(chosen.key))
        if key not in self._thumbnails:
            m = for_display(self.layer_map(*key))
            self._thumbnails[key] = thumbnails.thumbnail(m, self._is_token(text, chosen))
        return self._thumbnails[key]

    def _is_token(self, text: int, layer: Layer) -> Tensor | None:
        """Return which keys of a layer are tokens and not padding, (S,); None if all are, or not known."""
        capture = self.texts[text]
        ids, mask = capture.ids_of(layer), capture.attention_mask
        return None if mask is None or ids is None or ids.shape != mask.shape else mask[self.batch_index]

    def steps(self, text: int, layer: str | int, head: int, row: int) -> dict[str, Any]:
        """Return the whole computation of one query's output, step by step (see `row_steps`)."""
        chosen, m, values = self.head_map(text, layer, head)
        if isinstance(m, LinearAttentionMap):
            raise KeyError(f"layer {chosen.key}: the steps of softmax attention are not those of a {m.kind}")
        return row_steps.trace_row(m, values, row, H=chosen.shape[1], G=chosen.settings.kv_heads)

    def heads(self, text: int) -> list[dict[str, Any]]:
        """Return the scores of every head on a text, each with a sentence (see `head_rows`)."""
        self.check_text(text)
        return [row for layer in self.texts[text].layers for row in self.layer_heads(text, layer.key)]

    def layer_heads(self, text: int, layer: str | int) -> list[dict[str, Any]]:
        """Return the scores of the heads of one layer on a text."""
        chosen = self.layer(text, layer)
        scored = self._heads.setdefault(text, TextHeads(self.texts[text], self.batch_index))
        return scored.rows(chosen, for_display(self.layer_map(text, chosen.key)))

    def prediction(self, text: int, position: int) -> dict[str, Any]:
        """Return what the model expects after a token of a text (see `predictions`)."""
        self.check_text(text)
        capture = self.texts[text]
        return predictions.prediction(capture.predictions, self.batch_index, self._tokens(text), position)

    def _tokens(self, text: int) -> list[str] | None:
        tokens = self.texts[text].tokens
        return None if tokens is None else tokens[self.batch_index]

    def retained(self, text: int, layer: str | int) -> LayerTable:
        """Return what cache policies keep of every head of a layer (see `retention`)."""
        key = str(self.layer(text, layer).key)
        return self._retain(text, [key])[key]

    def record_retention(self) -> None:
        """Measure cache policies on all texts, for a page without Python; a model of many layers has none."""
        for text, capture in enumerate(self.texts):
            if len(capture.layers) <= retention.MOST_LAYERS:
                self.retention[text] = self._retain(text, [str(layer.key) for layer in capture.layers])
        self.forget_meta()

    def _retain(self, text: int, keys: list[str]) -> dict[str, LayerTable]:
        """Return the tables of some layers, of which those that are not known yet are measured together."""
        known = self._retained.get(text, {}) | self.retention.get(text, {})
        new = [self.layer(text, key) for key in keys if key not in known]
        maps = ((layer.key, layer.heads, self.layer_map(text, str(layer.key))) for layer in new)
        measured = retention.measure_layers(maps)
        self._retained.setdefault(text, {}).update(measured)
        return {key: (known | measured)[key] for key in keys}

    def _find_telling_head(self) -> tuple[str, int] | None:
        """Return the layer key and number of the most telling head of the first text."""
        capture = self.texts[0]
        step = 1 + capture.nbytes // MOST_SAMPLED  # some layers of a capture that would take long to read
        layers = capture.layers[::step]
        found = None
        if (pictures := capture.pictures) is not None and capture.ids is None:
            entry = self.batch_index
            towers = ((self.layer_map(0, one.key), pictures.tower_axes(one.key, entry)) for one in layers)
            found = find_selective_head(towers)
        if found is None:
            samples = ((self.layer_map(0, layer.key), self._key_ids(0, layer)) for layer in layers)
            found = find_telling_head(samples)
        if found is None:
            return None
        layer = layers[found[0]]
        return str(layer.key), layer.heads[found[1]]

    def _key_ids(self, text: int, layer: Layer) -> Tensor | None:
        """Return the ids of a layer's keys, (S,); None if they are unknown or the queries' are others."""
        ids = self.texts[text].ids_of(layer)
        if ids is None or layer.stack == "cross" or ids.shape[1] != layer.shape[3]:
            return None
        return ids[self.batch_index]

    def _mean(
        self,
        text: int,
        layer: str | int,
        head: int | str,
        quantity: Quantity,
        read: Callable[[ShownMap, AxisEdges], Tensor],
    ) -> Tensor:
        """Average what `read` gives, (heads, n), over the named head and layer, or over all where "mean".

        Contributions to a logit are added up instead.
        """
        self.check_text(text)
        layers = self.texts[text].layers if layer == "mean" else [self.layer(text, layer)]
        number = None if head == "mean" else _number("head", head)
        total, count = torch.zeros((), device="cpu"), 0
        for chosen in layers:
            m = self._quantity_map(text, chosen, number, quantity)
            m = for_display(m) if number is None else m
            entries = read(m, self._edges(text, chosen, quantity))  # (H or 1, n)
            if total.shape and entries.shape[-1] != total.shape[-1]:
                raise ValueError("layer: the layers have different lengths, so their mean is not defined")
            total, count = total + entries.sum(0), count + len(entries)
        return total if quantity.shade == "logit" else total / count

    def check_text(self, text: int) -> None:
        """Raise KeyError if there is no text with this number; `RemovedTextError` if there was one."""
        if not 0 <= text < len(self.texts):
            raise KeyError(f"text: expected a number from 0 to {len(self.texts) - 1}, got {text!r}")
        if text in self.removed:
            raise RemovedTextError(f"text: number {text} was removed or replaced: reload the page")

    def _text(self, number: int) -> dict[str, Any]:
        capture = self.texts[number]
        lists = token_lists(capture, self.batch_index)
        return {
            "title": self.titles[number],
            "model": capture.model,
            **lists,
            "pictures": describe_pictures(capture, self.batch_index),
            "boundary": capture.boundary,
            "copies": {
                "tokens": first_copies(capture.ids, self.batch_index),
                "target_tokens": first_copies(capture.target_ids, self.batch_index),
            },
            "layers": [
                describe_layer(layer, evidence, lists, patch_axes(capture, layer.key))
                for layer, evidence in zip(capture.layers, capture.certificate, strict=True)
            ],
            "spans": {} if number in self.removed else self.units(number),
            "shades": contributions.available_shades(capture),
            "predicted": None if number in self.removed else self._predicted_at(number),
            "telling": None if number in self.removed else self.telling(number),
            "missing": [{"name": name, "kind": kind} for name, kind in capture.missing.items()],
            "others": [{"name": name, "kind": kind} for name, kind in capture.other_mixers.items()],
            "predictions": predictions.summary(capture.predictions, self.batch_index),
            "edited": self._edited(number),
            "removed": number in self.removed,
        }

    def _edited(self, number: int) -> dict[str, Any] | None:
        """Describe what an edited run is of, and what changed; None for the model's own.

        A capture that was made under an intervention elsewhere has no text beside it, and `edits` in words.
        """
        capture = self.texts[number]
        if number not in self.edited:
            if not capture.edits:
                return None
            return {"text": None, "cuts": [], "edits": list(capture.edits), "changes": None}
        run = self.edited[number]
        before, after = self.texts[run.text].predictions, capture.predictions
        return {
            "text": run.text,
            "cuts": [cut.to_data() for cut in run.cuts],
            "edits": list(capture.edits),
            "changes": predictions.changes(before, after, self.batch_index),
            "random": run.random,
        }


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


def _number(name: str, value: int | str) -> int:
    if not isinstance(value, int):
        raise KeyError(f'{name}: expected a number or "mean", got {value!r}')
    return value
