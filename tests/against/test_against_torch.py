"""Against PyTorch's own attention: its fused function on each CPU kernel, and its own test samples."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import causal, scaled_dot_product_attention
from tests import truth
from tests.sampling import combine
from tests.strategies import Sizes, tensors

TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    # A few hundred products of order one, summed in another order.
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
}


KERNELS = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
KINDS = ["no mask", "is_causal", "boolean", "float", "scale", "grouped"]
WAYS = [
    (kernel, dtype, *sizes)
    for sizes in ((6, 6), (3, 7), (7, 3))
    for dtype in (torch.float32, torch.float64)
    for kernel in KERNELS
]


@pytest.mark.parametrize(
    ("kind", "way"), [pair for n in (0, 5) for pair in combine(KINDS, WAYS[n:] + WAYS[:n])]
)
def test_each_kernel_forward_and_backward(kind, way):
    kernel, dtype, T, S = way
    n = Sizes(B=2, H=4, G=2 if kind == "grouped" else 4, T=T, S=S, D=8, E=8)
    made = [x.requires_grad_() for x in tensors(n, 0, dtype)[:3]]
    marks = (torch.rand(2, 1, T, S) < 0.7) | (torch.arange(S) == 0)  # no empty rows
    bias = torch.randn(1, 4, T, S, dtype=dtype)
    theirs, ours = {
        "no mask": ({}, {}),
        "is_causal": ({"is_causal": True}, {"mask": causal.top_left}),
        "boolean": ({"attn_mask": marks}, {"mask": marks}),
        "float": ({"attn_mask": bias}, {"mask": bias}),
        "scale": ({"scale": 0.2}, {"scale": 0.2}),
        "grouped": ({"enable_gqa": True}, {}),
    }[kind]
    with sdpa_kernel(kernel):
        expected = F.scaled_dot_product_attention(*made, **theirs)
    output, weights = scaled_dot_product_attention(*made, **ours)
    torch.testing.assert_close(output, expected, **TOLERANCE[dtype])
    assert weights.shape == n.matrix
    upstream = torch.randn_like(output)
    for mine, true in zip(
        torch.autograd.grad(output, made, upstream),
        torch.autograd.grad(expected, made, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, true, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_at_a_real_size_we_are_as_close_to_the_truth_as_each_kernel(dtype, kernel):
    q, k, v, _ = tensors(Sizes(2, 4, 4, 128, 128, 64, 64), 0, dtype)
    with sdpa_kernel(kernel):
        theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    ours, _ = scaled_dot_product_attention(q, k, v, causal)
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double()) / 8
    scores.masked_fill_(torch.ones(128, 128, dtype=torch.bool).triu(1), -torch.inf)
    exact = torch.einsum("bhts,bhsd->bhtd", scores.softmax(-1), v.double())
    assert truth.ratio_to_torch(ours, theirs, exact) <= 1.25
