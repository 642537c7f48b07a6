"""The data behind the page, for one or more captures: the same for the server and for the saved file.

`meta` describes everything as JSON can hold it; weights are computed when they are requested, of the text
that an index gives: `contents[0].row("3", 5, 120)`. Texts are numbered from 0. This file knows captures; it
knows neither models nor how the page draws.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from torch import Tensor

from regard.heads import SurveyResult, labels
from regard.heads.measures import query_scores, sink
from regard.heads.tables import head_sentence
from regard.heads.tables.score_words import SCORE_WORDS
from regard.heads.telling_head import find_selective_head, find_telling_head
from regard.policies import RetentionCurve
from regard.recorder import Capture, Layer
from regard.show.data import retention, row_steps
from regard.show.data.map_view import thumbnails, tiles
from regard.show.data.retention import LayerTable
from regard.show.data.shown_text import ShownText
from regard.show.data.stage_example import build_example
from regard.show.data.survey_rows import describe_survey
from regard.show.data.text_maps import EditedRun
from regard.show.data.titles import distinct_title, title_of_tokens
from regard.support.characters import ABBREVIATIONS

MOST_SAMPLED = 4 << 30  # bytes of a capture up to which every layer is read to find its most telling head


class RemovedTextError(KeyError):
    """A text that was there and is not any more, as an edited run that another one has replaced."""


class Texts(list[ShownText]):
    """The texts of a page by their numbers; KeyError says which numbers there are."""

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise KeyError(f"text: expected a number from 0 to {len(self) - 1}, got {number!r}")
        text = super().__getitem__(number)
        if text.is_removed:
            raise RemovedTextError(f"text: number {number} was removed or replaced: reload the page")
        return text


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
        self._texts = Texts()
        self.batch_index, self.can, self.time, self.generation = batch_index, can or {}, time, generation
        self.survey = survey
        self.lookup: dict[str, Any] | None = None
        """What `record_lookup` recorded, for a page without a model."""
        self.retention: dict[int, dict[str, LayerTable]] = {}
        """What cache policies keep, by text and layer, for a page without Python; see `record_retention`."""
        self.left_out: list[str] = []
        """The heads that a page leaves out to stay small, as "4.0"; see `kept_heads`."""
        captures = [captures] if isinstance(captures, Capture) else list(captures)
        for number, capture in enumerate(captures):
            self.add(capture, titles[number] if titles else None)
        if not self._texts:
            raise ValueError("captures: expected at least one capture to show, got none")
        if retained is not None:
            curve, first = retention.check_curve(retained, captures[0]), captures[0]
            linear = ((layer.key, layer.heads, layer.map) for layer in first.layers if layer.is_linear)
            tables = retention.describe_curve(curve, first.layers[0].shape[3])
            self.retention[0] = tables | retention.measure_layers(linear)
            self[0].keep_retained(self.retention[0])
        self._start = start

    def __getitem__(self, text: int) -> ShownText:
        """Return a text by its number; `RemovedTextError` for one that is gone."""
        shown: ShownText = self._texts[text]
        return shown

    @property
    def texts(self) -> list[Capture]:
        """The captures of all texts; those of texts that are gone are empty."""
        return [text.capture for text in self._texts]

    @property
    def titles(self) -> list[str]:
        """The titles of all texts."""
        return [text.title for text in self._texts]

    @property
    def edited(self) -> dict[int, EditedRun]:
        """The texts that are edited runs, by their numbers."""
        return {text.number: text.run for text in self._texts if text.run is not None}

    @property
    def removed(self) -> set[int]:
        """The numbers of texts and edited runs that are gone: a number is never used again."""
        return {text.number for text in self._texts if text.is_removed}

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
            number = len(self._texts)
            text = ShownText(capture, number, self.batch_index, self._texts, edited)
            kind = "picture" if capture.pictures is not None and capture.ids is None else "text"
            title = title or title_of_tokens(text.tokens or []) or f"{kind} {number + 1}"
            text.title = title if edited is not None else distinct_title(title, self.titles)
            earlier = [n for n, run in self.edited.items() if edited is not None and run.text == edited.text]
            self._texts.append(text)
            for run in earlier:
                self.remove(run)
            self.forget_meta()
            return number

    def remove(self, number: int) -> int:
        """Remove a text with its edited run, or an edited run alone, and return which text to show next.

        Its number is not used again. Raises ValueError for the last text.
        """
        with self._lock:
            run = self[number].run
            others = [one.number for one in self._texts if one.run is None and not one.is_removed]
            others = [one for one in others if one != number]
            if not others:
                raise ValueError("text: expected another text beside the one to remove, got the last one")
            for gone in [number, *(n for n, other in self.edited.items() if other.text == number)]:
                self[gone].discard()
                self.retention.pop(gone, None)
            self.forget_meta()
        return others[0] if run is None else run.text

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
        T, S = self[0].layer(start["layer"]).shape[2:]
        z = max(0, tiles.level_count(T, S) - 2)  # two by two tiles at most
        high, wide = tiles.tile_counts(T, S, z)
        for i, j in product(range(high), range(wide)):
            self[0].tile(start["layer"], start["head"], z, i, j)

    def with_captures(self, captures: Sequence[Capture], start: tuple[str, int] | None) -> Contents:
        """Return the same page with other captures of its texts, opened on a head."""
        again = Contents(
            captures,
            batch_index=self.batch_index,
            titles=self.titles,
            can=self.can,
            time=self.time,
            generation=self.generation,
            survey=self.survey,
            start=start,
        )
        again.retention = self.retention
        return again

    def forget_meta(self) -> None:
        """Let `meta` be made anew, since something that it describes has changed."""
        with self._lock:
            self._meta = None

    def _describe(self) -> dict[str, Any]:
        layers = [layer for capture in self.texts for layer in capture.layers if not layer.is_linear]
        values = all(layer.settings.value_width is not None for layer in layers)  # for the steps of softmax
        offered = {"generate": False, "capture": False, "cut": False, "retained": bool(self.retention)}
        return {
            "model": self.texts[0].model,
            "texts": [text.describe(self.start) for text in self._texts],
            "can": {**offered, **self.can, "values": values},
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
            "measures": _measures(),
        }

    def record_retention(self) -> None:
        """Measure cache policies on all texts, for a page without Python; a model of many layers has none."""
        for text in self._texts:
            keys = [layer.key for layer in text.capture.layers]
            if len(keys) <= retention.MOST_LAYERS:
                self.retention[text.number] = text.retained(keys)
        self.forget_meta()

    def _find_telling_head(self) -> tuple[str, int] | None:
        """Return the layer key and number of the most telling head of the first text."""
        [text, *_] = self._texts
        capture = text.capture
        step = 1 + capture.nbytes // MOST_SAMPLED  # some layers of a capture that would take long to read
        layers = capture.layers[::step]
        found = None
        if (pictures := capture.pictures) is not None and capture.ids is None:
            entry = self.batch_index
            towers = ((text.layer_map(one.key), pictures.tower_axes(one.key, entry)) for one in layers)
            found = find_selective_head(towers)
        if found is None:
            samples = ((text.layer_map(layer.key), self._key_ids(capture, layer)) for layer in layers)
            found = find_telling_head(samples)
        if found is None:
            return None
        layer = layers[found[0]]
        return str(layer.key), layer.heads[found[1]]

    def _key_ids(self, capture: Capture, layer: Layer) -> Tensor | None:
        """Return the ids of a layer's keys, (S,); None if they are unknown or the queries' are others."""
        ids = capture.ids_of(layer)
        if ids is None or layer.stack == "cross" or ids.shape[1] != layer.shape[3]:
            return None
        return ids[self.batch_index]


def _measures() -> dict[str, Any]:
    """Return the constants of scores, labels, sentences and thumbnails, for a page that computes them."""
    first, latest = query_scores.POLICY
    return {
        "near": query_scores.NEAR,
        "policy": {"first": first, "latest": latest},
        "min_queries": sink.MIN_QUERIES,
        "secondary": labels.SECONDARY,
        "margin": labels.MARGIN,
        "widening": labels.WIDENING,
        "wide": head_sentence.WIDE,
        "narrow": head_sentence.NARROW,
        "sampled": thumbnails.QUERIES,
        "most_weights": thumbnails.MOST_WEIGHTS,
    }
