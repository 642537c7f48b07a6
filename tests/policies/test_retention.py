"""`seen.retained` and `seen.rounded`: numbers of whole captures, baselines, curves and sentences."""

import math

import pytest
import torch

import regard
from regard import policies
from regard.policies import round_cache
from regard.policies.joined_layers import CachedLayer, join_layers
from regard.policies.measurement import measure
from regard.policies.policy import Eviction, policy_of_layer
from regard.policies.retention import RetentionCurve, measure_layers
from regard.policies.rounded_cache import measure_rounding
from tests import truth
from tests.captures import captured


def test_one_policy_at_one_budget_has_every_query_and_both_baselines():
    seen = captured(64)
    found = seen.retained("h2o", budget=24)
    assert found.share.shape == found.error.shape == (2, 1, 4, 64)
    assert bool((found.share[..., :24] == 1).all())
    assert bool((found.share <= found.best.share + 1e-12).all())
    row = found.heads[5]
    assert (row.layer, row.head) == (1, 1)
    concerned = slice(24, None)
    assert row.share == pytest.approx(found.share[1, 0, 1, concerned].mean().item())
    assert row.best == pytest.approx(found.best.share[1, 0, 1, concerned].mean().item())
    positions = found.by_position(4)
    assert [first for first, _ in positions] == [0, 16, 32, 48]
    assert math.isnan(positions[0][1])  # nothing to lose
    assert positions[3][1] == pytest.approx(found.share[..., 48:].mean().item())
    assert "of the attention is kept (random keys" in str(found)
    assert "in which nothing was evicted" in str(found)


def test_a_streaming_policy_is_the_head_score_eviction():
    """The score keeps the first 4 and the latest 64 keys, token by token: a budget of 68 keys."""
    seen = captured(120)
    found = seen.retained("streaming", budget=68, every=1, baselines=False)
    keys = torch.arange(120)
    evicted = (keys >= 4) & (keys <= keys[:, None] - 64)
    for number, m in enumerate(seen):
        loss = (m.to_dense()[0].double() * evicted).sum(-1)
        torch.testing.assert_close(1 - found.share[number, 0], loss, atol=1e-6, rtol=0)
    scores = {(str(row.key), row.head): row.scores["eviction"].value for row in seen.heads(shuffled=None)}
    for row in found.heads:
        assert 1 - row.share == pytest.approx(scores[str(row.layer), row.head], abs=1e-6)


def test_a_policy_of_ones_own_is_one_function():
    def latest(cache):
        return cache.positions  # whole numbers will do

    seen = captured(64)
    found = seen.retained(latest, budget=16, every=1, baselines=False)
    expected = torch.stack([m.mass(regard.window(16)) for m in seen]).double()
    torch.testing.assert_close(found.share, expected, atol=1e-6, rtol=0)
    assert found.policy == "latest"


def test_several_budgets_are_a_curve_that_says_what_every_head_needs():
    seen = captured(64)
    curve = seen.retained(["streaming", policies.quest(4)], budget=[8, 16, 32, 64])
    assert isinstance(curve, RetentionCurve)
    assert curve.policies == ("streaming", "quest", "random", "best")
    assert curve.shares.shape == curve.errors.shape == (4, 4, 8)
    one = seen.retained("streaming", budget=16, baselines=False)
    assert curve.shares[0, 1].tolist() == pytest.approx([row.share for row in one.heads])
    assert bool(curve.shares[:, 3].isnan().all())  # every key fits
    needed = curve.needed("best")
    assert all(x in (8, 16, 32, 64) for x in needed)
    assert curve.needed("best", share=0.0) == [8] * 8
    table = str(curve)
    assert table.splitlines()[0].split() == ["attention", "kept", "8", "16", "32", "64"]
    assert "100.0%" in table
    frame = curve.to_pandas()
    assert len(frame) == 4 * 4 * 8
    assert len(curve.figure().axes) == 2
    with pytest.raises(ValueError, match="expected one of streaming, quest, random, best, got 'h2o'"):
        curve.needed("h2o")
    with pytest.raises(ValueError, match="share: expected a share from 0 to 1, got 2"):
        curve.needed("best", share=2)
    backwards = seen.retained("tova", budget=[32, 16, 32], baselines=False)
    assert backwards.budgets == (16, 32)
    assert backwards.needed("tova", share=0.0) == [16] * 8


