"""Small language models of eager attention, as in many tutorials, for tests of whole models."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Eager attention with the mask that it is handed, as in many tutorials."""

    factor = 1.0  # of the scores: another one is a mistake

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.n_head, -1).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        scores = self.factor * q @ k.mT / q.shape[-1] ** 0.5
        scores = scores if mask is None else self.masked(scores, mask)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    def masked(self, scores, mask):
        return scores.masked_fill(mask == 0, float("-inf"))


class Block(nn.Module):
    attention = Attention

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = self.attention(n_embd, n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class LanguageModel(nn.Module):
    blocks = (Block, Block)

    def __init__(self, vocab_size, n_embd, n_head, block_size):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(block(n_embd, n_head) for block in self.blocks)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def mask(self, T):
        return torch.ones(T, T).tril()

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x, self.mask(idx.shape[1]))
        if targets is None:
            return self.lm_head(x[:, [-1]]), None  # as nanoGPT
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
