"""Weights on chosen keys are those of the dense matrix; layers measured together are as each alone."""

import pytest
import torch

import regard
from regard.heads import describe
from regard.heads.measures.visibility import find_visibility

T, S, B, H, G = 24, 30, 2, 4, 2
MASKS = {
    "causal": regard.causal,
    "window": regard.causal & regard.window(7),
    "both sides": regard.window(6, ahead=4),
    "full": regard.full,
    "prefix": regard.causal | regard.prefix(5),
    "padding": regard.causal & regard.padding(torch.tensor([30, 21])),
    "documents": regard.causal & regard.documents(torch.arange(S)[None] // 11),
    "alibi": regard.causal & regard.alibi(H),
    "heads differ": regard.rule(lambda b, h, q, k: (q + k) % (h + 2) < 2),
}


@pytest.fixture(params=MASKS)
def m(request):
    torch.manual_seed(0)
    q, k = torch.randn(B, H, T, 8), torch.randn(B, G, S, 8)
    q[:, 1] *= 9  # a head with scores that are computed in float64
    softcap = 3.0 if request.param == "window" else None
    return regard.attention_map(q, k, mask=MASKS[request.param], softcap=softcap)


@pytest.mark.parametrize("name", ["causal", "window", "both sides", "full"])
def test_a_band_is_counted_as_its_tiles_are(name):
    q, k = torch.randn(1, 2, T, 8), torch.randn(1, 2, S, 8)
    is_token = torch.arange(T)[None] >= 3
    for mask in (MASKS[name], MASKS[name] & regard.tensor_mask(torch.ones(T, S, dtype=torch.bool))):
        found = find_visibility(regard.attention_map(q, k, mask=mask), is_token)
        visible = mask.tile(slice(0, T), slice(0, S), (1, 1, T, S)).expand(1, 1, T, S).float()
        assert torch.equal(found.keys, visible.sum(-1))
        assert torch.equal(found.queries, (visible * is_token[:, None, :, None]).sum(-2))
        later = torch.arange(S) > torch.arange(S - T, S)[:, None]
        assert found.later == bool((visible.bool() & later).any())


def test_layers_measured_together_have_the_scores_of_each_alone():
    masks = [regard.causal, regard.causal, regard.causal & regard.window(9), regard.causal, regard.causal]
    ids = torch.randint(0, 9, (1, 40))
    maps = [regard.attention_map(torch.randn(1, 4, 40, 8), torch.randn(1, 2, 40, 8), mask=x) for x in masks]
    together = list(describe(maps, ids))
    alone = [row for m in maps for row in describe([m], ids)]
    summaries = [m.summary(8, 8) for m in maps]
    known = list(describe(maps, ids, statistics=summaries))
    for rows in (alone, known):
        for row, other in zip(together, rows, strict=True):
            assert row.labels == other.labels
            assert row.scores.keys() == other.scores.keys()
            for name, score in row.scores.items():
                assert score == pytest.approx(other.scores[name], abs=1e-5, nan_ok=True)
