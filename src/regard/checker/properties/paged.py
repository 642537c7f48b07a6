import torch
from my_attention import paged_attention  # your own


def test_unwritten_slots_do_not_matter():
    q = torch.randn(1, 4, 16)
    k, v = torch.randn(2, 2, 4, 4, 16)  # two pages of four slots
    table, lengths = torch.tensor([[0, 1]]), torch.tensor([6])
    before = paged_attention(q, k, v, table, lengths)
    k[1, 2:] = v[1, 2:] = 100.0  # the two slots after the sixth token
    assert torch.equal(paged_attention(q, k, v, table, lengths), before)
