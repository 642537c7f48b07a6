"""The readable steps: what each is, its dtypes, masks of any shape. `test_attend` compares with the truth."""

import pytest
import torch

import regard
from regard import causal, padding, scaled_dot_product_attention
from regard.attention.steps import Steps, trace
from tests.strategies import Sizes, tensors


def test_trace_shows_every_step():
    q, k, v, sinks = tensors(Sizes(2, 4, 2, 3, 5, 4, 6), 0)
    bias = torch.randn(3, 5)
    steps = trace(q, k, v, regard.tensor_mask(bias) & padding([5, 3]), scale=0.7, softcap=2.0, sinks=sinks)
    assert isinstance(steps, Steps)
    assert Steps._fields == ("scores", "scaled", "masked", "weights", "output")
    wide = k.repeat_interleave(2, 1)
    close = torch.testing.assert_close
    # The scores are the real ones, also of keys that will be masked.
    close(steps.scores, torch.einsum("bhtd,bhsd->bhts", q, wide))
    close(steps.scaled, 2 * torch.tanh(0.7 * steps.scores / 2))
    blocked = torch.arange(5) >= torch.tensor([5, 3]).view(2, 1, 1, 1)
    close(steps.masked, (steps.scaled + bias).masked_fill(blocked, -torch.inf))
    exp = steps.masked.exp()
    close(steps.weights, exp / (exp.sum(-1, keepdim=True) + sinks.exp().view(4, 1, 1)))
    close(steps.output, steps.weights @ v.repeat_interleave(2, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_of_the_steps_and_of_the_results(dtype):
    q, k, v, sinks = tensors(Sizes(1, 2, 1, 3, 3, 4, 4), 0, dtype)
    steps = trace(q, k, v, causal, sinks=sinks.float())
    inner = torch.float64 if dtype == torch.float64 else torch.float32
    assert [x.dtype for x in steps] == [inner] * 4 + [dtype]
    assert [x.dtype for x in scaled_dot_product_attention(q, k, v)] == [dtype, dtype]


def test_scores_too_large_for_float16_are_no_trouble():
    q = k = v = torch.full((1, 1, 2, 64), 100.0, dtype=torch.float16)  # q · k is 640,000
    output, weights = scaled_dot_product_attention(q, k, v)
    assert torch.equal(output, v)
    assert torch.equal(weights, torch.full((1, 1, 2, 2), 0.5, dtype=torch.float16))


@pytest.mark.parametrize(
    "shape", [(2, 3, 2, 4, 4), (3, 2, 4, 4), (3, 1, 4, 4), (2, 1, 1, 1, 4), (1, 1, 2, 4, 4), (2, 4, 4)]
)
def test_a_tensor_mask_broadcasts_as_tensors_do(shape):
    q, k, v = (torch.randn(2, 3, 2, 4, 5) for _ in range(3))
    marks = (torch.rand(shape) < 0.6) | torch.eye(4, dtype=torch.bool)
    marks = marks[..., :1, :] if shape[-2] == 1 else marks
    output, weights = scaled_dot_product_attention(q, k, v, marks)
    assert torch.equal(weights > 0, marks.expand(2, 3, 2, 4, 4))
    assert output.shape == q.shape
