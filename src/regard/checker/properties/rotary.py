import torch
import torch.nn.functional as F
from my_attention import CausalRotaryAttention, rotate  # your own


def test_cached_equals_uncached():
    layer = CausalRotaryAttention(32, 4).eval()
    x = torch.randn(2, 6, 32)
    whole, _ = layer(x)
    for sizes in ([1, 1, 1, 1, 1, 1], [3, 3], [2, 1, 3]):
        cache, outs = None, []
        for piece in x.split(sizes, dim=1):
            out, cache = layer(piece, cache)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, dim=1), whole)


def test_a_repeated_token_gives_the_same_everywhere():
    layer = CausalRotaryAttention(32, 4).eval()
    x = torch.randn(2, 1, 32).expand(2, 6, 32)
    out, _ = layer(x)
    torch.testing.assert_close(out, out[:, :1].expand_as(out))


def test_a_rotation_keeps_lengths():
    layer = CausalRotaryAttention(32, 4).eval()
    x = torch.randn(2, 4, 6, 8)
    torch.testing.assert_close(rotate(x, 0).norm(dim=-1), x.norm(dim=-1))


def test_order_matters():
    layer = CausalRotaryAttention(32, 4).eval()
    x = torch.randn(1, 6, 32)
    shuffled = x[:, [3, 1, 4, 0, 2, 5]]
    apart = layer(x)[0][:, -1] - layer(shuffled)[0][:, -1]
    assert apart.abs().max() > 1e-3


def test_rotations_agree_with_complex_numbers():
    layer = CausalRotaryAttention(32, 4).eval()
    def turn(t):  # channels i and i + D/2 as one complex number
        T, D = t.shape[-2:]
        angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
        z = torch.complex(*t.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag], dim=-1)

    x = torch.randn(2, 6, 32)
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
    heads = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x)[0], expected)
