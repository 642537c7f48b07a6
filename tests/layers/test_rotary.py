"""Rotary positions and RMSNorm against their formulas, at every dtype, and their properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers import Llama3Scaling, RMSNorm, Rotary
from tests.refusals import refused


def turned_by_complex_numbers(x, positions, base):
    """Interleaved rotation as multiplication by exp(i · position · base ** (−2j / width)), in float64."""
    width = x.shape[-1]
    frequencies = torch.tensor([base ** (-2 * j / width) for j in range(width // 2)], dtype=torch.float64)
    angles = positions.double()[:, None] * frequencies
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], width // 2, 2).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2)


def to_half_split(x):
    """The interleaved order of a head's numbers as the half-split one: even ones first, then odd ones."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


@given(
    st.integers(1, 8).map(lambda n: 2 * n),
    st.integers(0, 12),
    st.sampled_from([0, 1, 77, 5000]),
    st.sampled_from([100.0, 10000.0, 1e6]),
)
def test_both_conventions_against_complex_numbers(width, T, start, base):
    x = torch.randn(2, 3, T, width, dtype=torch.float64)
    truth = turned_by_complex_numbers(x, torch.arange(start, start + T), base)
    interleaved = Rotary(width, base=base, interleaved=True)(x, start)
    half = Rotary(width, base=base)(to_half_split(x), start)
    assert torch.allclose(interleaved, truth, rtol=0, atol=1e-10)
    assert torch.allclose(half, to_half_split(truth), rtol=0, atol=1e-10)


@pytest.mark.parametrize("interleaved", [True, False])
def test_part_of_the_width(interleaved):
    x = torch.randn(2, 5, 10)
    turn = Rotary(4, interleaved=interleaved)
    assert torch.equal(turn(x, 3), torch.cat((turn(x[..., :4], 3), x[..., 4:]), -1))


def test_positions_of_each_token():
    turn, x = Rotary(6), torch.randn(2, 3, 4, 6, dtype=torch.float64)
    assert torch.equal(turn(x, torch.arange(7, 11)), turn(x, 7))
    rows = torch.stack([torch.arange(4), torch.arange(50, 54)])
    together = turn(x, rows)
    assert torch.equal(together[0], turn(x[0], 0))
    assert torch.allclose(together[1], turn(x[1], 50), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_angles_are_not_in_half_precision(dtype):
    """At position 3000 a half-precision angle would be off by whole radians."""
    turn = Rotary(8).to(dtype)
    x = torch.randn(2, 5, 8, dtype=dtype)
    exact = Rotary(8)(x.double(), 3000)
    turned = turn(x, 3000)
    assert turned.dtype == dtype
    assert torch.equal(turned, exact.to(dtype)) or (turned - exact).abs().max() <= 2 * torch.finfo(dtype).eps


def test_llama_3_scaling_keeps_fast_pairs_and_slows_slow_ones():
    scaling = Llama3Scaling(factor=8.0, low=1.0, high=4.0, original_length=8192)
    wavelengths = torch.tensor([8192 / 4.5, 8192 / 4, 8192 / 2.5, 8192.0, 9000.0], dtype=torch.float64)
    ratio = scaling.scale(2 * math.pi / wavelengths) * wavelengths / (2 * math.pi)
    assert torch.allclose(ratio, torch.tensor([1, 1, 0.5 + 0.5 / 8, 1 / 8, 1 / 8], dtype=torch.float64))


def test_tables_are_not_saved_and_follow_the_input():
    turn = Rotary(4)
    assert not turn.state_dict()
    with torch.inference_mode():
        turn(torch.ones(3, 4))
    x = torch.ones(3, 4, requires_grad=True)
    turn(x).sum().backward()  # a model may generate first and train afterwards
    assert x.grad is not None
    assert turn(x.double()).dtype == torch.float64
    assert turn(torch.ones(3, 4, device="meta")).device.type == "meta"
    assert torch.equal(turn(torch.ones(3, 4)), turn(x))


test_errors = refused(
    [
        (lambda: Rotary(7), "width: expected an even number, since channels rotate in pairs, got 7"),
        (lambda: Rotary(0), "width: expected a whole number of at least 2, got 0"),
        (lambda: Rotary(4, base=0), "base: expected a number above 0, got 0"),
        (lambda: Rotary(8)(torch.ones(3, 6)), r"x: expected \(…, T, D\) with D at least 8, got \(3, 6\)"),
        (
            lambda: Rotary(4)(torch.ones(2, 1, 3, 4), torch.arange(5)),
            r"positions: expected \(3,\) or \(2, 3\), one for each token, got \(5,\)",
        ),
        (lambda: RMSNorm(16)(torch.ones(3, 8)), r"x: expected a last dimension of 16, got \(3, 8\)"),
        (lambda: RMSNorm(16, eps=0), "eps: expected a number above 0, got 0"),
        (lambda: RMSNorm(0), "width: expected a whole number of at least 1, got 0"),
    ]
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weights", ["same", "float32"])
def test_formula(dtype, weights):
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
