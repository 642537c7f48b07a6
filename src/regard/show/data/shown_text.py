"""One text of the page: what heads do on it, what the model expected, and its description as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder import Capture, Layer
from regard.show.data import contributions, predictions, retention, row_steps
from regard.show.data.head_rows import TextHeads
from regard.show.data.layer_description import describe_layer
from regard.show.data.map_view import thumbnails
from regard.show.data.map_view.display_precision import for_display
from regard.show.data.map_view.thumbnails import Thumbnail
from regard.show.data.patch_tokens import describe_pictures, patch_axes, token_lists
from regard.show.data.retention import LayerTable
from regard.show.data.text_maps import MapCaches, TextMaps
from regard.spans.text_spans import is_special

CANDIDATES = 128  # queries that are compared, spread over the text
SINK_SHARE = 0.25  # of the attention of the candidates, above which a key counts as a sink


class ShownText(TextMaps):
    """A captured text, prepared for display."""

    title = ""
    is_removed = False
    _heads: TextHeads | None = None
    _telling: int | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._thumbnails: dict[str, Thumbnail] = {}
        self._retained: dict[str, LayerTable] = {}

    @property
    def tokens(self) -> list[str] | None:
        """The tokens that the model read; None if they are not known."""
        tokens = self.capture.tokens
        return None if tokens is None else tokens[self.batch_index]

    def discard(self) -> None:
        """Free what was captured and computed: the text is gone, and its number is not used again."""
        self.is_removed, self.run = True, None
        self.capture = Capture(model=self.capture.model)
        self._heads = self._telling = self._units = None
        self._thumbnails, self._retained = {}, {}
        self._caches = MapCaches()

    def thumbnail(self, key: str | int) -> Thumbnail:
        """Return a layer's thumbnails, one for each head, and the heads' sinks."""
        chosen = self.layer(key)
        name = str(chosen.key)
        if name not in self._thumbnails:
            m = for_display(self.layer_map(name))
            self._thumbnails[name] = thumbnails.thumbnail(m, self._is_token(chosen))
        return self._thumbnails[name]

    def _is_token(self, layer: Layer) -> Tensor | None:
        """Return which keys of a layer are tokens and not padding, (S,); None if all are, or not known."""
        ids, mask = self.capture.ids_of(layer), self.capture.attention_mask
        return None if mask is None or ids is None or ids.shape != mask.shape else mask[self.batch_index]

    def steps(self, key: str | int, head: int, row: int) -> dict[str, Any]:
        """Return the whole computation of one query's output, step by step (see `row_steps`)."""
        chosen, m, values = self.head_map(key, head)
        if isinstance(m, LinearAttentionMap):
            raise KeyError(f"layer {chosen.key}: the steps of softmax attention are not those of a {m.kind}")
        return row_steps.trace_row(m, values, row, H=chosen.shape[1], G=chosen.settings.kv_heads)

    def heads(self) -> list[dict[str, Any]]:
        """Return the scores of every head, each with a sentence (see `head_rows`)."""
        return [row for layer in self.capture.layers for row in self.layer_heads(layer.key)]

    def layer_heads(self, key: str | int) -> list[dict[str, Any]]:
        """Return the scores of the heads of one layer."""
        chosen = self.layer(key)
        self._heads = self._heads or TextHeads(self.capture, self.batch_index)
        return self._heads.rows(chosen, for_display(self.layer_map(chosen.key)))

    def prediction(self, position: int) -> dict[str, Any]:
        """Return what the model expects after a token (see `predictions`)."""
        return predictions.prediction(self.capture.predictions, self.batch_index, self.tokens, position)

    def retained(self, keys: Sequence[str | int]) -> dict[str, LayerTable]:
        """Return what cache policies keep of some layers, measured together (see `retention`)."""
        layers = [self.layer(key) for key in keys]
        known = dict(self._retained)
        new = [layer for layer in layers if str(layer.key) not in known]
        measured = retention.measure_layers(
            (layer.key, layer.heads, self.layer_map(layer.key)) for layer in new
        )
        self.keep_retained(measured)
        return {str(layer.key): (known | measured)[str(layer.key)] for layer in layers}

    def layer_retained(self, key: str | int) -> LayerTable:
        """Return what cache policies keep of every head of a layer."""
        try:
            (table,) = self.retained([key]).values()
        except KeyError:
            if not self.is_removed:
                raise
            # An edited run may be undone while a request for its caches waits: no mistake of the page.
            return {"why": "This run was undone before its caches were measured."}
        return table

    def keep_retained(self, tables: dict[str, LayerTable]) -> None:
        """Keep tables that were measured already, by layer."""
        self._retained |= tables

    def telling(self, start: tuple[str, int] | None) -> int:
        """Return the query that a reader sees first, in the head that they see first."""
        if self._telling is None:
            layers = {str(layer.key): layer for layer in self.capture.layers}
            key, head = start or ("", -1)
            layer = layers.get(key, self.capture.layers[0])
            h = layer.heads.index(head) if head in layer.heads else 0
            axes = self.tokens_of(layer)
            try:
                m = for_display(self.layer_map(layer.key)[:, h : h + 1])
                self._telling = telling_query(m, axes.queries, axes.keys)
            except (OSError, ValueError):  # damaged files: whoever asks for their numbers is told
                self._telling = layer.shape[2] - 1
        return self._telling

    def describe(self, start: tuple[str, int] | None) -> dict[str, Any]:
        """Describe the text as plain data; `start` is the head that a reader sees first."""
        capture, entry = self.capture, self.batch_index
        lists = token_lists(capture, entry)
        shades = self.shades()
        there = not self.is_removed
        # After which position a token is explained first, and for which positions and tokens; None for all.
        predicted: dict[str, Any] | None = None
        if there and "logit" in shades:
            start_at = contributions.telling_position(capture, entry)
            predicted = {"start": start_at, "positions": None, "tokens": None}
        return {
            "title": self.title,
            "model": capture.model,
            **lists,
            "pictures": describe_pictures(capture, entry),
            "boundary": capture.boundary,
            "layers": [
                describe_layer(layer, evidence, lists, patch_axes(capture, layer.key))
                for layer, evidence in zip(capture.layers, capture.certificate, strict=True)
            ],
            "spans": self.units() if there else {},
            "shades": shades,
            "predicted": predicted,
            "telling": self.telling(start) if there else None,
            "missing": [{"name": name, "kind": kind} for name, kind in capture.missing.items()],
            "others": [{"name": name, "kind": kind} for name, kind in capture.other_mixers.items()],
            "predictions": predictions.summary(capture.predictions, entry),
            "edited": self._edited(),
            "removed": self.is_removed,
        }

    def _edited(self) -> dict[str, Any] | None:
        """Describe what an edited run is of, and what changed; None for the model's own.

        A capture that was made under an intervention elsewhere has no text beside it, and `edits` in words.
        """
        edits = list(self.capture.edits)
        if self.run is None:
            return {"text": None, "cuts": [], "edits": edits, "changes": None} if edits else None
        before = self._texts[self.run.text].capture.predictions
        return {
            "text": self.run.text,
            "cuts": [cut.to_data() for cut in self.run.cuts],
            "edits": edits,
            "changes": predictions.changes(before, self.capture.predictions, self.batch_index),
            "random": self.run.random,
        }


