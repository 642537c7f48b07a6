import torch
from my_attention import cached  # your own


def test_a_window_of_one_is_the_token_itself():
    q, k, v = torch.randn(3, 2, 6, 4, 16)
    out = cached(q, k, v, torch.tensor([6, 6]), causal=True, window=(0, 0))
    torch.testing.assert_close(out, v)


def test_pages_do_not_matter():
    q = torch.randn(1, 1, 4, 16)
    k, v = torch.randn(2, 1, 6, 4, 16)  # six keys in a row
    pages_k, pages_v = (t.view(3, 2, 4, 16) for t in (k, v))  # or three pages of two
    length, table = torch.tensor([6]), torch.tensor([[0, 1, 2]])
    in_a_row = cached(q, k, v, length, softcap=2.0)
    in_pages = cached(q, pages_k, pages_v, length, block_table=table, softcap=2.0)
    torch.testing.assert_close(in_pages, in_a_row)


def test_unwritten_slots_do_not_matter():
    q = torch.randn(1, 1, 4, 16)
    k, v = torch.randn(2, 2, 4, 4, 16)  # two pages of four slots
    table, lengths = torch.tensor([[0, 1]]), torch.tensor([6])
    before = cached(q, k, v, lengths, block_table=table)
    k[1, 2:] = v[1, 2:] = 100.0  # the two slots after the sixth token
    assert torch.equal(cached(q, k, v, lengths, block_table=table), before)
