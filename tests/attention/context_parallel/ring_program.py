"""A rank that runs every case through `attend(…, group=)` and writes its rows: output, lse and gradients.

At the end rank 1 waits until it is killed, while the others attend once more and print why they could not.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed

import regard
from regard.attention.masks.base import Mask
from tests import ranks

H, G, T, D, E = 4, 2, 20, 8, 6


class Case(NamedTuple):
    """A call of `attend`, the same on all ranks but for its rows."""

    mask: Callable[[], Mask]
    order: str = "contiguous"
    dtype: torch.dtype = torch.float32


CASES = {
    "full": Case(lambda: regard.full),
    "causal": Case(lambda: regard.causal),
    "causal, head-tail": Case(lambda: regard.causal, "head-tail"),
    "window, head-tail": Case(lambda: regard.causal & regard.window(7), "head-tail"),
    "documents": Case(lambda: regard.causal & regard.documents([0] * 6 + [1] * 9 + [2] * 5)),
    "documents, head-tail": Case(
        lambda: regard.causal & regard.documents([0] * 6 + [1] * 9 + [2] * 5), "head-tail"
    ),
    "half precision": Case(lambda: regard.causal, "head-tail", torch.bfloat16),
}


class Inputs(NamedTuple):
    """The whole sequence, and the gradient of its output."""

    q: Tensor
    k: Tensor
    v: Tensor
    upstream: Tensor

    @classmethod
    def of(cls, case: Case) -> "Inputs":
        made, shapes = torch.Generator().manual_seed(0), ((H, D), (G, D), (G, E), (H, E))
        return cls(
            *(torch.randn(1, heads, T, width, generator=made).to(case.dtype) for heads, width in shapes)
        )


def run_case(case: Case, group: Any) -> dict[str, Tensor]:
    positions = regard.ring_positions(T, group, order=case.order)
    q, k, v, upstream = (x[:, :, positions] for x in Inputs.of(case))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    options: dict[str, Any] = {"mask": case.mask(), "group": group, "order": case.order}
    output, lse = regard.attend(*inputs, **options, return_lse=True)
    gradients = torch.autograd.grad(output, inputs, upstream)
    names = ("output", "lse", "dq", "dk", "dv")
    found = dict(zip(names, (output, lse, *gradients), strict=True))
    return {"positions": positions, **{name: x.detach().contiguous() for name, x in found.items()}}


def main(rank: int, folder: Path) -> None:
    group = distributed.group.WORLD
    results = {f"{name}/{key}": x for name, case in CASES.items() for key, x in run_case(case, group).items()}
    save_file(results, folder / f"rank-{rank}.safetensors")
    distributed.barrier()
    (folder / f"done-{rank}").touch()
    if rank == 1:
        sys.stdin.read()
    try:
        run_case(CASES["causal"], group)
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    main(*ranks.join_group())
