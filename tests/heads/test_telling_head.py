"""The head that is shown first: by what it does, whatever the length of the text."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import attention_map, full
from regard.heads.telling_head import find_selective_head, find_telling_head
from regard.maps import AttentionMap
from regard.pictures.patch_layout import PatchAxes, PatchLayout, PatchSpan
from tests.heads.made_heads import duplicating, inducing, looking_at, previous, repeats, sinking


def layers(ids: Tensor, *places: Tensor) -> list[tuple[AttentionMap, Tensor | None]]:
    return [(looking_at(place, noise=0.1), ids[0]) for place in places]


def test_induction_comes_before_duplicates_and_these_before_the_previous_token() -> None:
    T = 90
    ids = repeats(20, T)
    kinds = [sinking(0, T), previous(T), duplicating(ids), inducing(ids)]
    for last in range(1, 5):
        made = layers(ids, *kinds[:last])
        assert find_telling_head(made) == (last - 1, 0)


def test_without_tokens_it_is_the_head_whose_queries_differ_the_most() -> None:
    T = 40
    places = torch.randperm(T)
    made = [(looking_at(place, mask=full), None) for place in (torch.full((T,), 7), places)]
    uniform = torch.zeros(1, 2, T, 4)
    assert find_telling_head([(attention_map(uniform, uniform), None), *made]) == (2, 0)
    assert find_telling_head([]) is None


def test_of_a_vision_transformer_it_is_the_head_whose_cls_is_selective_among_patches() -> None:
    patches = PatchLayout((PatchSpan(0, 2, 2, 2, (0, 1, 2, 3)),), {0: "CLS", 1: "register 1"})
    q = torch.zeros(1, 3, 6, 6)
    q[0, 0, 0, 1] = 30.0  # CLS of head 0 attends to the register
    q[0, 1, 0, 4] = 30.0  # CLS of head 1 attends to one patch
    q[0, 2, 1:] = 30 * torch.eye(6)[1:]  # the other queries of head 2 attend to themselves, CLS to everything
    m = attention_map(q, torch.eye(6).expand(1, 3, 6, 6), scale=1.0)
    axes = PatchAxes(patches, patches)
    assert find_selective_head([(m[:, :1], axes), (m, axes)]) == (1, 1)
    assert find_selective_head([(m, None)]) is None
    assert find_selective_head([(m, PatchAxes(PatchLayout(patches.spans), patches))]) is None
