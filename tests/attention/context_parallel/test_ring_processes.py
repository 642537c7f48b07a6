"""Ring attention on two processes (gloo): exact, with gradients, and over at once where a rank is killed."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from tests import ranks, truth
from tests.attention.context_parallel.ring_program import CASES, IDS, H, Inputs, RingModel, T

PROGRAM = "tests.attention.context_parallel.ring_program"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one run of two processes has written, and `said.txt`, what rank 0 said when rank 1 was killed."""
    folder = tmp_path_factory.mktemp("ring")
    with ranks.started(PROGRAM, 2, folder) as processes:
        texts = [process.communicate(timeout=ranks.LIMIT) for process in processes]
        assert [process.returncode for process in processes] == [0, -signal.SIGKILL], texts
    (folder / "said.txt").write_text(texts[0][0])
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_as_exact_as_pytorch_in_one(name: str, folder: Path) -> None:
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


def test_a_killed_rank_ends_the_other_with_one_sentence(folder: Path) -> None:
    (line,) = (folder / "said.txt").read_text().splitlines()
    assert line.startswith("rank 0 ends, since another of the 2 processes that run together has ended")


@pytest.mark.parametrize("order", ["contiguous", "head-tail"])
def test_the_rows_of_two_ranks_are_one_capture(order: str, folder: Path) -> None:
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


def test_exchanged_outputs_are_not_certified(folder: Path) -> None:
    for rank in range(2):
        lines = (folder / f"exchanged-{rank}.txt").read_text().splitlines()
        assert len(lines) == 2
        assert all("not certified: off this layer's own attention output" in line for line in lines)
