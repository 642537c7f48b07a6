import torch
from my_attention import split_decode  # your own


def test_unwritten_slots_do_not_matter():
    q = torch.randn(1, 4, 16)
    k, v = torch.randn(2, 1, 8, 4, 16)  # eight slots
    lengths = torch.tensor([6])
    before = split_decode(q, k, v, lengths)
    k[:, 6:] = v[:, 6:] = 100.0  # the two slots after the sixth token
    assert torch.equal(split_decode(q, k, v, lengths), before)


def test_the_number_of_splits_does_not_matter():
    q = torch.randn(2, 4, 16)
    k, v = torch.randn(2, 2, 8, 4, 16)
    lengths = torch.tensor([8, 5])
    whole = split_decode(q, k, v, lengths, num_splits=1)
    torch.testing.assert_close(split_decode(q, k, v, lengths, num_splits=3), whole)
