"""From inside: the mask that each layer was heard to use, against the one that it should have.

What the layers of several ranks saw is joined into one reading of each layer, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import Window
from regard.attention.masks.tensor_masks import Documents
from regard.auditor.batch import TextBatch
from regard.auditor.cells import Cell, Cells, PlacedRows, are_equal, cells_beyond, on_cpu
from regard.auditor.expectation import Expectation, expect_layer, head_shares, rows_of
from regard.auditor.ranks import Ranks
from regard.recorder.capture_result import Capture
from regard.recorder.layer import Layer


@dataclass(frozen=True)
class LayerReading:
    """What one layer saw on a batch, and what it should have seen."""

    name: str
    """The module's name in the model."""
    key: int | str
    """Its key in a capture."""
    kind: str
    """"self", "encoder", "cross", or "other" for a layer whose tokens are not those of the batch."""
    mask: str
    """The mask that was heard."""
    expected: str
    """The mask that it should have; "" if that is not known."""
    certified: bool
    why: str = ""
    """Why it is not certified, or not judged."""
    wrong: dict[str, Cells] = field(default_factory=dict)
    """By question ("future", "documents", "padding", "window", "given"): the cells that it sees and should
    not. "hidden": the cells that it should see and does not."""
    shares: dict[str, Tensor] = field(default_factory=dict)
    """By question: the mean share of its attention that each head gives to those cells, (H,)."""
    window: int | None = None
    """The size of the window that was heard."""
    expected_window: int | None = None
    lost: tuple[str, ...] = ()
    """"sinks" or "softcap", which the model has and the layer's attention did not use."""
    sees_only_padding: bool = False
    hears_padding: bool = False
    """Whether the mask that was heard hides padding."""
    is_causal: bool = False
    is_linear: bool = False
    within_rank: bool = False
    """Whether its queries see the keys of their own rank only, where ranks hold parts of a text."""
    asked: tuple[str, ...] = ()
    """The questions that this layer answers."""
    heard_mask: Mask | None = field(default=None, repr=False)
    expected_mask: Mask | None = field(default=None, repr=False)
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    """(B, H, T, S)"""
    real: Tensor | None = field(default=None, repr=False)
    """Boolean (B, T), the queries that are no padding; None if all are."""

    @property
    def is_compared(self) -> bool:
        """Whether its mask is known, and is one of the batch's tokens."""
        return self.kind != "other" and self.certified


def read_layers(
    model: nn.Module, seen: Capture, batch: TextBatch, order: bool | None, expect: Mask | None, ranks: Ranks
) -> list[LayerReading]:
    """Return what each captured layer saw, on all ranks, and where that differs from what it should see."""
    known: dict[tuple[int, str], Cells] = {}  # layers mostly share their masks
    masks: list[Mask] = []
    readings = []
    for layer in seen.layers:
        heard, shape = _heard_mask(layer, batch, ranks)
        heard = next((mask for mask in masks if are_equal(mask, heard)), heard)
        # `known` is looked up by their ids, which are theirs only as long as they are kept.
        masks.append(heard)
        expected = expect_layer(model, layer, heard, shape, batch, order, expect)
        readings.append(read_layer(layer, heard, shape, expected, batch, known, ranks))
    return readings


def _heard_mask(layer: Layer, batch: TextBatch, ranks: Ranks) -> tuple[Mask, tuple[int, int, int, int]]:
    """Return the mask that a layer was heard to use, and its shape: of all rows, where ranks share them."""
    heard = layer.data().map
    assert heard is not None
    mask = on_cpu(heard.mask)
    B, H, rows, S = layer.shape
    T = batch.shape[1]
    if ranks.rows is None:
        return mask, layer.shape
    if layer.placement is not None and layer.placement.rows is not None:
        return mask, (B, H, T, T)
    if (rows, S) == (len(ranks.rows), T):  # each rank has gathered all keys itself
        return PlacedRows(mask, ranks.rows), (B, H, T, T)
    return mask, layer.shape


def read_layer(
    layer: Layer,
    heard: Mask,
    shape: tuple[int, int, int, int],
    expected: Expectation,
    batch: TextBatch,
    known: dict[tuple[int, str], Cells],
    ranks: Ranks,
) -> LayerReading:
    """Compare the mask of one layer with what it should see; `known` holds the cells of layers before it."""
    certified, why = layer.evidence.certified, layer.evidence.problem or ""
    if expected.kind == "other":
        why = "its queries and keys are not the tokens of the batch"
        return LayerReading(
            layer.name, layer.key, "other", str(heard), "", certified, why, heard_mask=heard, shape=shape
        )
    rows = rows_of(batch, expected.kind)
    if (own := ranks.own_rows(shape[2])) is not None:
        rows = own.expand(shape[0], -1) if rows is None else rows & own

    def beyond(question: str, mask: Mask, limit: Mask) -> Cells:
        at = (id(heard), f"{question} {expected.kind} {mask if mask is not heard else limit} {shape}")
        if at not in known:
            known[at] = cells_beyond(mask, limit, shape, rows)
        return known[at]

    parts = expected.parts()
    # What a linear layer keeps of padding and other documents may be 0, which its mask does not show.
    if layer.is_linear:
        parts = {name: part for name, part in parts.items() if name == "future"}
    wrong: dict[str, Cells] = {}
    shares: dict[str, Tensor] = {}
    for question, part in parts.items():
        if (cells := beyond(question, heard, part)).number:
            wrong[question] = cells
            if not layer.is_linear and not part.biased and ranks.rows is None:
                shares[question] = head_shares(layer, ~part, rows)
    whole, is_known = expected.mask(), expected.is_known
    answers_hidden = is_known and expected.window_known and not layer.is_linear
    if answers_hidden and (hidden := beyond("hidden", whole, heard)).number:
        wrong["hidden"] = hidden
    lost = []
    if not layer.is_linear:
        used = layer.data().map
        lost += ["sinks"] if expected.sinks and getattr(used, "sinks", None) is None else []
        lost += ["softcap"] if expected.softcap is not None and getattr(used, "softcap", None) is None else []
    only_padding = False
    if expected.padding is not None and "padding" in wrong:
        # A query may see itself all the same: else its softmax would have nothing to sum.
        only_padding = not cells_beyond(heard, ~expected.padding | Window(1), shape, rows).number
    return LayerReading(
        layer.name,
        layer.key,
        expected.kind,
        str(heard),
        str(whole) if is_known else "",
        certified,
        why,
        wrong,
        shares,
        window=heard.window_size(),
        expected_window=None if expected.window is None else expected.window.window_size(),
        lost=tuple(lost),
        sees_only_padding=only_padding,
        hears_padding=any(part.is_padding for part in heard.conjuncts()),
        is_causal=heard.is_causal,
        is_linear=layer.is_linear,
        within_rank=_is_within_rank(heard, ranks),
        asked=(*parts, *(["hidden"] if answers_hidden else [])),
        heard_mask=heard,
        expected_mask=whole if is_known else None,
        shape=shape,
        real=rows_of(batch, expected.kind),
    )


