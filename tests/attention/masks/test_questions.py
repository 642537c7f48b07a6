"""Questions about a mask are methods of `Mask`: their answers, and that nobody asks by class instead."""

from dataclasses import dataclass

import pytest
import torch

import regard
from regard import alibi, causal, chunks, documents, padding, prefix, rule, tensor_mask, window
from regard.attention.masks.base import Mask
from regard.attention.masks.description import describe_mask, rebuild_mask
from regard.attention.masks.tensor_masks import Relative
from regard.attention.masks.views import CachedKeysMask, Keys, MaskOnly, Rows
from regard.recorder.generation.mask_join import CallSizes, PiecewiseMask, Segment

B, H, T, S = 3, 4, 5, 5
BY_HEAD = rule(lambda b, h, q, k: (b + h + q + k) % 3 > 0)
LEAVES = {
    "rule": BY_HEAD,
    "padding": padding([5, 2, 4]),
    "marks": padding(torch.arange(15).view(3, 5) % 4 > 0),
    "documents": documents(torch.arange(15).view(3, 5) % 2),
    "tensor": tensor_mask(torch.randn(B, H, T, S)),
    "alibi": alibi(H),
    "relative": Relative(torch.randn(H, 9), 4),
}


def views_of(mask):
    """The mask by itself and inside what joins masks; and every view, each for attention of (B, H, T, S)."""

    def varied(rows, cols):
        return tensor_mask(torch.randn(B, H, rows, cols)) & BY_HEAD & alibi(H)

    pieces = (
        Segment(varied(3, 3), CallSizes(3, 3), 0, 0),
        Segment(varied(2, S), CallSizes(2, S), 3, 0),
    )
    views = {
        "itself": mask,
        "and": causal & mask,
        "mask only": MaskOnly(mask),
        "rows": Rows(varied(T + 2, S), 1, T + 2),
        "keys": Keys(varied(T, S + 3), 2, S + 3),
        "rows and keys": Keys(Rows(varied(T + 2, S + 3), 2, T + 2), 3, S + 3),
        "cached keys": CachedKeysMask(varied(T, S + 3), 1, 3),
        "pieces": PiecewiseMask(pieces, CallSizes(T, S)),
    }
    return views if mask.biased else views | {"not": ~mask, "or": mask | prefix(1)}


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize(
    ("batch", "heads"),
    [
        (slice(1, 3), slice(0, 4, 2)),
        ([2, 0], [3, 3, 1]),
        (torch.tensor([1, 1, 0]), torch.tensor([2])),
        (slice(None), [1, 0, 3, 2]),
    ],
)
def test_every_mask_and_every_wrapper_selects_sequences_and_heads(name, batch, heads):
    for view, mask in views_of(LEAVES[name]).items():
        everything = (slice(None), slice(None), (B, H, T, S))
        expected = mask.tile(*everything).expand(B, H, T, S)[batch][:, heads]
        selected = mask.select(batch, heads)
        part = (slice(None), slice(None), tuple(expected.shape))
        assert torch.equal(selected.tile(*part).expand(expected.shape), expected), view
        bias = mask.bias(*everything)
        assert (bias is None) == (selected.bias(*part) is None), view
        if bias is not None:
            expected_bias = bias.expand(B, H, T, S)[batch][:, heads]
            torch.testing.assert_close(selected.bias(*part).expand(expected_bias.shape), expected_bias)


@pytest.mark.parametrize(
    ("mask", "size"),
    [
        (causal & window(8) & window(4), 4),
        (window(4) & (causal & window(8)), 4),
        (causal, None),
        (causal | window(4), None),
        (~window(4), None),
        (Rows(causal & window(6), 2, 9), 6),
        (Keys(causal & window(6), 2, 9), 6),
        (CachedKeysMask(causal & window(6), 0, 3), 6),
        (MaskOnly(causal & window(6) & alibi(2)), 6),
    ],
    ids=str,
)
def test_the_window_of_a_mask_is_its_smallest(mask, size):
    assert mask.window_size() == size


def test_properties_of_masks():
    assert causal.is_causal
    assert (window(3) & causal.top_left).is_causal
    assert not window(3).is_causal
    assert not (causal | prefix(1)).is_causal
    assert padding([1]).is_padding
    assert not (padding([1]) & causal).is_padding
    assert documents([0, 1]).is_documents
    assert not (documents([0, 1]) & causal).is_documents
    assert padding([1, 3]).key_padding(3).tolist() == [[True, False, False], [True, True, True]]
    assert causal.key_padding(3) is None
    for mask in (causal, window(3, 1), alibi(2), causal & window(3), ~causal, causal | window(2)):
        assert mask.translation_invariant
        for other in (causal.top_left, prefix(2), chunks(2), padding([3]), mask & chunks(2)):
            assert not other.translation_invariant


def test_a_new_mask_is_taught_in_one_place():
    """A class of one's own with the safe defaults works in every wrapper, in kernels' bounds and in files."""

    @dataclass(frozen=True, repr=False)
    class Diagonal(Mask, stored=True):
        offset: int

        def allowed(self, at):
            return at.k == at.q + self.offset

        def __repr__(self):
            return f"diagonal({self.offset})"

    try:
        mask = causal & Diagonal(-1)
        x = torch.randn(1, 2, 6, 4)
        output, weights = regard.scaled_dot_product_attention(x, x, x, mask=mask)
        torch.testing.assert_close(regard.attend(x, x, x, mask=mask), output)
        attention = regard.attention_map(x, x, mask=mask)[:, :, 2:5]
        torch.testing.assert_close(attention.to_dense(), weights[:, :, 2:5])
        assert mask.select([0], [1, 0]) is mask
        assert (mask.window_size(), mask.band(6, 6)) == (None, None)
        tensors = {}
        assert rebuild_mask(describe_mask(mask, tensors), tensors) == mask
    finally:
        del Mask.stored_classes["Diagonal"]
