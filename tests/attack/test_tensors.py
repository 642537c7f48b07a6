"""Odd tensors: those that are ordinary in their values are served, all others are refused by name."""

import re
import warnings

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard import heads
from regard.gpt import GPT, Config
from regard.layers import Attention, KVCache, Rotary
from tests import truth
from tests.sampling import combine


class PlainSubclass(Tensor):
    """A subclass that computes as tensors do."""


def inference(x):
    with torch.inference_mode():
        return x.clone()


ORDINARY = {
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=x.is_floating_point()),
    "subclass": lambda x: x.as_subclass(PlainSubclass),
    "not contiguous": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed in memory": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "negative bit": lambda x: torch.complex(x, -x).conj().imag if x.is_floating_point() else x,
    "inference": inference,
}
ODD = {
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "COO": lambda x: x.to_sparse(),
    "CSR": lambda x: x.to_sparse_csr(),
    "oneDNN": lambda x: x.float().to_mkldnn(),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "jagged": lambda x: torch.nested.nested_tensor([*x], layout=torch.jagged),
    "nested": lambda x: torch.nested.nested_tensor([*x]),
    "fake": lambda x: FakeTensorMode().from_tensor(x),
    "complex": lambda x: x.to(torch.complex64),
    "text": lambda x: "tensor",
}
SIZES = {"vocab_size": 11, "context_length": 16, "num_layers": 1, "d_model": 8, "num_heads": 2}
LAYER = Attention(8, 2, rotary=Rotary(4), mask=regard.causal).requires_grad_(False)
MODEL = GPT(Config(**SIZES)).requires_grad_(False)
Q = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(10).view(2, 5)
MAP = regard.attention_map(Q, Q, mask=regard.causal)

ENTRANCES = {
    "attend": (lambda x: regard.attend(x, x, x, mask=regard.causal), Q),
    "attend with a mask": (lambda x: regard.attend(Q, Q, Q, mask=x), Q[:, :, :, :5]),
    "attend with sinks": (lambda x: regard.attend(Q, Q, Q, sinks=x), Q[0, 0, 0, :2]),
    "scaled_dot_product_attention": (lambda x: regard.scaled_dot_product_attention(x, x, x)[1], Q),
    "attention_map": (lambda x: regard.attention_map(x, x).to_dense(), Q),
    "map @ v": (lambda x: MAP @ x, Q),
    "map[rows]": (lambda x: MAP[:, :, x].to_dense(), torch.tensor([0, 2])),
    "padding": (lambda x: regard.attend(Q, Q, Q, mask=regard.padding(x)), IDS > 2),
    "documents": (lambda x: regard.attend(Q, Q, Q, mask=regard.documents(x)), IDS // 3),
    "Attention": (lambda x: LAYER(x), Q[:, 0].contiguous()),
    "Attention with positions": (lambda x: LAYER(Q[:, 0], positions=x), IDS[0]),
    "KVCache": (lambda x: KVCache().update(x, x)[0], Q),
    "GPT": (lambda x: MODEL(x), IDS),
    "GPT with a mask": (lambda x: MODEL(IDS, attention_mask=x), IDS > 2),
    "heads.scores": (lambda x: heads.scores(MAP, x).induction, IDS),
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_tensors_that_are_ordinary_in_their_values_are_served(entrance):
    call, plain = ENTRANCES[entrance]
    expected = call(plain)
    for kind, make in ORDINARY.items():
        found = call(make(plain)).detach().as_subclass(Tensor)
        torch.testing.assert_close(found, expected, msg=f"{kind}: another result", equal_nan=True)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_other_tensors_are_refused_with_what_was_expected(entrance):
    call, plain = ENTRANCES[entrance]
    for kind, make in ODD.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of prototypes
            try:
                odd = make(plain)
            except (RuntimeError, TypeError, IndexError):  # PyTorch has no jagged tensor of one dimension
                continue
            with pytest.raises((ValueError, TypeError, IndexError)) as refusal:
                pytest.fail(f"{kind} was served: {call(odd)}")
        message = str(refusal.value)
        assert re.match(r"\w[^:\n]*: [^\n]*(expected|pass )[^\n]*$", message), f"{kind}: {message}"


EMPTY = [(0, 1, 3, 3, 2), (2, 0, 3, 3, 2), (1, 2, 0, 3, 2), (1, 2, 3, 0, 2), (1, 2, 3, 3, 0), (1, 2, 0, 0, 0)]
MASKS = [regard.full, regard.causal, regard.window(2) | regard.prefix(1), regard.chunks(2) & ~regard.causal]


@pytest.mark.parametrize(("sizes", "mask"), combine(EMPTY, MASKS), ids=str)
def test_maps_of_any_size_are_like_tensors(sizes, mask, tmp_path):
    B, H, T, S, E = sizes
    q, k, v = torch.randn(B, H, T, 4), torch.randn(B, H, S, 4), torch.randn(B, H, S, E)
    shape = (B, H, T, S)
    allowed = mask.tile(range(T), range(S), shape).expand(shape)
    right = truth.attention(q, k, v, allowed)
    m = regard.attention_map(q, k, mask=mask)
    dense = m.to_dense()
    assert m.shape == dense.shape == shape
    assert truth.error(dense, right.weights) < 1e-5
    for backend in ("auto", "steps"):
        output, lse = regard.attend(q, k, v, mask=mask, backend=backend, return_lse=True)
        assert truth.error(output, right.output) < 1e-5
        assert lse.shape == (B, H, T)
    assert truth.error(m @ v, right.output) < 1e-5
    cells = min(T, 2), min(S, 2)
    assert m.pool(*cells).shape == m.summary(*cells).max.shape == (B, H, *cells)
    assert all(x.shape == (B, H, n) for x, n in zip(m.statistics(), (T, T, S, T), strict=True))
    assert m.diagonal().shape == dense.diagonal(dim1=-2, dim2=-1).shape
    assert m[..., :0].shape == dense[..., :0].shape
    m.save(tmp_path / "map.safetensors")
    assert torch.equal(regard.load(tmp_path / "map.safetensors").to_dense(), dense)


def test_meta_tensors_give_shapes():
    q = torch.empty(2, 4, 3, 8, device="meta")
    assert regard.attend(q, q, q, mask=regard.causal).shape == (2, 4, 3, 8)
    assert regard.which_backend(q, q, q).refusals["torch"] == "the meta device has no values"


def test_transformations_of_torch_func_are_served():
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
def test_a_scale_of_zero_or_below_is_no_trouble(dtype):
    """PyTorch's fused kernels make NaN of a causal mask then."""
    q, k, v = torch.randn(3, 1, 2, 12, 8).to(dtype)
    for scale in (-1.0, 0.0):
        for mask in (None, regard.causal, regard.padding([9])):
            output, lse = regard.attend(q, k, v, mask=mask, scale=scale, return_lse=True)
            right = regard.attend(q, k, v, mask=mask, scale=scale, return_lse=True, backend="steps")
            assert torch.allclose(output.float(), right[0].float(), atol=0.02)
            assert torch.allclose(lse, right[1], atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_in_half_precision_use_the_output_before_it_is_rounded(dtype):
    """A row that sees one key has no gradient for it: two numbers cancel, one of which the output gives."""
    q, k, v = (x.to(dtype).requires_grad_() for x in torch.randn(3, 1, 1, 6, 8))
    upstream = torch.randn(1, 1, 6, 8).to(dtype)
    (gradient,) = torch.autograd.grad(regard.attend(q, k, v, mask=regard.window(1, ahead=0)), q, upstream)
    assert gradient.abs().max() < 1e-5
