"""RMSNorm against its formula in float64, at every dtype, and beside weights of another dtype."""

import pytest
import torch

from regard.layers import RMSNorm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", ["same", "float32"])
def test_formula(dtype: torch.dtype, weights: str) -> None:
    norm = RMSNorm(16, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    norm.to(dtype if weights == "same" else torch.float32)
    x = torch.randn(3, 4, 16).to(dtype)
    wide = x.double()
    truth = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    y = norm(x)
    assert y.dtype == dtype
    assert (
        (y.double() - truth).abs()
        <= 2 * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps * truth.abs()
    ).all()


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"x: expected a last dimension of 16, got \(3, 8\)"):
        RMSNorm(16)(torch.ones(3, 8))
    with pytest.raises(ValueError, match="eps: expected a number above 0, got 0"):
        RMSNorm(16, eps=0)
    with pytest.raises(ValueError, match="width: expected a whole number of at least 1, got 0"):
        RMSNorm(0)
