"""A rank that runs every case through `attend(…, group=)` and writes its rows: output, lse and gradients.

The tests in `test_ring_processes` start the ranks and read what they have written.
"""

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.masks.base import Mask
from regard.recorder.sources import attend_function
from tests import ranks

ring_call = attend_function.ring_call

H, G, T, D, E = 4, 2, 20, 8, 6


class Case(NamedTuple):
    """A call of `attend`, the same on all ranks but for its rows."""

    mask: Callable[[], Mask]
    order: str = "contiguous"
    dtype: torch.dtype = torch.float32


CASES = {
    "full": Case(lambda: regard.full),
    "causal": Case(lambda: regard.causal),
    "window, head-tail": Case(lambda: regard.causal & regard.window(7), "head-tail"),
    "documents": Case(lambda: regard.causal & regard.documents([0] * 6 + [1] * 9 + [2] * 5)),
    "half precision": Case(lambda: regard.causal, "head-tail", torch.bfloat16),
}


class Inputs(NamedTuple):
    """The whole sequence, and the gradient of its output."""

    q: Tensor
    k: Tensor
    v: Tensor
    upstream: Tensor

    @classmethod
    def of(cls, case):
        made, shapes = torch.Generator().manual_seed(0), ((H, D), (G, D), (G, E), (H, E))
        return cls(
            *(torch.randn(1, heads, T, width, generator=made).to(case.dtype) for heads, width in shapes)
        )


def run_case(case, group):
    positions = regard.attention.ring_positions(T, group, order=case.order)
    q, k, v, upstream = (x[:, :, positions] for x in Inputs.of(case))
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    options = {"mask": case.mask(), "group": group, "order": case.order}
    output, lse = regard.attend(*inputs, **options, return_lse=True)
    gradients = torch.autograd.grad(output, inputs, upstream)
    names = ("output", "lse", "dq", "dk", "dv")
    found = dict(zip(names, (output, lse, *gradients), strict=True))
    return {"positions": positions, **{name: x.detach().contiguous() for name, x in found.items()}}


def main(rank, folder):
    """Run every case and capture a model; then rank 1 is killed, and rank 0 says how it notices."""
    group = distributed.group.WORLD
    results = {f"{name}/{key}": x for name, case in CASES.items() for key, x in run_case(case, group).items()}
    save_file(results, folder / f"rank-{rank}.safetensors")
    capture_models(folder)
    distributed.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        run_case(CASES["causal"], group)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)  # without a word to the group, which is broken


class RingBlock(nn.Module):
    """A residual attention: on a ring, or alone on PyTorch's own function."""

    def __init__(self, group, order):
        super().__init__()
        self.group, self.order = group, order
        self.qkv, self.out = nn.Linear(32, (H + 2 * G) * D), nn.Linear(H * D, 32)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (H + 2 * G, D)).transpose(1, 2).split([H, G, G], 1)
        if self.group is None:
            output = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            own_rule = regard.rule(lambda b, h, q, k: k <= q)  # as `causal`, which a file could hold itself
            mask = regard.causal if self.order == "contiguous" else own_rule
            output = regard.attend(q, k, v, mask=mask, group=self.group, order=self.order)
        return x + self.out(output.transpose(1, 2).flatten(2))


class RingModel(nn.Module):
    """Two layers over a sequence of which this rank is given some rows."""

    def __init__(self, group=None, order="contiguous"):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(RingBlock(group, order) for _ in range(2))

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


IDS = torch.arange(T)[None] * 7 % 64


def capture_models(folder):
    """Capture models of which each rank is given some rows, and one whose ranks exchange their outputs."""
    group, rank = distributed.group.WORLD, distributed.get_rank()
    for order in ("contiguous", "head-tail"):
        inputs = {"input_ids": IDS[:, regard.attention.ring_positions(T, group, order=order)]}
        model = RingModel(group, order).eval()
        seen = regard.capture(model, inputs=inputs, group=group, folder=folder / order, values=True)
        (folder / f"{order}-{rank}.txt").write_text(str(seen.certificate))

    def exchanged(call):
        both = [torch.empty_like(call.output) for _ in range(2)]
        distributed.all_gather(both, call.output.contiguous())
        return ring_call(call._replace(output=both[1 - rank]))

    attend_function.ring_call = exchanged
    rows = regard.attention.ring_positions(T, group)
    model = RingModel(group).eval()
    seen = regard.capture(model, inputs={"input_ids": IDS[:, rows]}, group=group)
    (folder / f"exchanged-{rank}.txt").write_text(str(seen.certificate))


if __name__ == "__main__":
    main(*ranks.join_group())
