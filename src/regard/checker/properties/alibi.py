import torch
import torch.nn.functional as F
from my_attention import CausalAlibiAttention  # your own


def test_alibi_agrees_with_its_formula():
    layer = CausalAlibiAttention(32, 4).eval()
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None]
    at = torch.arange(6)
    distance = at[:, None] - at
    bias = (-slopes * distance).masked_fill(distance < 0, float("-inf"))
    x = torch.randn(2, 6, 32)
    q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in (q, k, v))
    heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    expected = layer.out_proj(heads.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)
