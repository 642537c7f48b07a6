"""Which heads of a model an edit changes: by layer and head, by a table of heads, or by a label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regard.attention.arguments import check_whole_number
from regard.heads.repeated_tokens import draw_repeats
from regard.heads.tables.description import study
from regard.heads.tables.table import HeadRow, HeadTable
from regard.heads.tables.table_text import check_label
from regard.recorder.capture_block import capture
from regard.recorder.layer import LayerId
from regard.recorder.model_inputs import context_length
from regard.recorder.sources.structure_of_models.model_parts import original_model

Layer = int | str
"""A layer's number, its key such as "decoder.3", or the name of its module."""
HeadPair = tuple[Layer, int]
Heads = str | HeadTable | HeadRow | Iterable[HeadRow | HeadPair]
"""A label, a table of heads, or pairs (layer, head)."""


@dataclass(frozen=True)
class HeadSelection:
    """Some heads of some layers: by layer, their numbers, or None for all heads of the layer."""

    layers: tuple[tuple[str, tuple[int, ...] | None], ...] = ()
    label: str | None = None
    """A label whose heads are found when the model is known."""
    everything: bool = False
    """Whether all heads of all layers are selected, whichever the model has."""

    def heads_in(self, layer_id: LayerId, H: int) -> list[int]:
        """Return the selected heads of a layer that has H of them; a ValueError names one that it has not."""
        selected: set[int] = set(range(H)) if self.everything else set()
        for layer, heads in self.layers:
            if layer in (str(layer_id.key), layer_id.name):
                selected.update(range(H) if heads is None else heads)
        if outside := [head for head in selected if head >= H]:
            raise ValueError(
                f"head: expected a head of layer {layer_id.key}, from 0 to {H - 1}, got {outside[0]}"
            )
        return sorted(selected)

    def has_layer(self, layer_id: LayerId) -> bool:
        """Whether some head of a layer is selected."""
        return self.everything or any(layer in (str(layer_id.key), layer_id.name) for layer, _ in self.layers)

    def resolved(self, model: nn.Module) -> HeadSelection:
        """Return the selection with its label replaced by the heads of a model that earn it."""
        return self if self.label is None else select_heads(heads=labelled_heads(model, self.label))

    def __str__(self) -> str:
        if self.label is not None:
            return f"the heads labelled {self.label}"
        if self.everything:
            return "all layers"
        places = [
            f"layer {layer}" if heads is None else ", ".join(f"{layer}.{head}" for head in heads)
            for layer, heads in self.layers
        ]
        pairs = [heads for _, heads in self.layers if heads is not None]
        several = "heads " if sum(map(len, pairs)) > 1 else "head "
        return (several if len(pairs) == len(self.layers) else "") + ", ".join(places)


def select_heads(
    layer: Layer | None = None, head: int | Sequence[int] | None = None, heads: Heads | None = None
) -> HeadSelection:
    """Select heads by `layer` and `head` (None is all heads of the layer), or by `heads`."""
    if heads is not None:
        if layer is not None or head is not None:
            raise ValueError("heads: expected either layer and head or heads, got both")
        if isinstance(heads, str):
            return HeadSelection(label=check_label(heads))
        if not isinstance(heads, HeadRow | Iterable):
            raise ValueError(
                f"heads: expected a label, a table of heads or pairs (layer, head), got {heads!r}: write "
                "layer and head for one"
            )
        rows = [heads] if isinstance(heads, HeadRow) else list(heads)
        by_layer: dict[str, set[int]] = {}
        for row in rows:
            key, number = (row.key, row.head) if isinstance(row, HeadRow) else _pair(row)
            by_layer.setdefault(str(key), set()).add(number)
        if not by_layer:
            raise ValueError("heads: expected at least one head, got none")
        return HeadSelection(tuple((key, tuple(sorted(numbers))) for key, numbers in by_layer.items()))
    if layer is None:
        raise ValueError("layer: expected a layer's number or key, or heads=[(layer, head), …], got neither")
    if isinstance(layer, bool) or not isinstance(layer, int | str):
        raise ValueError(f"layer: expected a number or a key such as 'decoder.3', got {type(layer).__name__}")
    if head is None:
        return HeadSelection(((str(layer), None),))
    several: Any = [head] if isinstance(head, int) else head
    if isinstance(several, str) or not isinstance(several, Sequence) or not several:
        raise ValueError(f"head: expected a head's number, several, or None for all, got {head!r}")
    return HeadSelection(((str(layer), tuple(sorted({check_whole_number("head", x, 0) for x in several}))),))


def _pair(pair: Any) -> tuple[Layer, int]:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], int | str):
        raise ValueError(f"heads: expected a label, a table of heads or pairs (layer, head), got {pair!r}")
    return pair[0], check_whole_number("head", pair[1], 0)


def labelled_heads(model: nn.Module, label: str) -> HeadTable:
    """Return the heads of a model that earn a label on random tokens that are repeated."""
    model = original_model(model)
    vocab_size = getattr(getattr(model, "config", None), "vocab_size", None)
    if vocab_size is None:
        raise ValueError(
            f"heads: the label {label!r} needs a model with config.vocab_size, to read random tokens: pass "
            f"heads=seen.heads().where(label={label!r}), from a capture of your text"
        )
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    keys: list[int | str] = []

    def run(ids: torch.Tensor) -> Any:
        seen = capture(model, inputs=(ids.to(device),))
        keys[:] = [layer.key for layer in seen.layers]
        return seen.maps

    limit = context_length(model)
    texts = draw_repeats(vocab_size, None, max_length=limit)
    run(texts[:1])  # for the keys of the layers
    table = study(run, texts, vocab_size, shuffle=False, max_length=limit, keys=keys)
    rows = table.where(label=label)
    if not len(rows):
        raise ValueError(f"heads: expected a label that some head earns, but none is labelled {label!r}")
    return rows