def test_a_budget_beyond_the_text_is_answered_with_a_sentence():
    seen = captured(40)
    found = seen.retained("snapkv", budget=4096)
    assert bool((found.share == 1).all())
    assert str(found) == "snapkv with 4,096 keys: nothing is lost, since no query sees more keys than 4,096."


def test_windows_of_the_layers_are_measured_as_they_are():
    seen = captured(64, mask=regard.causal & regard.window(16))
    found = seen.retained("own")
    for number, m in enumerate(seen):
        full = regard.attention_map(m.q, m.k, mask=regard.causal, scale=m.scale)
        share = (m.lse.double() - full.lse.double()).exp()
        torch.testing.assert_close(found.share[number], share, atol=1e-6, rtol=0)
    assert found.budget is None
    with pytest.raises(ValueError, match="budget: expected none, since own chooses the keys itself, got 16"):
        seen.retained("own", budget=16)


def test_without_values_there_are_shares_and_no_errors():
    found = captured(40, values=False).retained("tova", budget=8, baselines=False)
    assert found.share.shape == (2, 1, 4, 40)
    with pytest.raises(ValueError, match="capture with values=True"):
        found.error  # noqa: B018
    assert "change" not in str(found)


@pytest.mark.parametrize(
    ("policy", "budget", "sentence"),
    [
        ("h2", 8, "policy: expected one of streaming, h2o, .* or a mask, got 'h2'"),
        ("h2o", 0, "budget: expected a whole number of at least 1, got 0"),
        ("h2o", None, "budget: expected a whole number of at least 1, got None"),
        ("h2o", [8, 0], "budget: expected a whole number of at least 1, got 0"),
        (["h2o", "own"], [8], "expected policies with a budget, got own"),
        ("h2o", [], "budget: expected one number of keys at least, got an empty list"),
        ("h2o", "32", "budget: expected a whole number of at least 1, got '32'"),
        ([], 8, "policy: expected one policy at least, got an empty list"),
        (["h2o", policies.h2o(0.1)], 8, "policy: expected different names, got h2o twice"),
    ],
)
def test_wrong_names_and_budgets_are_answered_with_a_sentence(policy, budget, sentence):
    with pytest.raises(ValueError, match=sentence):
        captured(24).retained(policy, budget=budget)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda scores: None, r"expected scores \(1, 4, 16, 4\), .* got NoneType"),
        (lambda scores: scores[..., :1], r"or the same for 2 key/value heads, got \(1, 4, 16, 1\)"),
        (lambda scores: scores[:, :1], r"got \(1, 1, 16, 4\)"),
        (lambda scores: scores * math.nan, "expected a number for each block, got NaN"),
        (lambda scores: scores + 1j, "expected a number for each block, got complex ones"),
    ],
)
def test_wrong_scores_of_blocks_are_refused(change, sentence):
    def score(state):
        return change(state.products(state.key_blocks().mean(3)))

    with pytest.raises(ValueError, match=sentence):
        captured(16).retained(policies.Selection("mine", score, 4), budget=8, baselines=False)


