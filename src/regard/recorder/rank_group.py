"""The processes that run one model together, and what a capture tells them: the run, and the evidence.

Each rank keeps what it has captured; only short texts are exchanged, as bytes, and nothing is pickled. This
file knows process groups; it does not know what the texts say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn

from regard.recorder.placement import ShardId, new_run
from regard.support.plain_data import to_plain
from regard.support.processes import LostRankError, check_group, is_lost_rank

MAX_TEXT = 1 << 26
"""The most bytes of one rank's text."""


def is_dtensor(x: object) -> bool:
    """Whether this is a tensor that is spread over processes, without importing what defines them."""
    if type(x) is Tensor or not isinstance(x, Tensor):  # nearly always, and attention calls ask
        return False
    return any(kind.__name__ == "DTensor" for kind in type(x).__mro__)


def is_distributed() -> bool:
    """Whether this process runs with others."""
    return distributed.is_available() and distributed.is_initialized()


class RankGroup:
    """The processes of a `torch.distributed` group, by default of the whole world."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        # NCCL sends tensors of a GPU only.
        on_gpu = "nccl" in distributed.get_backend(group)
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def new_shard(self) -> ShardId:
        """Agree on a name for a run, and return which of its shards this rank's is. All ranks call it."""
        runs = self.exchange(new_run() if self.rank == 0 else "")
        return ShardId(runs[0], self.rank, self.size).check()

    def exchange(self, text: str) -> list[str]:
        """Return the texts of all ranks, in their order. All ranks call it."""
        data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=self.device)
        if len(data) > MAX_TEXT:
            raise ValueError(f"text: expected at most {MAX_TEXT:,} bytes of a rank, got {len(data):,}")
        lengths = [int(n) for n in self._gather(torch.tensor([len(data)], device=self.device))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device=self.device)
        padded[: len(data)] = data
        texts = self._gather(padded) if max(lengths) else [padded] * self.size
        return [bytes(x[:n].tolist()).decode() for x, n in zip(texts, lengths, strict=True)]

    def exchange_plain(self, value: Any) -> list[Any]:
        """Return the values of all ranks as plain data, in their order. All ranks call it."""
        return [json.loads(text) for text in self.exchange(json.dumps(to_plain(value)))]

    def gather(self, x: Tensor, lengths: Sequence[int], dim: int) -> list[Tensor]:
        """Return the tensors of all ranks, which have these lengths in one dimension. All ranks call it."""
        missing = x.new_zeros(*x.shape[:dim], max(lengths) - x.shape[dim], *x.shape[dim + 1 :])
        padded = torch.cat([x, missing], dim).contiguous().to(self.device)
        parts = zip(self._gather(padded), lengths, strict=True)
        return [part.narrow(dim, 0, n).to(x.device) for part, n in parts]

    def _gather(self, x: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(x) for _ in range(self.size)]
        try:
            distributed.all_gather(gathered, x, group=self.group)
        except RuntimeError as error:
            self.explain(error)
            raise
        return gathered

    def explain(self, error: BaseException | None) -> None:
        """Raise a `LostRankError` if an error says only that another rank has gone."""
        if isinstance(error, RuntimeError) and is_lost_rank(error):
            raise LostRankError(self.rank, self.size) from None


def find_group(model: nn.Module, group: Any = None) -> RankGroup | None:
    """Return the processes that run this model together, each a part of it; None if this one has all of it.

    They are `group`, if it is given. Otherwise they are found if the model's parameters are split by tensor
    parallelism, or its layers by Transformers' pipeline parallelism. The ranks of data parallelism, with FSDP
    too, read texts of their own and are no such group.
    """
    if group is not None:
        group = check_group(group)
    elif distributed.is_available() and distributed.is_initialized():
        group = _detected_group(model)
    return None if group is None or distributed.get_world_size(group) == 1 else RankGroup(group)


def _detected_group(model: nn.Module) -> Any:
    """Return the process group of a model's tensor and pipeline parallelism, or None."""
    # Private, but where Transformers keeps its stage of a pipeline.
    stage = getattr(model, "_pp_stage", None)
    meshes = [mesh for x in model.parameters() if is_dtensor(x) and (mesh := _tensor_parallel_mesh(model, x))]
    if stage is None:
        return meshes[0].get_group() if meshes else None
    if not meshes:
        return stage.pp_group
    if stage.pp_size * meshes[0].size() == distributed.get_world_size():
        return distributed.group.WORLD
    raise ValueError(
        "group: expected the group of all processes that run this model, since it is split by tensor and by "
        "pipeline parallelism, and not over all processes: write regard.capture(…, group=group)"
    )


def _tensor_parallel_mesh(model: nn.Module, parameter: Any) -> Any:
    """Return the mesh over which tensor parallelism splits a parameter, or None.

    FSDP splits parameters too, and gathers them before they are used; it puts its axes first.
    """
    from torch.distributed.fsdp import FSDPModule

    mesh = parameter.device_mesh
    is_gathered = any(isinstance(module, FSDPModule) for module in model.modules())
    if mesh.ndim == 1:
        return None if is_gathered or parameter.placements[0].is_replicate() else mesh
    names = mesh.mesh_dim_names or ()
    if parameter.placements[-1].is_replicate() or not names:
        return None
    return mesh[names[-1]]
