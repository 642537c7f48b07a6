"""What a policy loses, against whole matrices in float64 and policies written out token by token."""

import math
from itertools import product

import pytest
import torch

import regard
from regard import policies
from regard.policies.measurement import evicted_positions, measure_own
from tests import truth
from tests.policies import dense_policies
from tests.policies.dense_policies import DenseHead
from tests.sampling import share

T, WIDTH, BUDGET, EVERY = 40, 64, 16, 2
EVICTIONS = {
    "streaming": (policies.streaming(), dense_policies.streaming),
    "random": (policies.random(), dense_policies.random),
    "h2o": (policies.h2o(), dense_policies.h2o),
    "snapkv": (policies.snapkv(6, 3), dense_policies.snapkv),
    "tova": (policies.tova(), dense_policies.tova),
    "key_norm": (policies.key_norm(), dense_policies.key_norm),
}
SELECTIONS = {
    "quest": (policies.quest(4), 4),
    "blocks": (policies.blocks(5), 5),
    "best": (policies.best(), 1),
}
SETTINGS = {
    "causal": {"mask": regard.causal},
    "window": {"mask": regard.causal & regard.window(24)},
    "padding": {"mask": regard.causal & regard.padding(torch.arange(T)[None] >= torch.tensor([[0], [9]]))},
    "documents": {
        "mask": regard.causal & regard.documents((torch.arange(T) > 13).long()[None].expand(2, -1))
    },
    "alibi": {"mask": regard.causal & regard.alibi(4)},
    "function": {"mask": regard.rule(lambda b, h, q, k: (k <= q) & ((q - k) % 7 != 3))},
    "sinks": {"mask": regard.causal, "sinks": torch.tensor([0.5, -1.0, 3.0, 0.0])},
    "soft cap": {"mask": regard.causal, "softcap": 2.0},
    "large scores": {"mask": regard.causal, "scale": 1.5},
}


def draw(seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, n, T, WIDTH, generator=generator) for n in (4, 2, 2))
    k[:, :, 0] *= 2.0
    return q, k, v


def dense_scores(q, k, options):
    """The scores of all heads (B, H, T, T) written out, in the dtype of q and k."""
    everything = slice(0, T), slice(0, T), (2, 4, T, T)
    allowed, bias = (ask(*everything) for ask in (options["mask"].tile, options["mask"].bias))
    scores = q @ k.repeat_interleave(2, 1).mT * options.get("scale", WIDTH**-0.5)
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    scores = scores if bias is None else scores + bias.to(scores)
    return scores.masked_fill(~allowed, -math.inf)


def dense_heads(q, k, options):
    """Every key/value head of every sequence, with its scores in float64."""
    scores, sinks = dense_scores(q.double(), k.double(), options), options.get("sinks")
    return [
        [
            DenseHead(
                scores[b, 2 * g : 2 * g + 2],
                q[b, 2 * g : 2 * g + 2].double(),
                k[b, g].double(),
                g,
                None if sinks is None else sinks[2 * g : 2 * g + 2],
            )
            for g in range(2)
        ]
        for b in range(2)
    ]


def dense_kept(name, heads):
    """Which keys every query has under a policy, boolean (B, H, T, S)."""
    kept = torch.zeros(2, 4, T, T, dtype=torch.bool)
    for b, layer in enumerate(heads):
        if name in SELECTIONS:
            block = SELECTIONS[name][1]
            for g, head in enumerate(layer):
                kept[b, 2 * g : 2 * g + 2] = dense_policies.select(head, name, block, BUDGET)
            continue
        for g, lists in enumerate(dense_policies.simulate(layer, EVICTIONS[name][1], BUDGET, EVERY, T)):
            for i, keys in enumerate(lists):
                kept[b, 2 * g : 2 * g + 2, i, keys] = True
    return kept


def dense_retention(q, k, v, options, kept, dtype):
    """Shares and errors as eager code computes them from whole matrices in a dtype."""
    scores, sinks = dense_scores(q.to(dtype), k.to(dtype), options), options.get("sinks")
    values = v.to(dtype).repeat_interleave(2, 1)

    def attend(some):
        column = [] if sinks is None else [sinks.to(dtype).view(1, 4, 1, 1).expand(2, 4, T, 1)]
        weights = torch.cat([some, *column], -1).softmax(-1)[..., :T].nan_to_num(0.0)
        return weights, weights @ values

    weights, output = attend(scores)
    _, kept_output = attend(scores.masked_fill(~kept, -math.inf))
    share = (weights * kept).sum(-1) / weights.sum(-1)
    error = (kept_output - output).norm(dim=-1) / output.norm(dim=-1)
    return share.nan_to_num(0.0), error.nan_to_num(0.0)


