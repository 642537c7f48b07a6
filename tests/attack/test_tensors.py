"""Odd tensors, in short; `make attack` runs thousands."""

import pytest
import torch

import regard
from tests.attack import tensors


def test_every_entrance_serves_odd_tensors_or_names_the_argument() -> None:
    figures = tensors.attack(200, seed=0)
    assert figures["served"] > 60
    assert figures["refused"] > 50
    assert figures["empty"] == 50


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
