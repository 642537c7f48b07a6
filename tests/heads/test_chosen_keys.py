"""Weights on chosen keys are those of the dense matrix; layers measured together are as each alone."""

import pytest
import torch

import regard
from regard.heads import describe
from regard.heads.measures.chosen_keys import columns, mass_on, sees, sees_any, several_columns, weights_on
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


def close(found, expected, within):
    torch.testing.assert_close(found, expected, atol=within, rtol=0)


@pytest.fixture(params=MASKS)
def m(request):
    torch.manual_seed(0)
    q, k = torch.randn(B, H, T, 8), torch.randn(B, G, S, 8)
    q[:, 1] *= 9  # a head with scores that are computed in float64
    softcap = 3.0 if request.param == "window" else None
    return regard.attention_map(q, k, mask=MASKS[request.param], softcap=softcap)


def test_columns_and_entries_are_those_of_the_matrix(m):
    A = m.to_dense()
    keys = torch.randint(-1, S, (B, H, 3))
    expected = A.gather(3, keys.clamp(min=0).unsqueeze(2).expand(-1, -1, T, -1)) * (keys >= 0).unsqueeze(2)
    close(several_columns(m, keys), expected, 2e-6)
    close(columns(m, keys[..., 0]), expected[..., 0], 2e-6)
    own = torch.randint(-1, S, (B, H, T))
    expected = A.gather(3, own.clamp(min=0).unsqueeze(-1))[..., 0] * (own >= 0)
    close(weights_on(m, own), expected, 2e-6)


def test_one_head_of_uniform_attention_serves_all_heads(m):
    uniform, keys = find_visibility(m).uniform, torch.randint(0, S, (B, H))
    A = regard.heads.uniform(m).to_dense()
    close(columns(uniform, keys), A.gather(3, keys[..., None, None].expand(-1, -1, T, 1))[..., 0], 2e-6)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_mass_on_some_keys_and_who_sees_them(m, share):
    is_key = torch.rand(B, H, S) < share
    visible = (m.mask.tile(slice(0, T), slice(0, S), m.matrix)).expand(B, H, T, S)
    close(mass_on(m, is_key), (m.to_dense() * is_key.unsqueeze(2)).sum(-1), 4e-6)
    assert torch.equal(sees_any(m, is_key), (visible & is_key.unsqueeze(2)).any(-1))
    keys = torch.arange(S).expand(B, H, 1, S)
    assert torch.equal(sees(m, keys), visible)


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
