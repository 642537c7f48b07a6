import torch
from my_attention import flash_attention  # your own


def test_a_window_of_one_is_the_token_itself():
    q, k, v = torch.randn(3, 2, 6, 4, 16)
    torch.testing.assert_close(flash_attention(q, k, v, window_size=(0, 0)), v)


def test_sinks_take_their_share():
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    q, k, v = torch.zeros(2, 6, 4, 16), torch.randn(2, 6, 4, 16), torch.ones(2, 6, 4, 16)
    expected = 6 / (6 + sinks.exp())  # (4,): six keys with a score of 0, and the sink
    out = flash_attention(q, k, v, sinks=sinks)
    torch.testing.assert_close(out, expected[:, None].expand_as(out))
