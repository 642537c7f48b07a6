"""The probe for induction: random tokens, repeated, and a model made by hand that finds them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard import attention_map, causal
from regard.heads import probe, repeated
from regard.maps import AttentionMap


def test_a_head_that_looks_after_the_last_copy_scores_one_and_its_null_does_not() -> None:
    def maps(ids: Tensor) -> list[AttentionMap]:
        T = ids.shape[1]
        keys = torch.eye(T).expand(len(ids), 1, T, T)
        after = torch.arange(T).sub(24).clamp(min=0)
        inducing = attention_map(300.0 * keys[:, :, after], keys, mask=causal, scale=1.0)
        idle = attention_map(0 * keys, keys, mask=causal)
        return [idle, inducing]

    found, nulls = probe(maps, repeated(1000, start=0))
    assert found[1].induction.mean().item() == pytest.approx(1, abs=1e-4)
    assert found[0].induction.mean().item() == pytest.approx(nulls[0].induction.mean().item())
    # From the second round on one, two or three places among all that came before.
    rounds = range(26, 101)
    wanted = sum(((q - 1) // 25) / (q + 1) for q in rounds) / len(rounds)
    assert nulls[0].induction.mean().item() == pytest.approx(wanted)
