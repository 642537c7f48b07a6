"""Row blocks: masks by position on PyTorch's CPU kernel, against the truth and against the tiles."""

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from tests import strategies, truth

MASKS = [
    regard.causal & regard.window(5),
    regard.window(3, ahead=2),
    regard.chunks(7),
    regard.causal | regard.prefix(4),
    ~regard.window(2) | regard.window(2, ahead=0),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_blocks_err_no_more_than_pytorch(mask: Any, dtype: torch.dtype) -> None:
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 150, 150, 16, 16), 3, dtype)
    allowed = mask.to_dense(150)
    right = regard.attend(*(y.double() for y in x[:3]), mask=mask, return_lse=True, backend="steps")
    output, lse = regard.attend(*x[:3], mask=mask, return_lse=True)
    theirs = sdpa(*x[:3], attn_mask=allowed)
    assert truth.ratio_to_torch(output, theirs, right[0]) <= 2.0
    assert torch.allclose(lse.double(), right[1], atol=2e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_key_that_one_query_sees_spoils_its_row_alone(bad: float) -> None:
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 9, 4)
    mask = regard.causal & regard.window(4)
    k[:, :, 8] = bad  # seen by the last query alone
    spoiled = regard.attend(q, k, k, mask=mask).isnan()
    assert torch.equal(spoiled, regard.attend(q, k, k, mask=mask, backend="tiled").isnan())


def test_who_is_served_by_blocks() -> None:
    q = torch.randn(1, 2, 8, 4)
    mask = regard.causal & regard.window(3)

    def backend(q: torch.Tensor, mask: Any) -> str:
        return regard.which_backend(q, q, q, mask=mask).backend

    assert backend(q, mask) == "torch"
    assert (
        backend(q.clone().requires_grad_(), mask) == "tiled"
    )  # whose gradients keep the digits of large scores
    assert backend(q, regard.rule(lambda b, h, q, k: k <= q)) == "torch"
    assert backend(q, regard.rule(lambda b, h, q, k: k <= q + h)) == "tiled"  # not the same for all heads
    read = [0]
    assert backend(q, regard.rule(lambda b, h, q, k: k <= q + read[0])) == "tiled"  # what it reads may change
    assert backend(q, ~regard.causal) == "tiled"  # the last query sees no key
    assert backend(q, mask & regard.alibi(2)) == "tiled"


def test_forward_mode_differentiation_goes_by_tiles() -> None:
    x = strategies.tensors(strategies.Sizes(1, 2, 2, 6, 6, 4, 4), 1, torch.float64)
    mask, tangent = regard.causal & regard.window(3), torch.randn(1, 2, 6, 4, dtype=torch.float64)
    regard.attend(*x[:3], mask=mask)  # leaves a plan
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.q, tangent)
        found = torch.autograd.forward_ad.unpack_dual(regard.attend(dual, *x[1:3], mask=mask)).tangent
    step = 1e-6
    moved = [regard.attend(x.q + s * tangent, *x[1:3], mask=mask) for s in (step, -step)]
    assert torch.allclose(found, (moved[0] - moved[1]) / (2 * step), atol=1e-8)
