"""The scores of a text's heads, layer by layer as the page requests them.

What layers of one shape and mask have in common, such as their baselines, is computed once. This file knows
captures and the head table; it does not know the page.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.heads import HeadRow, describe
from regard.heads.measures.query_scores import TextScorer
from regard.heads.tables.head_sentence import describe_head
from regard.heads.tables.outliers import find_outlier_keys
from regard.maps import AttentionMap, LinearAttentionMap
from regard.recorder import Capture, Layer
from regard.show.data.layer_description import find_axis_tokens
from regard.show.data.patch_tokens import is_patch, patch_axes, token_lists


class TextHeads:
    """The scores of every head on one text, computed when a layer is first requested.

    Arguments:
        capture: the text's capture.
        batch_index: which entry of its batch is scored.
        first: how many tokens the maps have that are scored; all if None.
    """

    def __init__(self, capture: Capture, batch_index: int, first: int | None = None) -> None:
        self.capture, self._first = capture, first
        self._entry = slice(batch_index, batch_index + 1)
        self._ids: dict[int, Tensor] = {}  # layers that read the same tokens share one tensor
        self._scorers: list[TextScorer] = []  # and one scorer
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()  # a layer that two requests want is scored once

    def rows(self, layer: Layer, m: AttentionMap | LinearAttentionMap) -> list[dict[str, Any]]:
        """Return the scores of a layer's heads: the rows of `regard.heads.describe`, as plain data.

        Arguments:
            layer: a layer of the capture.
            m: its map, (1, H, T, S).
        """
        with self._lock:
            if (key := str(layer.key)) not in self._rows:
                self._rows[key] = self._describe(layer, key, m, layer.heads)
            return self._rows[key]

    def row(self, layer: Layer, m: AttentionMap | LinearAttentionMap, head: int) -> dict[str, Any]:
        """Return the scores of one head alone, from its map m, (1, 1, T, S)."""
        return self._describe(layer, str(layer.key), m, (head,))[0]

    def _describe(
        self, layer: Layer, key: str, m: AttentionMap | LinearAttentionMap, heads: Sequence[int]
    ) -> list[dict[str, Any]]:
        ids, mask = self.capture.ids_of(layer), self.capture.attention_mask
        pictures = self.capture.pictures
        if ids is not None:
            # By the id of the tensor: slices of equal values would be different tensors, and the scorers
            # compare by identity.
            ids = self._ids.setdefault(id(ids), ids[self._entry, : self._first])
        table = describe(
            [m],
            [ids],
            keys=[key],
            heads=[heads],
            attention_mask=None if mask is None else mask[self._entry, : self._first],
            scorers=self._scorers,
            patches=None if pictures is None else [pictures.tower_axes(layer.key, self._entry.start)],
        ).with_token_texts(self.capture.token_text)
        # The page knows a layer by its key.
        rows = [
            {**data, "layer": key, "sentence": describe_head(row, self._sink_token(layer, row))}
            for row, data in zip(table, table.to_data(), strict=True)
        ]
        patches = is_patch(self.capture, layer, self._entry.start)
        if patches is not None:
            means = m.received()[0] / m.matrix[2]  # (H, S)
            for row, mean, keys in zip(rows, means, find_outlier_keys(means, patches), strict=True):
                row["outliers"] = [[key, float(mean[key])] for key in keys]
        return rows

    def _sink_token(self, layer: Layer, row: HeadRow) -> str | None:
        """Return the text of the token that is a head's sink key, if it is known."""
        lists = token_lists(self.capture, self._entry.start)
        keys = find_axis_tokens(layer, lists, patch_axes(self.capture, layer.key)).keys
        return None if row.sink_key is None or keys is None else keys[row.sink_key]
