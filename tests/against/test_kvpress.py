"""Policies against the code of KVPress 0.5.5 on the same queries and keys: `make test-kvpress`."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import regard
from regard import policies
from regard.policies import CacheState

T, BUDGET, WIDTH, HEADS, KV_HEADS = 160, 60, 16, 4, 2


@pytest.fixture(scope="module")
def presses():
    """The presses, without the rest of the package, which needs `datasets` and an older Transformers."""
    found = importlib.util.find_spec("kvpress")
    if found is None:
        pytest.skip("kvpress is not installed: `make test-kvpress` installs it")
    package = ModuleType("kvpress")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["kvpress"] = package
    names = ("streaming_llm", "snapkv", "tova", "knorm", "observed_attention")
    return SimpleNamespace(
        **{name: importlib.import_module(f"kvpress.presses.{name}_press") for name in names}
    )


class SameLayer:
    """One layer's queries and keys, asked by a press of KVPress and by a policy."""

    def __init__(self, seed):
        draw = torch.Generator().manual_seed(seed)
        self.q = torch.randn(1, HEADS, T, WIDTH, generator=draw) * 2
        self.k = torch.randn(1, KV_HEADS, T, WIDTH, generator=draw)
        self.map = regard.attention_map(self.q, self.k, mask=regard.causal)
        self.weights = self.map.to_dense()

    def kept_by(self, press):
        """The keys that a press keeps at the end of a prompt, boolean (1, G, T)."""
        heads = {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
        module = SimpleNamespace(config=SimpleNamespace(**heads), head_dim=WIDTH)
        hidden = torch.zeros(1, T, 1)  # read for its length
        return highest(press.score(module, hidden, self.k, self.k, self.weights, {}))

    def scores_of(self, policy):
        """The scores of a policy whose cache of all keys is full, (1, G, T)."""
        positions = torch.arange(T).expand(1, KV_HEADS, T)
        received = self.weights.sum(2).view(1, KV_HEADS, -1, T).mean(2)
        return policy.score(CacheState(self.map, positions, T, 2 * BUDGET, received))


def highest(scores):
    return torch.zeros(scores.shape, dtype=torch.bool).scatter_(-1, scores.topk(BUDGET).indices, True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_keys_are_kept(presses, seed):
    layer, ratio = SameLayer(seed), 1 - BUDGET / T
    pairs = [
        (presses.streaming_llm.StreamingLLMPress(ratio, 4), policies.streaming(4)),
        (presses.snapkv.SnapKVPress(ratio, 32, 5), policies.snapkv(32, 5)),
        (presses.knorm.KnormPress(ratio), policies.key_norm()),
    ]
    for press, policy in pairs:
        assert torch.equal(highest(layer.scores_of(policy)), layer.kept_by(press)), policy.name


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_differs_is_what_the_page_says(presses, seed):
    layer, ratio = SameLayer(seed), 1 - BUDGET / T
    # TOVA's own definition does not keep the newest key for certain.
    scores = layer.scores_of(policies.tova()).clone()
    scores[..., -1] = torch.inf
    assert torch.equal(highest(scores), layer.kept_by(presses.tova.TOVAPress(ratio)))
    # KVPress divides what a key has received by the number of queries that see it; H2O sums.
    observed = layer.kept_by(presses.observed_attention.ObservedAttentionPress(ratio))
    summed = layer.scores_of(policies.h2o(recent=0))
    assert torch.equal(highest(summed / torch.arange(T, 0, -1)), observed)
    assert not torch.equal(highest(summed), observed)
