"""Transformers' mask functions as rules: the same on every entry, by name where they are known."""

from itertools import product

import pytest
import torch

from tests.sampling import combine, share

masking_utils = pytest.importorskip("transformers.masking_utils")

from regard.recorder.sources.transformers_library.transformers_masks import RuleMask, rule_mask  # noqa: E402

B = 2
AHEAD = torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2, 2, 2, -1, -1], [3, 3, 3, 3, -1, -1, -1, -1, -1, -1, 4, 4]])
PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]])
LEFT = torch.tensor([3, 0])


def odd(b, h, q, k):
    return (q - k) % 2 == 0


FUNCTIONS = {
    "causal": (masking_utils.causal_mask_function, "causal"),
    "window": (masking_utils.sliding_window_causal_mask_function(4), "causal & window(4)"),
    "window both ways": (
        masking_utils.sliding_window_bidirectional_mask_function(3),
        "window(4, ahead=3)",
    ),
    "chunks": (
        masking_utils.chunked_causal_mask_function(4, torch.zeros(B, dtype=torch.long)),
        "causal & chunks(4)",
    ),
    "chunks after padding": (
        masking_utils.chunked_causal_mask_function(4, LEFT),
        "causal & documents(2×12)",
    ),
    "packed": (
        masking_utils.and_masks(
            masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(PACKED)
        ),
        "causal & documents(2×12)",
    ),
    "blocks": (
        masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(AHEAD)),
        "causal | documents(2×12) & padding(2×12)",
    ),
    "everything": (masking_utils.bidirectional_mask_function, "full"),
    "unknown": (masking_utils.and_masks(masking_utils.causal_mask_function, odd), "rule(and_mask)"),
}


def padded(side):
    if side == "none":
        return None
    real = torch.ones(B, 12, dtype=torch.bool)
    real[0, :3] = False
    return real if side == "left" else real.flip(1)


SIDES = ["none", "left", "right"]
WHOLE, *PARTS = [(12, 12, 0, 0), (3, 12, 9, 0), (1, 5, 11, 7)]


@pytest.mark.parametrize(
    ("name", "side", "sizes"),
    [(*case, WHOLE) for case in combine(FUNCTIONS, SIDES)] + share(product(FUNCTIONS, SIDES, PARTS), 5),
)
def test_the_same_as_the_dense_mask(name, side, sizes):
    T, S, q_offset, kv_offset = sizes
    function, text = FUNCTIONS[name]
    asked = {
        "batch_size": B,
        "q_length": T,
        "kv_length": S,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": function,
        "attention_mask": padded(side),
        "allow_is_causal_skip": False,
    }
    theirs = masking_utils.sdpa_mask(**asked)
    ours = rule_mask(**asked)
    assert isinstance(ours, RuleMask)
    assert ours.shape == (B, 1, T, S)
    assert torch.equal(ours.dense_tensor(), theirs)
    if T == S == 12:
        plain = f"({text})" if "|" in text and side != "none" else text
        with_padding = "padding(2×12)" if text == "full" else f"{plain} & padding(2×12)"
        assert str(ours.rule) == (text if side == "none" else with_padding)


def test_a_static_cache_is_cut_to_what_is_written():
    ours = rule_mask(B, 1, 64, torch.tensor(11), 0, masking_utils.causal_mask_function, padded("left"))
    theirs = masking_utils.sdpa_mask(B, 1, 64, 11, 0, masking_utils.causal_mask_function, padded("left"))
    assert ours.keys == 12
    assert torch.equal(ours.dense_tensor(), theirs)


def test_a_recognised_function_that_lies_is_not_believed():
    """Were Transformers to change what a function means, the sample would show it."""

    def causal_mask_function(b, h, q, k):
        return k < q

    causal_mask_function.__module__ = "transformers.masking_utils"
    causal_mask_function.__qualname__ = "causal_mask_function"
    ours = rule_mask(B, 12, 12, mask_function=causal_mask_function)
    assert torch.equal(ours.dense_tensor()[0, 0], torch.ones(12, 12).tril(-1).bool())


def test_a_rule_passes_for_a_tensor_and_turns_into_one_when_reckoned_with():
    mask = rule_mask(B, 12, 12, attention_mask=padded("left"))
    dense = mask.dense_tensor()
    assert (mask.ndim, mask.dtype, mask.device.type) == (4, torch.bool, "cpu")
    for same in (mask.to("cpu"), mask.contiguous(), mask[:, :, :, :12], mask.bool(), mask.clone()):
        assert isinstance(same, RuleMask)
        assert same.rule is mask.rule
    assert torch.equal(mask[:, :, :, :5], dense[:, :, :, :5])
    assert torch.equal(~mask, ~dense)
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(dense, 0.0, -1.0))
    assert torch.equal(mask.float() * 2, dense.float() * 2)
    assert mask.untyped_storage().nbytes() == 1  # however long the text
