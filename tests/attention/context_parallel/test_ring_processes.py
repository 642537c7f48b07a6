"""Ring attention on two processes (gloo): exact, with gradients, and over at once where a rank is killed."""

import time
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from tests import ranks, truth
from tests.attention.context_parallel.ring_program import CASES, H, Inputs, T

PROGRAM = "tests.attention.context_parallel.ring_program"


class RingRun(NamedTuple):
    """One run of two processes: what each wrote, and what the first said when the second was killed."""

    results: list[dict[str, Tensor]]
    message: str


@pytest.fixture(scope="module")
def ring_run(tmp_path_factory: pytest.TempPathFactory) -> RingRun:
    """Run all cases on two processes, then kill one of them."""
    folder = tmp_path_factory.mktemp("ring")
    limit = time.monotonic() + ranks.LIMIT
    with ranks.started(PROGRAM, 2, folder) as (first, second):
        while not all((folder / f"done-{rank}").exists() for rank in range(2)):
            for process in (first, second):
                assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < limit
            time.sleep(0.01)
        second.kill()
        message, _ = first.communicate(timeout=ranks.LIMIT)
    return RingRun([load_file(folder / f"rank-{rank}.safetensors") for rank in range(2)], message)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_as_exact_as_pytorch_in_one(name: str, ring_run: RingRun) -> None:
    case, inputs = CASES[name], Inputs.of(CASES[name])
    order = torch.cat([of_rank[f"{name}/positions"] for of_rank in ring_run.results]).argsort()
    whole = {
        key: torch.cat([of_rank[f"{name}/{key}"] for of_rank in ring_run.results], 2)[:, :, order]
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


def test_a_killed_rank_ends_the_other_with_one_sentence(ring_run: RingRun) -> None:
    (line,) = ring_run.message.splitlines()
    assert line.startswith("group: rank 1 of 2 has ended or does not answer, so that rank 0 cannot go on")
