"""Joins what the layers of several ranks saw into one reading of each layer, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.auditor.cells import Cell, Cells
from regard.auditor.inside import LayerReading
from regard.auditor.ranks import Ranks

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
    """Return a reading from what JSON has made of it."""
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
