"""Captures that keep an overview with each map: computed with the attention, or after it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention.attend import attend
from regard.attention.backends.triton import launch
from regard.attention.backends.triton.cells import SquareCells
from regard.gpt import GPT, Config
from regard.maps.tile_passes import kept_overview
from tests.recorder.small_llama import small_llama
from tests.recorder.small_models import Projected

pytest.importorskip("transformers")

T = 75
CELLS = [*range(0, T, 16), T]


@pytest.fixture(autouse=True)
def _short_texts(monkeypatch):
    monkeypatch.setattr(kept_overview, "MIN_QUERIES", 64)
    monkeypatch.setattr(kept_overview, "MIN_SIZE", 16)
    torch.manual_seed(0)


@pytest.fixture
def kernel_runs(monkeypatch):
    """A stand-in for the kernel that hands out overviews, which needs a GPU; the problems that it has run."""
    problems = []

    def run_with_cells(problem, size):
        problems.append(problem)
        q, k, v, mask, scale, softcap, sinks, _ = problem
        options = {"mask": mask, "scale": scale, "softcap": softcap, "sinks": sinks}
        output, lse = attend(q, k, v, **options, return_lse=True)
        edges = [*range(0, q.shape[2], size), q.shape[2]]
        cells = regard.attention_map(q, k, **options, lse=lse).pool(edges, edges, "both")
        return output, lse, SquareCells(size, *cells)

    monkeypatch.setattr(launch, "pools_in_forward", lambda problem: not problem.needs_grad)
    monkeypatch.setattr(launch, "run_with_cells", run_with_cells)
    return problems


def gpt():
    sizes = {"vocab_size": 32, "context_length": 128, "num_layers": 2, "d_model": 32, "num_heads": 4}
    return GPT(Config(**sizes)).eval()


def sdpa(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def ids():
    return torch.randint(0, 32, (1, T))


MODELS = {
    "GPT": lambda: (gpt(), (ids(),)),
    "SDPA": lambda: (nn.Sequential(Projected(sdpa), Projected(sdpa)), (torch.randn(1, T, 16),)),
    "Llama": lambda: (small_llama(), (ids(),)),
    "Llama with Regard's attention": lambda: (small_llama("regard"), (ids(),)),
}


def assert_holds_its_overview(m):
    expected = m._with(precise=m.precise).pool(CELLS, CELLS, "both")
    for found, right in zip(m.pool(CELLS, CELLS, "both"), expected, strict=True):
        assert (found - right).abs().max() < 1e-6
    assert m.kept.size == 16
    assert torch.equal(m.pool(CELLS, CELLS), m.kept.mass)


@pytest.mark.parametrize("by_kernel", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_overviews_of_the_models_own_attention_and_of_the_kernel(name, by_kernel, request):
    runs = request.getfixturevalue("kernel_runs") if by_kernel else []
    model, inputs = MODELS[name]()
    seen = regard.capture(model, inputs=inputs, overviews=True)
    assert len(runs) == 2 * by_kernel
    assert seen.certificate.certified
    against = "Regard's kernel" if by_kernel else "own attention output"
    assert all(against in str(evidence) for evidence in seen.certificate)
    for m in seen:
        assert_holds_its_overview(m)
    assert all(m.kept is None for m in regard.capture(model, inputs=inputs))


def test_only_the_layers_and_heads_that_are_selected(kernel_runs):
    model, inputs = MODELS["Llama"]()
    seen = regard.capture(model, inputs=inputs, overviews=True, layers=[1], heads=[2, 3])
    assert len(kernel_runs) == 1
    assert seen[1].kept.mass.shape == (1, 2, 5, 5)
    assert_holds_its_overview(seen[1])


def test_gradients_flow_through_the_models_own_attention(kernel_runs):
    model, inputs = MODELS["SDPA"]()
    with regard.capture(model, overviews=True) as seen:
        model(*inputs).sum().backward()
    assert not kernel_runs
    assert model[0].qkv.weight.grad is not None
    assert_holds_its_overview(seen[0])


def test_edited_attention_is_pooled_as_it_was_edited(kernel_runs):
    model, inputs = MODELS["GPT"]()
    with torch.no_grad(), regard.intervene(model, regard.block(0, edges=regard.window(3))):
        seen = regard.capture(model, inputs=inputs, overviews=True)
    assert not kernel_runs
    for m in seen:
        assert_holds_its_overview(m)


def test_a_map_that_grows_keeps_none(kernel_runs):
    model, (prompt,) = MODELS["GPT"]()
    with torch.no_grad(), regard.capture(model, overviews=True) as seen:
        model.generate(prompt, max_new_tokens=3)
    assert seen.certificate.certified
    assert seen[0].shape[2] > T
    assert seen[0].kept is None


def test_overviews_are_written_to_the_folder(tmp_path):
    model, inputs = MODELS["SDPA"]()
    regard.capture(model, inputs=inputs, overviews=True, folder=tmp_path / "capture")
    for m in regard.load(tmp_path / "capture"):
        assert_holds_its_overview(m)
