"""Head scores: the definitions written out over the whole matrix, and heads made by hand to do one thing."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard import alibi, attention_map, causal
from regard.heads import HeadScores, scores, uniform
from tests.sampling import examples


def by_definition(A: Tensor, ids: Tensor, near: int) -> HeadScores:
    """FACTS by loops: A (B, H, T, T) after softmax, tokens (B, T)."""
    B, H, T, _ = A.shape
    out = {name: torch.full((B, H), torch.nan, dtype=A.dtype) for name in HeadScores._fields}
    for b in range(B):
        x = ids[b].tolist()
        for h in range(H):
            a = A[b, h]
            duplicate, induction, entropy, relative = [], [], [], []
            for q in range(T):
                copies = [k for k in range(q) if x[k] == x[q] and a[q, k] >= 0]
                if copies:
                    duplicate.append(sum(a[q, k].item() for k in copies))
                after = [p + 1 for p in range(q) if x[p] == x[q] and p + 1 < q]
                if after:
                    induction.append(sum(a[q, k].item() for k in after))
                row = a[q, : q + 1]
                entropy.append(-torch.special.xlogy(row, row).sum().item())
                if q > 0:
                    relative.append(entropy[-1] / math.log(q + 1))
            every = range(T)
            share = [a[k:, k].mean().item() for k in every]
            means = {
                "previous_token": [a[q, q - 1].item() for q in range(1, T)],
                "itself": [a[q, q].item() for q in every],
                "duplicate": duplicate,
                "induction": induction,
                "sink": [max(share[k] for k in every if T - k >= min(16, T // 2 + 1))],
                "local": [a[q, max(0, q - near + 1) : q + 1].sum().item() for q in every],
                "distance": [sum((q - k) * a[q, k].item() for k in range(q + 1)) for q in every],
                "entropy": entropy,
                "normalised_entropy": relative,
            }
            for name, values in means.items():
                if values:
                    out[name][b, h] = sum(values) / len(values)
    return HeadScores(**out)


@settings(max_examples=examples(25))
@given(
    T=st.integers(2, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    tokens=st.integers(1, 6),
    near=st.integers(1, 5),
    seed=st.integers(0, 99),
    biased=st.booleans(),
)
def test_scores_are_their_definitions(
    T: int, heads: tuple[int, int], tokens: int, near: int, seed: int, biased: bool
) -> None:
    torch.manual_seed(seed)
    H, G = heads
    q, k = torch.randn(2, H, T, 4, dtype=torch.float64), torch.randn(2, G, T, 4, dtype=torch.float64)
    ids = torch.randint(0, tokens, (2, T))
    m = attention_map(3 * q, k, mask=causal & alibi(H) if biased else causal)
    found, wanted = scores(m, ids, near=near), by_definition(m.to_dense(), ids, near)
    for name in HeadScores._fields:
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), equal_nan=True, msg=name)
    # The null is the same definition, of uniform attention.
    flat = torch.ones(T, T, dtype=torch.float64).tril()
    flat = (flat / flat.sum(-1, keepdim=True)).expand(2, H, T, T)
    null, wanted = scores(uniform(m), ids, near=near), by_definition(flat, ids, near)
    for name in HeadScores._fields:
        torch.testing.assert_close(getattr(null, name), getattr(wanted, name), equal_nan=True, msg=name)
