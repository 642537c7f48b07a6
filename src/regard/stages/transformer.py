"""Stage 10, the transformer block and a small GPT: x + softmax(Q Kᵀ / √d + M) V W_o, then x + MLP(x).

New: attention moves what it found between tokens, and an MLP works on each token alone. Both read the tokens
normalised and add their result to them. A GPT is a stack of such blocks between two tables of tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.stages.checks import check_ids, check_sequence, check_settings


class TransformerBlock(nn.Module):
    """Attention and an MLP, each added to its input: `forward(x) -> x`, (B, T, d_model) in and out.

    `num_heads` must divide `d_model`; the MLP is four times as wide as the model. `dropout` is the
    probability with which a weight is dropped in training. `attention(x)` returns `(out, weights)`.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, num_heads=num_heads, dropout=dropout)
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model, bias=False),
            nn.GELU(),
            nn.Linear(4 * d_model, d_model, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The tokens x (B, T, d_model) after attention and after the MLP."""
        check_sequence("x", x, self.W_q)
        x = x + self.attention(self.attention_norm(x))[0]  # (B, T, d_model)
        x = x + self.mlp(self.mlp_norm(x))  # (B, T, d_model)
        return x

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, d_model) of normalised tokens x, and the weights of each head (B, H, T, T)."""
        T = x.shape[-2]
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, T)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        heads = (weights @ v).transpose(-3, -2).flatten(-2)  # (B, T, d_model) side by side
        return self.W_o(heads), weights  # (B, T, d_model)

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_model) as heads (B, H, T, head_dim)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)


class SmallGPT(nn.Module):
    """A decoder of `num_layers` blocks: `forward(ids) -> logits`, (B, T) in, (B, T, vocab_size) out.

    The logits at a place are scores of the token that comes next. T is at most `max_seq_len`; `d_model`,
    `num_heads` and `dropout` are those of each block.

    >>> model = SmallGPT(vocab_size=64, max_seq_len=32, d_model=16, num_heads=4, num_layers=2)
    >>> model(torch.zeros(1, 5, dtype=torch.long)).shape
    torch.Size([1, 5, 64])
    """

    def __init__(
        self,
        vocab_size: int,
        max_seq_len: int,
        d_model: int,
        num_heads: int,
        num_layers: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_settings(vocab_size=vocab_size, max_seq_len=max_seq_len, d_model=d_model, num_layers=num_layers)
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_seq_len, d_model)
        self.blocks = nn.ModuleList(TransformerBlock(d_model, num_heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model)
        self.unembedding = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits (B, T, vocab_size) of the token after each of `ids` (B, T)."""
        check_ids(ids, self.token_embedding, longest=self.position_embedding.num_embeddings)
        x = self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[-1]]  # (B, T, d_model)
        for block in self.blocks:
            x = block(x)  # (B, T, d_model)
        logits: Tensor = self.unembedding(self.norm(x))  # (B, T, vocab_size)
        return logits