def _is_within_rank(mask: Mask, ranks: Ranks) -> bool:
    if ranks.rows is None:
        return False
    numbers = torch.cat([torch.full_like(rows, i) for i, rows in enumerate(ranks.positions)])
    numbers = numbers[torch.cat(ranks.positions).argsort()]  # the rank of each position
    return any(are_equal(part, Documents(numbers[None])) for part in mask.conjuncts())


def layers_title(layers: list[LayerReading]) -> str:
    """Return "layer 0" or "layers 0, 1"."""
    return f"{'layer' if len(layers) == 1 else 'layers'} {layer_keys(layers)}"


def layer_keys(layers: list[LayerReading]) -> str:
    """Return the keys of layers in a few words."""
    return ", ".join(str(layer.key) for layer in layers[:6]) + (", …" if len(layers) > 6 else "")


OWN = ("heard_mask", "expected_mask", "real")  # what stays on a rank


def join_readings(readings: Sequence[LayerReading], ranks: Ranks) -> list[LayerReading]:
    """Return the readings of all ranks, joined by layer. All ranks call it.

    Ranks that hold other rows have other cells, which are added up; ranks that hold other heads have the same
    ones. A layer is certified if it is on every rank, and what is wrong on one rank is wrong.
    """
    if ranks.group is None:
        return list(readings)
    own = {reading.key: reading for reading in readings}
    parts: dict[int | str, list[LayerReading]] = {}
    for rank in ranks.exchange([_data(reading) for reading in readings]):
        for data in rank:
            parts.setdefault(data["key"], []).append(_reading(data))
    return [_joined(parts[key], own.get(key), bool(ranks.positions)) for key in parts]


def _data(reading: LayerReading) -> dict[str, Any]:
    """Return what other ranks need of a reading, without its masks."""
    data = {name: value for name, value in vars(reading).items() if name not in OWN}
    return data | {"shares": {question: share.tolist() for question, share in reading.shares.items()}}


def _reading(data: dict[str, Any]) -> LayerReading:
    cells = {q: Cells(n, None if first is None else Cell(*first)) for q, (n, first) in data["wrong"].items()}
    shares = {question: torch.tensor(share, device="cpu") for question, share in data["shares"].items()}
    others = {name: tuple(data[name]) for name in ("lost", "asked", "shape")}
    return LayerReading(**data | others | {"wrong": cells, "shares": shares})


def _joined(parts: list[LayerReading], own: LayerReading | None, by_rows: bool) -> LayerReading:
    """Return one reading of a layer for those of its ranks; the masks are those of this rank."""
    first = parts[0] if own is None else own
    questions = dict.fromkeys(question for part in parts for question in part.wrong)
    masks = dict.fromkeys(part.mask for part in parts)
    shared = dict.fromkeys(question for part in parts for question in part.shares)
    return replace(
        first,
        mask=" or ".join(masks),  # ranks that see otherwise are a fault in themselves
        certified=all(part.certified for part in parts),
        why=next((part.why for part in parts if part.why), ""),
        wrong={question: _cells(question, parts, by_rows) for question in questions},
        shares={question: torch.cat([_share(question, part) for part in parts]) for question in shared},
        lost=tuple(dict.fromkeys(lost for part in parts for lost in part.lost)),
        asked=tuple(dict.fromkeys(question for part in parts for question in part.asked)),
        sees_only_padding=any(part.sees_only_padding for part in parts),
        hears_padding=any(part.hears_padding for part in parts),
        within_rank=any(part.within_rank for part in parts),
        is_causal=all(part.is_causal for part in parts),
    )


def _share(question: str, part: LayerReading) -> Tensor:
    """Return what the heads of one rank give to the cells of a question: nothing, if it is right there."""
    return part.shares.get(question, torch.zeros(part.shape[1], device="cpu"))


def _cells(question: str, parts: list[LayerReading], by_rows: bool) -> Cells:
    cells = [part.wrong[question] for part in parts if question in part.wrong]
    numbers = [x.number for x in cells]
    firsts = [x.first for x in cells if x.first is not None]
    return Cells(sum(numbers) if by_rows else max(numbers), min(firsts, default=None))
