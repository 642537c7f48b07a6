"""Pictures and scores in float32: as the exact ones to four digits, and float64 where that would not hold."""

from __future__ import annotations

import torch

from regard import attention_map, causal
from regard.maps import AttentionMap
from regard.show.data.map_view.display_precision import for_display


def large_map(size: float) -> AttentionMap:
    """Two heads: one of usual scores, and one whose row log-sum-exp is about `size`."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 2, 64, 8) / 4, torch.randn(1, 2, 64, 8)
    k[:, :, :, 0] = 1.0
    q[:, 1, :, 0] += size * 8**0.5
    return attention_map(q, k, mask=causal)


def test_heads_with_large_scores_are_drawn_in_float32_and_differ_in_no_digit_that_is_seen() -> None:
    m = large_map(100.0)
    shown = for_display(m)
    assert m.precise.large.tolist() == [[False, True]]
    assert not shown.precise.large.any()
    for a, b in zip(shown.pool(8, 8, "both"), m.pool(8, 8, "both"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-7)


def test_a_head_whose_scores_are_too_large_for_float32_stays_in_float64() -> None:
    m = large_map(4000.0)
    shown = for_display(m)
    assert shown.precise.large.tolist() == [[False, True]]
    torch.testing.assert_close(shown.pool(8, 8), m.pool(8, 8), rtol=0, atol=0)