T, BUDGETS = 60, (9, 24)
OTHERS = {
    2: {"mask": regard.causal & regard.window(40)},
    3: {"mask": regard.causal, "scale": 0.7},
    4: {"mask": regard.causal, "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
}


def draw_layers(values):
    """Eight layers: 0 and 1 can be joined, then 5, 6 and "decoder.7"; the others are unlike any other."""
    generator = torch.Generator().manual_seed(0)
    layers = []
    for key in (0, 1, 2, 3, 4, 5, 6, "decoder.7"):
        q, k, v = (torch.randn(2, n, T, 16, generator=generator) for n in (4, 2, 2))
        m = regard.attention_map(q, k, **OTHERS.get(key, {"mask": regard.causal}))
        layers.append(CachedLayer(key, (0, 1, 2, 3), m, v if values else None))
    return layers


@pytest.mark.parametrize("values", [True, False])
def test_joined_layers_have_the_numbers_of_each_alone(values):
    layers = draw_layers(values)
    runs = [[layer.key for layer in run.layers] for run in join_layers(layers)]
    assert runs == [[0, 1], [2], [3], [4], [5, 6, "decoder.7"]]
    chosen = [policies.streaming(), policies.h2o(), policies.snapkv(6, 3), policies.random(), policies.best()]
    measured = list(measure_layers(layers, chosen, BUDGETS, 3))
    assert [layer.key for layer, _ in measured] == [layer.key for layer in layers]
    for layer, table in measured:
        for policy, row in zip(chosen, table, strict=True):
            own = policy_of_layer(policy, layer.key)
            every = 3 if isinstance(policy, Eviction) else None
            for budget, found in zip(BUDGETS, row, strict=True):
                alone = measure(layer.map, layer.values, own, budget, every)
                assert torch.equal(found.share, alone.share)
                assert torch.equal(found.concerned, alone.concerned)
                assert (found.error is None) == (not values)
                if found.error is not None and alone.error is not None:
                    assert torch.equal(found.error, alone.error)
                assert bool((found.share[found.concerned] < 1).any())


def dense(q, k, v, options):
    T = q.shape[2]
    scores = q @ k.repeat_interleave(2, 1).mT * q.shape[-1] ** -0.5
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores.masked_fill(~options["mask"].to_dense(T), -math.inf)
    if "sinks" in options:
        scores = torch.cat([scores, options["sinks"].to(q).view(1, 4, 1, 1).expand(1, 4, T, 1)], -1)
    weights = scores.softmax(-1)
    return weights, weights[..., :T] @ v.repeat_interleave(2, 1)


@pytest.mark.parametrize("bits", [8, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"mask": regard.causal},
        {"mask": regard.causal & regard.window(9)},
        {"mask": regard.causal, "sinks": torch.tensor([1.0, -1.0, 0.0, 2.0])},
        {"mask": regard.causal, "softcap": 1.5},
    ],
    ids=["causal", "window", "sinks", "soft cap"],
)
def test_changes_are_as_exact_as_eager_code(options, bits):
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, n, 50, 16, generator=draw) for n in (4, 2, 2))
    found = measure_rounding(regard.attention_map(q, k, **options), v, bits, group=8)
    pairs = {}
    for dtype in (torch.float64, torch.float32):
        rounded = round_cache(k, bits, "channel", 8).to(dtype), round_cache(v, bits, "token", 8).to(dtype)
        before, output = dense(q.to(dtype), k.to(dtype), v.to(dtype), options)
        after, other = dense(q.to(dtype), *rounded, options)
        error = (other - output).norm(dim=-1) / output.norm(dim=-1)
        pairs[dtype] = (after - before).abs().sum(-1) / 2, error
    for ours, exact, eager in zip(found, pairs[torch.float64], pairs[torch.float32], strict=True):
        assert truth.ratio_to_torch(ours.float(), eager, exact) <= 2


def test_a_capture_says_what_rounding_changes():
    seen = captured(40)
    found = {bits: seen.rounded(bits) for bits in (8, 4, 3, 2)}
    assert found[4].variation.shape == found[4].error.shape == (2, 1, 4, 40)
    means = [float(found[bits].variation.mean()) for bits in (8, 4, 3, 2)]
    assert means == sorted(means)
    assert float(found[8].error.mean()) < 0.02
    assert str(found[2]).startswith("2 bits (keys by channel and values by token): ")
    only_values = seen.rounded(3, keys=None)
    assert float(only_values.variation.max()) < 1e-6
    assert float(only_values.error.mean()) > 0.01


def test_what_cannot_be_rounded_is_refused_in_a_sentence():
    seen = captured(8)
    with pytest.raises(ValueError, match="bits: expected a whole number from 1 to 16, got 0"):
        seen.rounded(0)
    with pytest.raises(ValueError, match="by: expected 'channel' or 'token', got 'head'"):
        seen.rounded(4, keys="head")
    with pytest.raises(ValueError, match="got neither"):
        seen.rounded(4, keys=None, values=None)
    with pytest.raises(ValueError, match="capture with values=True"):
        captured(8, values=False).rounded(4).error  # noqa: B018
