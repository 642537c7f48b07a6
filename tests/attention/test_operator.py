"""`attend` inside `torch.compile`: one graph under every mask without a function."""

import pytest
import torch

import regard
from regard.attention import operator
from tests.sampling import share

IDS = torch.arange(40)[None] // 13


@pytest.fixture(autouse=True)
def _no_compiled_code_of_other_tests():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw(sinks=False):
    q, k, v = (torch.randn(1, heads, 40, 8, requires_grad=True) for heads in (4, 2, 2))
    return [q, k, v, torch.randn(4, requires_grad=True)] if sinks else [q, k, v]


def attend(inputs, mask, **options):
    sinks = inputs[3] if len(inputs) > 3 else None
    return regard.attend(*inputs[:3], mask=mask, sinks=sinks, return_lse=True, **options)


def assert_same(found, expected, inputs):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=0)
        assert a.requires_grad == b.requires_grad
    gradients = [torch.autograd.grad(output.sum(), inputs) for output in (found[0], expected[0])]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("mask", "softcap", "sinks"),
    share(
        [
            (regard.causal & regard.window(9, ahead=2), None, False),
            (regard.padding([33]), None, False),
            (regard.causal & regard.documents(IDS) | regard.prefix(3), 1.5, True),
            (regard.alibi(4) & regard.causal, None, False),
            (None, 1.5, True),
        ],
        2,
    ),
    ids=str,
)
def test_a_mask_is_one_graph_with_gradients(mask, softcap, sinks):
    function = torch.compile(attend, backend="aot_eager", fullgraph=True)
    inputs = draw(sinks)
    expected = attend(inputs, mask, softcap=softcap)
    assert_same(function(inputs, mask, softcap=softcap), expected, inputs)


def test_slices_of_vmap_and_gradients_of_torch_func():
    mask = regard.causal & regard.window(9)
    q, k, v = (torch.randn(3, 1, 2, 20, 8) for _ in range(3))

    def output(q, k, v):
        return regard.attend(q, k, v, mask=mask)

    sliced = torch.compile(torch.func.vmap(output), backend="aot_eager")
    torch.testing.assert_close(sliced(q, k, v), output(*(x.flatten(0, 1) for x in (q, k, v))).view(q.shape))
    gradient = torch.func.grad(lambda q: output(q, k, v).square().sum())
    torch.testing.assert_close(
        torch.compile(gradient, backend="aot_eager")(q), gradient(q), atol=1e-5, rtol=1e-5
    )


def test_a_compiled_function_follows_the_numbers_and_tensors_of_its_mask():
    function = torch.compile(attend, backend="aot_eager", fullgraph=True)
    inputs, ids = draw(), IDS.clone()
    for size in (3, 5, 8):
        mask = regard.causal & regard.window(size)
        assert_same(function(inputs, mask), attend(inputs, mask), inputs)
    mask = regard.causal & regard.documents(ids)
    first = function(inputs, mask)[0]
    ids[:, 20:] = 9
    assert_same(function(inputs, mask), attend(inputs, mask), inputs)
    assert not torch.equal(function(inputs, mask)[0], first)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # the compiler reads it
def test_a_function_breaks_the_graph_and_stays_right():
    mask = regard.rule(lambda b, h, q, k: (q - k) % 3 == 0)
    function = torch.compile(attend, backend="aot_eager")
    inputs = draw()
    assert_same(function(inputs, mask), attend(inputs, mask), inputs)


# PyTorch 2.15 reads `.grad` of tensors that are no leaves in `opcheck` itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("return_lse", share([True, False], 2))
def test_the_operator_keeps_pytorchs_rules_for_operators(return_lse):
    q, k, v, sinks = draw(sinks=True)
    numbers, tensors = [], []
    text = operator._write(regard.causal & regard.window(9) & regard.documents(IDS), numbers, tensors)
    torch.library.opcheck(
        operator._attention,
        (q, k, v, sinks, tensors, numbers, text, None, 1.5, "auto", return_lse),
        atol=1e-5,
        rtol=1e-5,
    )
