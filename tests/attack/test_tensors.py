"""Odd tensors, in short; `make attack` runs thousands."""

import pytest
import torch

import regard
from tests.attack import tensors


def test_every_entrance_serves_odd_tensors_or_names_the_argument() -> None:
    figures = tensors.attack(100, seed=0)
    assert figures["served"] > 30
    assert figures["refused"] > 25
    assert figures["empty"] == 25


def test_meta_tensors_give_shapes() -> None:
    q = torch.empty(2, 4, 3, 8, device="meta")
    assert regard.attend(q, q, q, mask=regard.causal).shape == (2, 4, 3, 8)
    assert regard.which_backend(q, q, q).refusals["torch"] == "the meta device has no values"


def test_transformations_of_torch_func_are_served() -> None:
    x = torch.randn(3, 1, 2, 5, 4)
    mask = regard.causal & regard.window(2)
    expected = torch.stack([regard.attend(q, q, q, mask=mask) for q in x])
    assert torch.allclose(
        torch.func.vmap(lambda q: regard.attend(q, q, q, mask=mask))(x), expected, atol=1e-6
    )
    q = x[0].clone().requires_grad_()
    (right,) = torch.autograd.grad(regard.attend(q, q, q, mask=mask).square().sum(), q)
    found = torch.func.grad(lambda q: regard.attend(q, q, q, mask=mask).square().sum())(x[0])
    assert torch.allclose(found, right, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"q: expected a tensor with values, got one that torch\.func\.vmap maps"
    ):
        torch.func.vmap(lambda q: regard.attention_map(q, q).to_dense())(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_scale_of_zero_or_below_is_no_trouble(dtype: torch.dtype) -> None:
    """PyTorch's fused kernels make NaN of a causal mask then."""
    q, k, v = torch.randn(3, 1, 2, 12, 8).to(dtype)
    for scale in (-1.0, 0.0):
        for mask in (None, regard.causal, regard.padding([9])):
            output, lse = regard.attend(q, k, v, mask=mask, scale=scale, return_lse=True)
            right = regard.attend(q, k, v, mask=mask, scale=scale, return_lse=True, backend="steps")
            assert torch.allclose(output.float(), right[0].float(), atol=0.02)
            assert torch.allclose(lse, right[1], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_half_precision_use_the_output_before_it_is_rounded(dtype: torch.dtype) -> None:
    """A row that sees one key has no gradient for it: two numbers cancel, one of which the output gives."""
    q, k, v = (x.to(dtype).requires_grad_() for x in torch.randn(3, 1, 1, 6, 8))
    upstream = torch.randn(1, 1, 6, 8).to(dtype)
    (gradient,) = torch.autograd.grad(regard.attend(q, k, v, mask=regard.window(1, ahead=0)), q, upstream)
    assert gradient.abs().max() < 1e-5
