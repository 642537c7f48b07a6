import torch
from my_attention import varlen  # your own


def test_a_window_of_one_is_the_token_itself():
    q, k, v = torch.randn(3, 10, 4, 16)
    starts = torch.tensor([0, 6, 10])  # two sequences, of 6 and of 4 tokens
    out, _ = varlen(q, k, v, starts, starts, window_size=(0, 0))
    torch.testing.assert_close(out, v)


def test_a_packed_sequence_is_like_one_alone():
    q, k, v = torch.randn(3, 10, 4, 16)
    starts = torch.tensor([0, 6, 10])  # two sequences, of 6 and of 4 tokens
    both, _ = varlen(q, k, v, starts, starts)
    for start, end in ((0, 6), (6, 10)):
        alone = torch.tensor([0, end - start])
        out, _ = varlen(q[start:end], k[start:end], v[start:end], alone, alone)
        torch.testing.assert_close(both[start:end], out)