def telling_query(
    m: AttentionMap | LinearAttentionMap, queries: Sequence[str] | None, keys: Sequence[str] | None
) -> int:
    """Return the query of a head that says most: its strongest edge is to a word that is no sink.

    Line ends, spaces, punctuation and special tokens are taken only if the text has nothing else.

    Arguments:
        m: one head's map, (1, 1, T, S).
        queries: the tokens of the queries; None if they are not known.
        keys: the tokens of the keys, likewise.
    """
    _, _, T, S = m.matrix
    words = {token for token in {*(queries or ()), *(keys or ())} if _is_word(token)}
    positions = [t for t in range(T) if queries is None or queries[t] in words]
    # The first quarter has little before it to attend to.
    positions = [t for t in positions if t >= T // 4] or positions or [T - 1]
    candidates = positions[:: -(-len(positions) // CANDIDATES)]
    rows = torch.tensor(candidates, device=m.device)
    # abs: weights of linear layers have either sign.
    weights = m.tile(rows).reshape(len(candidates), S).abs().float().cpu()  # (n, S)
    mean = weights.mean(0)
    # Keys that say nothing: the first, a sink, the query itself, and what is no word.
    weights[:, mean > SINK_SHARE] = 0
    # The first key is the sink of most models, also where its mean stays below the limit.
    weights[:, 0] = 0
    own = (rows.cpu() + S - T).clamp(0, S - 1)
    weights[torch.arange(len(candidates), device="cpu"), own] = 0
    if keys is not None:
        weights[:, torch.tensor([token not in words for token in keys], device="cpu")] = 0
    return candidates[int(weights.amax(1).argmax())]


def _is_word(token: str) -> bool:
    """Whether a token has letters or digits and is no special token.

    >>> [_is_word(token) for token in (" cat", "7", "\\n", ".", "<s>", "")]
    [True, True, False, False, False, False]
    """
    return any(x.isalpha() or x.isdecimal() for x in token) and not is_special(token)
