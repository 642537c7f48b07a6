"""The last digits, in short; `make attack` runs 10,000 draws."""

import pytest
import torch

import regard
from tests.attack import accuracy


def test_errors_are_those_of_pytorch() -> None:
    figures = accuracy.attack(60, seed=0)
    assert figures["output, worst"] < accuracy.WORST_LIMIT


def test_a_loss_of_digits_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are rounded to bfloat16 exceed the limits."""
    attend = regard.attend

    def coarse(q: torch.Tensor, *args: object, **options: object) -> object:
        return attend(q.bfloat16().to(q.dtype), *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(regard, "attend", coarse)
    with pytest.raises(AssertionError, match="output, seed 0"):
        accuracy.attack(20, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [-1.0, 0.0])
@pytest.mark.parametrize("mask", [None, regard.causal, regard.padding([9])], ids=str)
def test_a_scale_of_zero_or_below_is_no_trouble(
    dtype: torch.dtype, scale: float, mask: regard.Mask | None
) -> None:
    """PyTorch's fused kernels make NaN of a causal mask then."""
    q, k, v = torch.randn(3, 1, 2, 12, 8).to(dtype)
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
