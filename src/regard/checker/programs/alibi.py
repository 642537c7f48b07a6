import torch
from torch import nn
import torch.nn.functional as F


class CausalAlibiAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads)])
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1)
        scores = scores / self.head_dim**0.5
        positions = torch.arange(T, device=x.device)
        distance = positions[:, None] - positions
        scores = scores - self.slopes[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out = weights @ v
        return self.out_proj(out.transpose(1, 2).reshape(B, T, C))
