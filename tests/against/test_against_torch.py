"""Against PyTorch's own attention: its fused function on each CPU kernel, and its own test samples."""

import warnings

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


@pytest.fixture(scope="module")
def samples():
    """PyTorch's own sample inputs for attention on the CPU, but for those with dropout.

    Two draws of dropout cannot be compared; what it means is tested with the steps.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its test modules warn about themselves when imported
        from torch.testing._internal.common_methods_invocations import op_db
    # Its test modules freeze PyTorch's global flags for the rest of the process, which others may set.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    (info,) = [op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention"]
    every = list(info.sample_inputs(torch.device("cpu"), torch.float32, requires_grad=True))
    kept = [sample for sample in every if sample.kwargs.get("dropout_p", 0.0) == 0]
    assert len(kept) >= 12, f"only {len(kept)} of {len(every)} samples are left"
    masks = [s for s in kept if s.kwargs.get("is_causal") or s.kwargs.get("attn_mask") is not None]
    assert len(masks) >= 6, f"only {len(masks)} of {len(kept)} samples have a mask"
    return kept


def run_sample(attention, sample, dtype):
    """A sample's output and the gradients of its q, k and v, with the attention given and at the dtype."""
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (sample.input, *sample.args))
    options = {
        name: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
        for name, x in sample.kwargs.items()
    }
    output = attention(q, k, v, **options)
    upstream = torch.linspace(-1, 2, output.numel(), dtype=dtype).view(output.shape)
    return [output, *torch.autograd.grad(output, (q, k, v), upstream)]


def with_steps(q, k, v, *, attn_mask=None, is_causal=False, dropout_p=0.0, enable_gqa=False):
    """Our attention under PyTorch's signature, which lets batch and heads broadcast; no other options."""
    assert not (is_causal and attn_mask is not None)
    shared = -3 if enable_gqa else -2
    lead = torch.broadcast_shapes(*(x.shape[:shared] for x in (q, k, v)))
    q, k, v = (x.expand(*lead, *x.shape[shared:]) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, causal.top_left if is_causal else attn_mask)[0]


@pytest.mark.at_length("test_each_kernel_forward_and_backward")
def test_pytorchs_own_samples_in_float64(samples):
    for sample in samples:
        theirs = run_sample(F.scaled_dot_product_attention, sample, torch.float64)
        for mine, other in zip(run_sample(with_steps, sample, torch.float64), theirs, strict=True):
            torch.testing.assert_close(mine, other, **TOLERANCE[torch.float64])


@pytest.mark.at_length("test_each_kernel_forward_and_backward")
def test_pytorchs_own_samples_no_further_from_the_truth(samples):
    """All samples together: one alone holds few numbers, whose gradients cancel, so that luck decides."""
    attentions = (with_steps, torch.float32), (F.scaled_dot_product_attention, torch.float32)
    exactly = F.scaled_dot_product_attention, torch.float64
    results = [[run_sample(f, sample, dtype) for sample in samples] for f, dtype in (*attentions, exactly)]
    for i in range(4):  # the output, and the gradients of q, k and v
        ours, theirs, exact = (torch.cat([result[i].flatten() for result in run]) for run in results)
        assert truth.ratio_to_torch(ours, theirs, exact) <= 1.5
        assert (ours - exact).norm() <= 1.05 * (theirs - exact).norm()
