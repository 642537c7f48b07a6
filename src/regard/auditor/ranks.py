"""The processes that read one batch together: which tokens each holds, and what they tell each other.

Under context parallelism each rank holds some tokens of every text; under tensor parallelism each holds all
of them, and some heads. What is asked of the whole batch is asked on all ranks in step, and every answer is
made of the numbers of all of them, so that every rank returns the same verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed, nn

from regard.auditor.batch import TextBatch
from regard.recorder.rank_group import RankGroup, find_group
from regard.recorder.sources.rank_placement import SharedRows, shared_rows


@dataclass(frozen=True)
class Ranks:
    """The processes that run a model together; by default this one alone."""

    group: RankGroup | None = None
    positions: tuple[Tensor, ...] = ()
    """By rank, the positions of its tokens in the whole texts, (rows,); empty if every rank holds all."""
    others: dict[str, Any] = field(default_factory=dict)
    """This rank's arguments that are not one number for each token: no rank knows those of another."""

    @property
    def rows(self) -> Tensor | None:
        """The positions of this rank's tokens, (rows,); None if it holds all of them."""
        return self.positions[self.group.rank] if self.group is not None and self.positions else None

    def own_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with which this rank calls the model, from those of the whole batch."""
        if self.rows is None:
            return arguments
        cut = {k: x[:, self.rows.to(x.device)] for k, x in arguments.items() if isinstance(x, Tensor)}
        return arguments | cut | self.others

    def own_rows(self, T: int) -> Tensor | None:
        """Return which of the T tokens this rank holds, (T,); None for all of them."""
        if self.rows is None:
            return None
        return torch.zeros(T, dtype=torch.bool, device="cpu").index_fill(0, self.rows, True)

    def join(self, x: Tensor) -> Tensor:
        """Return a number for each token (B, T) from those of this rank's tokens: the greatest of any rank.

        All ranks call it.
        """
        x = x.detach().float().cpu()
        if self.group is None:
            return x
        if self.positions:
            return SharedRows(self.group, self.positions).join(x, 1)
        return torch.stack(self.group.gather(x, [x.shape[1]] * self.group.size, 1)).amax(0)

    def exchange(self, data: Any) -> list[Any]:
        """Return what every rank passes, in their order. All ranks call it."""
        return (
            # JSON, since PyTorch's own exchange of objects would unpickle what other ranks send.
            [data] if self.group is None else [json.loads(x) for x in self.group.exchange(json.dumps(data))]
        )

    def placing(self, text: TextBatch) -> AbstractContextManager[Any]:
        """Return a block in which captures place the rows of this rank among those of all ranks."""
        if self.group is None or not self.positions:
            return nullcontext()
        real = text.real if text.has_padding else None
        return shared_rows.added(SharedRows(self.group, self.positions, text.documents, real))


def join_ranks(
    model: nn.Module, batch: Mapping[str, Any], name: str, group: Any, rows: Tensor | None
) -> tuple[Ranks, dict[str, Any]]:
    """Return the ranks that run a model together, and the whole batch.

    Arguments:
        model: the model.
        batch: the arguments of this rank.
        name: the one that holds its token ids, (B, T).
        group: the process group, or None: tensor-parallel models show theirs.
        rows: the positions of this rank's tokens, (T,); None if `position_ids` say it, or all ranks hold all.
    """
    ranks = find_group(model, group)
    if ranks is None:
        if rows is not None:
            raise ValueError("rows: expected group= beside it, the processes that hold the other rows")
        return Ranks(), dict(batch)
    ids = batch[name]
    positions = _find_positions(ranks, ids, batch.get("position_ids"), rows)
    if not positions:
        return Ranks(ranks), dict(batch)
    shared = SharedRows(ranks, positions)
    by_token = {k: x for k, x in batch.items() if isinstance(x, Tensor) and x.shape == ids.shape}
    plain = {k: x for k, x in batch.items() if not isinstance(x, Tensor)}
    others = {k: x for k, x in batch.items() if k not in by_token and k not in plain}
    return Ranks(ranks, positions, others), plain | {k: shared.join(x, 1) for k, x in by_token.items()}


def _find_positions(
    ranks: RankGroup, ids: Tensor, position_ids: Any, rows: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the positions of each rank's tokens; () if every rank holds the same ones."""
    told = None if rows is None else rows.detach().cpu().flatten().tolist()
    counted = None
    if isinstance(position_ids, Tensor) and position_ids.ndim == 2:
        same = bool((position_ids == position_ids[:1]).all())
        counted = position_ids[0].tolist() if same else None
    own = {"told": told, "counted": counted, "T": ids.shape[1], "ids": ids.tolist()}
    everyone = [json.loads(text) for text in ranks.exchange(json.dumps(own))]
    lengths = [x["T"] for x in everyone]
    for key in ("told", "counted"):
        parts = [x[key] for x in everyone]
        if _are_rows(parts, lengths):
            return tuple(torch.tensor(part, dtype=torch.long, device="cpu") for part in parts)
        # What the caller has told is not replaced by a guess.
        if key == "told" and any(part is not None for part in parts):
            break
    else:
        # No rank was told any: those that have the same tokens have all of them.
        if all(x["ids"] == everyone[0]["ids"] for x in everyone):
            return ()
    raise ValueError(
        f"rows: expected the positions of each rank's tokens among the {sum(lengths)} of a whole text, "
        "increasing and each on one rank, as regard.attention.ring_positions(T, group) gives them; nothing "
        "else tells them here"
    )


def _are_rows(parts: list[list[int] | None], lengths: list[int]) -> bool:
    """Whether these are increasing positions of so many tokens of each rank, and together all positions."""
    for part, n in zip(parts, lengths, strict=True):
        if part is None or part != sorted(part) or len(part) != n:
            return False
    return sorted(i for part in parts for i in part or ()) == list(range(sum(lengths)))


def find_lockstep(model: nn.Module) -> RankGroup | None:
    """Return the processes that gather a model's weights in every forward pass, or None.

    Each reads texts of its own, but all must run the model equally often: FSDP's ranks, and DeepSpeed's of
    ZeRO-3, wait for each other.
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    gathers = any(isinstance(x, FSDPModule | FullyShardedDataParallel) for x in model.modules())
    gathers = gathers or any(hasattr(x, "ds_id") for x in model.parameters())  # DeepSpeed's mark
    return RankGroup() if gathers else None
