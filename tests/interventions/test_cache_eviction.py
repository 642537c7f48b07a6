"""`regard.evict`: a model that reads by a cache of bounded size."""

import pytest
import torch

import regard
from tests.interventions.references import small_gpt


@pytest.fixture(scope="module")
def model():
    return small_gpt(positions="rotary", norm="rms")


def text(seed=0):
    return torch.randint(0, 61, (1, 64), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_a_streaming_cache_is_the_same_as_blocked_edges(model):
    """Token by token, the first 4 and the latest 12 keys: what is left is cut by a mask."""
    cut = ~(regard.window(12) | regard.prefix(4))
    with regard.intervene(model, *(regard.block(layer, edges=cut) for layer in range(2))):
        expected = model(text())
    with regard.intervene(model, regard.evict("streaming", 16, every=1)):
        found = model(text())
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert (found - model(text())).abs().max() > 0.1


@torch.no_grad()
def test_one_layer_alone_is_edited_by_its_number(model):
    with regard.capture(model) as seen, regard.intervene(model, regard.evict("best", 8, layer=1)):
        model(text())
    assert seen.edits == ("layer 1 with 8 keys by best",)
    with regard.capture(model) as plain:
        model(text())
    torch.testing.assert_close(seen[1].k, plain[1].k)  # the layer below is as it was


def test_what_cannot_be_evicted_is_refused_in_a_sentence(model):
    with pytest.raises(ValueError, match="got 'h3'"):
        regard.evict("h3", 8)
    with pytest.raises(ValueError, match=r"got window\(4\): write regard.block for a mask"):
        regard.evict(regard.window(4), 8)
    with pytest.raises(ValueError, match="budget: expected a whole number of at least 1, got 0"):
        regard.evict("h2o", 0)
    with (
        pytest.raises(RuntimeError, match="the edit did not act"),
        regard.intervene(model, regard.evict("h2o", 64)),
    ):
        model(text())
    with (
        pytest.raises(ValueError, match="got 1 queries and"),
        regard.intervene(model, regard.evict("h2o", 8)),
    ):
        model.generate(text()[0].tolist(), max_new_tokens=2)