@pytest.mark.parametrize(("name", "setting"), share(product([*EVICTIONS, *SELECTIONS], SETTINGS), 4))
def test_shares_and_errors_are_as_exact_as_eager_code(name, setting):
    q, k, v = draw()
    options = SETTINGS[setting]
    policy = (EVICTIONS | SELECTIONS)[name][0]
    found = policies.measure(
        regard.attention_map(q, k, **options), v, policy, BUDGET, EVERY if name in EVICTIONS else None
    )
    kept = dense_kept(name, dense_heads(q, k, options))
    share, error = dense_retention(q, k, v, options, kept, torch.float64)
    eager_share, eager_error = dense_retention(q, k, v, options, kept, torch.float32)
    visible = dense_scores(q, k, options) > -math.inf
    # A row that sees nothing has lost nothing, and is told apart from one that lost everything.
    sees = visible.any(-1)
    for ours, eager, exact in ((found.share, eager_share, share), (found.error, eager_error, error)):
        assert truth.ratio_to_torch(ours.float()[sees], eager[sees], exact[sees]) <= 2
    assert torch.equal(found.concerned, visible.sum(-1) > BUDGET)


def test_a_cache_never_holds_more_than_its_budget():
    q, k, _ = draw()
    m = regard.attention_map(q, k, mask=regard.causal)
    for every in (1, 3, BUDGET):
        rows_so_far = 0
        for rows, positions in evicted_positions(m, policies.random(), BUDGET, every):
            assert rows.start == rows_so_far
            assert positions.shape[-1] <= BUDGET
            own = torch.arange(rows.start, rows.stop)
            assert torch.equal(positions[0, 0, -len(own) :], own)
            rows_so_far = rows.stop
        assert rows_so_far == T


def test_random_keys_are_drawn_alike_from_all_keys_so_far():
    """A cache that forgets its oldest keys first would be no baseline."""
    x = torch.zeros(1, 1, 400, 2)
    m = regard.attention_map(x, x, mask=regard.causal)
    ages = []
    for seed in range(20):
        *_, (_, positions) = evicted_positions(m, policies.random(seed), 40, 1)
        ages += positions.flatten().tolist()
    assert abs(sum(ages) / len(ages) - 200) < 20


def test_a_mask_and_the_layers_own_selection_are_measured():
    q, k, v = draw()
    kept = regard.window(7) | regard.prefix(2)
    m = regard.attention_map(q, k, mask=regard.causal)
    found = policies.measure(m, v, kept)
    torch.testing.assert_close(found.share, m.mass(kept).double(), atol=1e-6, rtol=0)
    sparse = regard.attention_map(q, k, mask=regard.causal & kept)
    own = measure_own(sparse, v)
    torch.testing.assert_close(own.share, found.share)
    torch.testing.assert_close(own.error, found.error)
    assert torch.equal(own.concerned, found.concerned)


def test_what_cannot_be_measured_is_refused_in_a_sentence():
    q, k, v = draw()
    m = regard.attention_map(q, k, mask=regard.causal)
    h2o = policies.h2o()
    with pytest.raises(ValueError, match="budget: expected a whole number of at least 1, got 0"):
        policies.measure(m, v, h2o, 0)
    with pytest.raises(ValueError, match="every: expected a whole number from 1 to 16, got 17"):
        policies.measure(m, v, h2o, BUDGET, 17)
    with pytest.raises(ValueError, match="causal attention, but some queries see later keys"):
        policies.measure(regard.attention_map(q, k), v, h2o, BUDGET)
    with pytest.raises(ValueError, match="got 4 queries and 40 keys"):
        policies.measure(regard.attention_map(q[:, :, -4:], k, mask=regard.causal), v, h2o, BUDGET)
    with pytest.raises(ValueError, match=r"expected scores \(2, 2, 16\), one for each cached key"):
        policies.measure(m, v, policies.Eviction("mine", lambda cache: cache.positions[0]), BUDGET)
    with pytest.raises(ValueError, match="policy mine: expected a number for each cached key, got NaN"):
        policies.measure(m, v, policies.Eviction("mine", lambda cache: cache.positions * math.nan), BUDGET)
    with pytest.raises(ValueError, match="accumulates=True"):
        policies.measure(m, v, policies.Eviction("mine", lambda cache: cache.received), BUDGET)
