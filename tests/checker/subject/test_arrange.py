"""One function turns a tensor from any layout into any other."""

import pytest
import torch

from regard.checker.subject.call_tensors import HEAD_LAYOUTS, arrange, as_sequence, spell

X = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)  # (B, H, T, D)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("BHTD", X),
        ("BTHD", X.transpose(1, 2)),
        ("BTD", X[:, 0]),
        ("TD", X[0, 0]),
        ("TBHD", X.permute(2, 0, 1, 3)),
        ("TBD", X[:, 0].transpose(0, 1)),
        ("BHD", X[:, :, 0]),
    ],
)
def test_heads_in_every_layout(layout, expected):
    assert torch.equal(arrange(X, "BHTD", layout), expected)


@pytest.mark.parametrize("layout", HEAD_LAYOUTS)
def test_back_again(layout):
    kept = X[: 2 if "B" in layout else 1, : 3 if "H" in layout else 1]
    assert torch.equal(arrange(arrange(kept, "BHTD", layout), layout, "BHTD"), kept)


def test_sequences_and_images():
    image = torch.randn(2, 6, 3, 4)  # (B, C, H, W)
    assert torch.equal(as_sequence(image, "BCHW"), image.flatten(2).transpose(1, 2))
    assert torch.equal(as_sequence(image.permute(0, 2, 3, 1), "BHWC"), image.flatten(2).transpose(1, 2))
    assert as_sequence(image, "BTC") is None
    assert arrange(image, "BHTD", "BHTD") is image  # what one tensor was stays one


def test_a_layout_is_spelled_by_its_letters():
    assert spell("BTHD") == "(B, T, H, D)"
