"""`attend(…, group=)` on a ring of threads: any mask, any sizes, both orders, against the whole."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.attention.context_parallel.rows import split_rows
from tests import strategies, truth
from tests.attention.context_parallel.thread_ring import Threads, threads
from tests.sampling import combine

__all__ = ["threads"]
ORDERS = ("contiguous", "head-tail")


class Whole(NamedTuple):
    """The results of all ranks, put together."""

    output: Tensor
    lse: Tensor
    gradients: list[Tensor]  # of q, k, v and, if there are any, sinks


def positions(length: int, ranks: int, order: str) -> list[list[int]]:
    return [[i for run in runs for i in run] for runs in split_rows(length, ranks, order)]


def on_a_ring(x: Any, ranks: int, order: str, upstream: Tensor, sinks: bool = False, **options: Any) -> Whole:
    """Attention of q, k and v on several ranks, and the gradients of Σ output · upstream."""
    at, to = (positions(y.shape[2], ranks, order) for y in (x.q, x.k))
    group = Threads(ranks)

    def rank_results(rank: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        parts = (x.q[:, :, at[rank]], x.k[:, :, to[rank]], x.v[:, :, to[rank]], x.sinks)
        q, k, v, logits = (part.detach().clone().requires_grad_() for part in parts)
        inputs = [q, k, v, logits] if sinks else [q, k, v]
        output, lse = regard.attend(
            q, k, v, group=group, order=order, return_lse=True, sinks=logits if sinks else None, **options
        )
        return output, lse, list(torch.autograd.grad(output, inputs, upstream[:, :, at[rank]]))

    def join(parts: list[Tensor], numbers: list[list[int]]) -> Tensor:
        order = torch.tensor([i for of_rank in numbers for i in of_rank]).argsort()
        return torch.cat(parts, 2)[:, :, order]

    outputs, lses, gradients = zip(*group.run(rank_results), strict=True)
    by_input = list(zip(*gradients, strict=True))
    joined = [join(list(parts), rows) for parts, rows in zip(by_input[:3], (at, to, to), strict=True)]
    if sinks:  # each rank has the share of its own rows
        joined.append(torch.stack(by_input[3]).sum(0))
    return Whole(join(list(outputs), at), join(list(lses), at), joined)


@pytest.mark.usefixtures("threads")
@given(
    n=strategies.sizes(13), ranks=st.integers(1, 4), order=st.sampled_from(ORDERS), pick=st.data(),
    sinks=st.booleans(), softcap=st.sampled_from([None, None, 1.5]), seed=st.integers(0, 2**20),
)  # fmt: skip
def test_output_lse_and_gradients_are_those_of_the_whole(
    n: Any, ranks: int, order: str, pick: Any, sinks: bool, softcap: float | None, seed: int
) -> None:
    drawn = pick.draw(strategies.masks(n))
    x = strategies.tensors(n, seed, torch.float64)
    inputs = [y.requires_grad_() for y in (x if sinks else x[:3])]
    right = truth.attention(
        x.q, x.k, x.v, drawn.allowed(), bias=drawn.score_bias(), softcap=softcap,
        sinks=x.sinks if sinks else None,
    )  # fmt: skip
    upstream = torch.randn(right.output.shape, dtype=torch.float64)
    whole = on_a_ring(x, ranks, order, upstream, sinks, mask=drawn.mask, softcap=softcap)
    assert truth.error(whole.output, right.output) < 1e-12
    assert torch.allclose(whole.lse, right.lse.detach(), atol=1e-12, rtol=0)
    expected = truth.gradients(right.output, inputs, upstream)
    for ours, theirs in zip(whole.gradients, expected, strict=True):
        assert truth.error(ours, theirs) < 1e-11


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("dtype", "order"), combine([torch.float32, torch.bfloat16, torch.float16], ORDERS))
def test_a_ring_errs_about_as_little_as_pytorch(dtype: torch.dtype, order: str) -> None:
    x = strategies.tensors(strategies.Sizes(1, 4, 2, 64, 64, 16, 16), 0, dtype)
    inputs = [y.requires_grad_() for y in x[:3]]
    exact = [y.detach().double().requires_grad_() for y in x[:3]]
    right = truth.attention(*exact, regard.causal.to_dense(64).expand(1, 4, 64, 64))
    upstream = torch.randn(right.output.shape).to(dtype)
    expected = truth.gradients(right.output, exact, upstream.double())
    theirs = sdpa(x.q, x.k, x.v, is_causal=True, enable_gqa=True)
    whole = on_a_ring(x, 4, order, upstream, mask=regard.causal)
    assert whole.output.dtype == dtype
    # A piece is rounded to half precision before it is merged, which doubles the error of one rounding.
    assert truth.ratio_to_torch(whole.output, theirs, right.output) <= 2.0
    pytorchs = truth.gradients(theirs, inputs, upstream)
    for ours, own, exactly in zip(whole.gradients, pytorchs, expected, strict=True):
        assert truth.ratio_to_torch(ours, own, exactly) <= 2.0


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": regard.window(3)}, "same mask, scale, softcap, sinks or need of gradients on all ranks"),
        ({"dropout": 0.5}, "dropout: expected 0 with group=, got 0.5"),
        ({"order": "striped"}, "order: expected one of 'contiguous', 'head-tail', got 'striped'"),
        ({"order": "head-tail"}, "same order on all ranks"),
    ],
)
def test_what_one_rank_does_otherwise_every_rank_refuses(change: dict[str, Any], message: str) -> None:
    group, q = Threads(2), torch.randn(1, 2, 4, 8)

    def refusal(rank: int) -> str:
        try:
            regard.attend(q, q, q, group=group, **change if rank else {})
        except ValueError as error:
            return str(error)
        return "it ran"

    messages = group.run(refusal)
    assert message in messages[1]
    assert message in messages[0] or messages[0].startswith("group: rank 1 refused its own arguments")


@pytest.mark.usefixtures("threads")
def test_head_tail_rows_have_the_numbers_that_ring_positions_gives() -> None:
    group, q = Threads(2), torch.randn(1, 2, 6, 8)

    def refusal(rank: int) -> str:
        with pytest.raises(ValueError, match="expected") as caught:
            regard.attend(*[q[:, :, : 6 - rank]] * 3, group=group, order="head-tail")
        return str(caught.value)

    assert group.run(refusal)[0].startswith("q: expected [5, 6] rows on the ranks")


def test_a_group_needs_torch_distributed() -> None:
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="torchrun"):
        regard.attend(q, q, q, group=object())
