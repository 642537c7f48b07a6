"""Lesson 10, the block and the GPT: attention and an MLP, each added to the residual stream, in a stack.

Attention moves information between tokens; the MLP works on each token by itself. Each reads the stream
normalised, and adds what it found. Blocks in a stack, an embedding before and a linear layer after them make
a GPT. The judge trains yours on sentences such as

    . mia found the lamp near the river yesterday and she took the lamp from the river home .

Replace every `...` below, then run:

    regard learn 10 --check      judges this file, trains your model, and names your mistake
    regard learn 10 --watch      does so whenever you save it
    regard learn 10 --hint       says how to fix it
    python lesson10.py           trains it here, and prints the loss
"""

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    """Causal attention with several heads and an output projection, as in lesson 7."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def split(self, x):
        """Split x (B, T, d_model) into heads (B, H, T, head_dim)."""
        B, T, _ = x.shape
        return x.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        """Attention of x (B, T, d_model) to itself, (B, T, d_model)."""
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        # PyTorch's fused kernel computes softmax(Q Kᵀ / √d) V; by default nothing is hidden.
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  #: causal, (B, H, T, head_dim)
        return self.W_o(out.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Norm, attention, add; norm, MLP, add."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.mlp_norm = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model),
            nn.GELU(),
            nn.Linear(4 * d_model, d_model),
        )  #: linear to 4 * d_model, GELU, linear back to d_model

    def forward(self, x):
        """The residual stream x (B, T, d_model) after this block."""
        x = x + self.attention(self.attention_norm(x))  #: x plus attention of the normalised x
        x = x + self.mlp(self.mlp_norm(x))  #: x plus the MLP of the normalised x
        return x


class SmallGPT(nn.Module):
    """From tokens to the logits of the next token."""

    def __init__(self, vocab_size, max_seq_len, d_model, num_heads, num_layers):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(max_seq_len, d_model)
        self.blocks = nn.ModuleList(
            TransformerBlock(d_model, num_heads) for _ in range(num_layers)
        )  #: a ModuleList of num_layers blocks, each with weights of its own
        self.norm = nn.LayerNorm(d_model)
        self.unembedding = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, ids):
        """The logits (B, T, vocab_size) of the token after each of ids (B, T)."""
        positions = torch.arange(ids.shape[1])
        x = self.token_embedding(ids) + self.position_embedding(positions)  #: their sum, (B, T, d_model)
        for block in self.blocks:
            x = block(x)  #: the stream after this block, (B, T, d_model)
        return self.unembedding(self.norm(x))


def next_token_loss(logits, ids):
    """The mean loss of the logits (B, T, vocab_size) of a model that has read ids (B, T)."""
    predicted = logits[:, :-1]  #: the logits of the places that have a next token, (B, T - 1, vocab_size)
    targets = ids[:, 1:]  #: that next token, (B, T - 1)
    return F.cross_entropy(predicted.flatten(0, 1), targets.flatten())


# Predict, then look: the loss of the model before its first step. The language has 43 words.
loss_at_the_start = 3.76  #: your guess, before you run anything


if __name__ == "__main__":
    from regard.learn.sentences import LENGTH, WORDS, draw_sentences, entropy, loss_without_attention

    print(f"possible: {entropy():.3f}; without looking back: {loss_without_attention():.3f}")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = SmallGPT(len(WORDS), LENGTH, d_model=32, num_heads=4, num_layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(401):
        ids = draw_sentences(32, generator)
        loss = next_token_loss(model(ids), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3}: loss {loss.item():.3f}")
