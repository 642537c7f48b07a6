"""`attend(…, group=)` on threads and on two processes: any mask, sizes and order, against the whole."""

import signal
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.attention.context_parallel.rows import split_rows
from tests import ranks, strategies, truth
from tests.attention.context_parallel.ring_program import CASES, IDS, H, Inputs, RingModel, T
from tests.attention.context_parallel.thread_ring import Threads, threads
from tests.sampling import combine

__all__ = ["threads"]
ORDERS = ("contiguous", "head-tail")


class Whole(NamedTuple):
    """The results of all ranks, put together."""

    output: Tensor
    lse: Tensor
    gradients: list[Tensor]  # of q, k, v and, if there are any, sinks


def positions(length, ranks, order):
    return [[i for run in runs for i in run] for runs in split_rows(length, ranks, order)]


def on_a_ring(x, ranks, order, upstream, sinks=False, **options):
    """Attention of q, k and v on several ranks, and the gradients of Σ output · upstream."""
    at, to = (positions(y.shape[2], ranks, order) for y in (x.q, x.k))
    group = Threads(ranks)

    def rank_results(rank):
        parts = (x.q[:, :, at[rank]], x.k[:, :, to[rank]], x.v[:, :, to[rank]], x.sinks)
        q, k, v, logits = (part.detach().clone().requires_grad_() for part in parts)
        inputs = [q, k, v, logits] if sinks else [q, k, v]
        output, lse = regard.attend(
            q, k, v, group=group, order=order, return_lse=True, sinks=logits if sinks else None, **options
        )
        return output, lse, list(torch.autograd.grad(output, inputs, upstream[:, :, at[rank]]))

    def join(parts, numbers):
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
def test_output_lse_and_gradients_are_those_of_the_whole(n, ranks, order, pick, sinks, softcap, seed):
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
def test_a_ring_errs_about_as_little_as_pytorch(dtype, order):
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
def test_what_one_rank_does_otherwise_every_rank_refuses(change, message):
    group, q = Threads(2), torch.randn(1, 2, 4, 8)

    def refusal(rank):
        try:
            regard.attend(q, q, q, group=group, **change if rank else {})
        except ValueError as error:
            return str(error)
        return "it ran"

    messages = group.run(refusal)
    assert message in messages[1]
    assert message in messages[0] or messages[0].startswith("group: rank 1 refused its own arguments")


@pytest.mark.usefixtures("threads")
def test_head_tail_rows_have_the_numbers_that_ring_positions_gives():
    group, q = Threads(2), torch.randn(1, 2, 6, 8)

    def refusal(rank):
        with pytest.raises(ValueError, match="expected") as caught:
            regard.attend(*[q[:, :, : 6 - rank]] * 3, group=group, order="head-tail")
        return str(caught.value)

    assert group.run(refusal)[0].startswith("q: expected [5, 6] rows on the ranks")


def test_a_group_needs_torch_distributed():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="torchrun"):
        regard.attend(q, q, q, group=object())


PROGRAM = "tests.attention.context_parallel.ring_program"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What one run of two processes has written, and `said.txt`, what rank 0 said when rank 1 was killed."""
    folder = tmp_path_factory.mktemp("ring")
    with ranks.started(PROGRAM, 2, folder) as processes:
        texts = [process.communicate(timeout=ranks.LIMIT) for process in processes]
        assert [process.returncode for process in processes] == [0, -signal.SIGKILL], texts
    (folder / "said.txt").write_text(texts[0][0])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_as_exact_as_pytorch_in_one(name, folder):
    results = [load_file(folder / f"rank-{rank}.safetensors") for rank in range(2)]
    case, inputs = CASES[name], Inputs.of(CASES[name])
    order = torch.cat([of_rank[f"{name}/positions"] for of_rank in results]).argsort()
    whole = {
        key: torch.cat([of_rank[f"{name}/{key}"] for of_rank in results], 2)[:, :, order]
        for key in ("output", "lse", "dq", "dk", "dv")
    }
    allowed = case.mask().to_dense(T).expand(1, H, T, T)
    exact, own = (
        [x.detach().to(d).requires_grad_() for x in inputs[:3]] for d in (torch.float64, case.dtype)
    )
    right = truth.attention(*exact, allowed)
    pytorchs = sdpa(*own, attn_mask=allowed, enable_gqa=True)
    assert truth.error(whole["lse"], right.lse.detach()) < 1e-5
    pairs = [("output", pytorchs, right.output)]
    gradients = (truth.gradients(y, x, inputs.upstream) for y, x in ((pytorchs, own), (right.output, exact)))
    pairs += zip(("dq", "dk", "dv"), *gradients, strict=True)
    for key, theirs, exactly in pairs:
        assert truth.ratio_to_torch(whole[key], theirs, exactly) <= 2.0, key


def test_a_killed_rank_ends_the_other_with_one_sentence(folder):
    (line,) = (folder / "said.txt").read_text().splitlines()
    assert line.startswith("rank 0 ends, since another of the 2 processes that run together has ended")


@pytest.mark.parametrize("order", ["contiguous", "head-tail"])
def test_the_rows_of_two_ranks_are_one_capture(order, folder):
    seen = regard.load(folder / order)
    assert isinstance(seen, regard.Capture)
    alone = regard.capture(RingModel().eval(), inputs={"input_ids": IDS}, values=True)
    assert torch.equal(seen.ids, alone.ids)
    assert seen.certificate.certified
    evidence = seen.certificate[0]
    mask = "causal" if order == "contiguous" else "tensor_mask(20×20)"
    assert (evidence.rows, evidence.total_rows, evidence.mask) == (T, T, mask)
    for rank in range(2):  # each rank knows the evidence of all
        assert (folder / f"{order}-{rank}.txt").read_text() == str(seen.certificate)
    for layer, expected in zip(seen.layers, alone.layers, strict=True):
        assert (layer.key, layer.name, layer.shape) == (expected.key, expected.name, expected.shape)
        assert torch.allclose(layer.map.to_dense(), expected.map.to_dense(), atol=1e-6)
        assert torch.allclose(layer.values, expected.values, atol=1e-6)
    assert [row.head for row in seen.heads()] == [0, 1, 2, 3] * 2


def test_exchanged_outputs_are_not_certified(folder):
    for rank in range(2):
        lines = (folder / f"exchanged-{rank}.txt").read_text().splitlines()
        assert len(lines) == 2
        assert all("not certified: off this layer's own attention output" in line for line in lines)
