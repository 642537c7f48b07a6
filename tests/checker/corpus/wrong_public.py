"""Mistakes that public projects have had, in our own words, each with the issue or pull request of it.

Those in `programs/*.txt` name theirs in a comment.
"""

import math

import torch
import torch.nn.functional as F

from tests.checker.corpus import wrong
from tests.checker.layers import FourLayers


class Heads(FourLayers):
    def heads(self, x):
        return self.project(x, x, x)


class FoldedHeads(Heads):
    """reczoo/FuxiCTR#30: the heads are split by a view of the batch, without a transpose."""

    def forward(self, x):
        B, T, C = x.shape
        layers, D = (self.q_proj, self.k_proj, self.v_proj), C // self.num_heads
        q, k, v = (layer(x).view(B * self.num_heads, -1, D) for layer in layers)
        weights = F.softmax(torch.matmul(q, k.permute(0, 2, 1)) * D**-0.5, dim=-1)
        return self.o_proj(torch.matmul(weights, v).view(B, T, C))


class HeadsBeforeBatch(Heads):
    """gazelle93/Transformer-Various-Positional-Encoding#1: (B·H) is unfolded as (H, B)."""

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.flatten(0, 1) for t in self.heads(x))
        out = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1) @ v
        return self.o_proj(out.view(self.num_heads, B, T, -1).permute(1, 2, 0, 3).reshape(B, T, C))


class MaskOfAnotherItem(Heads):
    """lsdefine/attention-is-all-you-need-keras#36: heads before the batch, the mask repeated behind it."""

    def forward(self, q, k, v, mask=None):
        B = q.shape[0]
        layers = ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).permute(2, 0, 1, 3).flatten(0, 1)  # (H·B, T, D)
            for layer, x in layers
        )
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask.repeat_interleave(self.num_heads, 0), -1e10)
        out = scores.softmax(-1) @ v
        return self.o_proj(out.unflatten(0, (self.num_heads, B)).permute(1, 2, 0, 3).flatten(2))


class SoftmaxOfQueries(Heads):
    """labmlai/annotated_deep_learning_paper_implementations#146: softmax over i in `bihd,bjhd->bijh`."""

    def forward(self, x):
        q, k, v = (t.transpose(1, 2) for t in self.heads(x))
        attn = (torch.einsum("bihd,bjhd->bijh", q, k) * q.shape[-1] ** -0.5).softmax(dim=1)
        return self.o_proj(torch.einsum("bijh,bjhd->bihd", attn, v).flatten(2))


class KeysProjectValues(Heads):
    """yflyzhang/AnnotatedTransformer#1: the values go through the keys' layer."""

    def forward(self, query, key, value):
        layers = ((self.q_proj, query), (self.k_proj, key), (self.k_proj, value))
        q, k, v = (layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer, x in layers)
        return self.finish(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v)


ENTRIES = [
    wrong(FoldedHeads, "heads-split-by-view"),
    wrong(HeadsBeforeBatch, "batch-items-mixed"),
    wrong(KeysProjectValues, "one-projection"),
    wrong(MaskOfAnotherItem, "batch-items-mixed"),
    wrong(SoftmaxOfQueries, "softmax-over-queries"),
]
