"""`regard.testing.assert_attention`, for anyone's suite."""

import pytest
import torch
import torch.nn.functional as F

from regard.testing import assert_attention


def test_right_attention_passes_and_hands_back_the_report():
    assert assert_attention(F.scaled_dot_product_attention).ok


def test_wrong_attention_fails_with_the_diagnosis():
    with pytest.raises(AssertionError, match="softmax-over-queries"):
        assert_attention(lambda q, k, v: torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -2) @ v)


def test_options_are_handed_on():
    with pytest.raises(AssertionError, match="no-mask"):
        assert_attention(F.scaled_dot_product_attention, causal=True, is_causal=False)
