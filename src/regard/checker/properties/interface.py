from types import SimpleNamespace

import torch
from my_attention import interface_attention  # your own


def test_sinks_take_their_share():
    sinks = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    q, k, v = torch.zeros(2, 6, 4, 16), torch.randn(2, 6, 4, 16), torch.ones(2, 6, 4, 16)
    expected = 6 / (6 + sinks.exp())  # (4,): six keys with a score of 0, and the sink
    module = SimpleNamespace(num_key_value_groups=1, training=False)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out, _ = interface_attention(module, q, k, v, None, s_aux=sinks)
    torch.testing.assert_close(out, expected[:, None].expand_as(out))


def test_hidden_keys_do_not_matter():
    module = SimpleNamespace(num_key_value_groups=1, training=False)
    q, k, v = torch.randn(3, 2, 4, 6, 16)
    mask = torch.zeros(2, 1, 6, 6)
    mask[..., 4:] = float("-inf")  # two padded keys
    before, _ = interface_attention(module, q, k, v, mask)
    v[:, :, 4:] = torch.randn(2, 4, 2, 16)
    after, _ = interface_attention(module, q, k, v, mask)
    assert torch.equal(after, before)
