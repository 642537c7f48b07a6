"""Attention whose heads are alike, and attention that is wrong from the fifth head on."""

import torch
import torch.nn.functional as F

from tests.checker.corpus import Entry
from tests.checker.layers import FusedHeads


def right(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def scale_of_later_heads(q, k, v):
    """From the fifth head on the scale is another."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.cat([scores[:, :4], 2 * scores[:, 4:]], 1).softmax(-1) @ v


def keys_of_head_modulo_four(q, k, v):
    heads = torch.arange(q.shape[1]) % 4
    return F.scaled_dot_product_attention(q, k[:, heads], v[:, heads])


class ScaleOfLaterHeads(FusedHeads):
    attend = staticmethod(scale_of_later_heads)


class PowersOfTwo(FusedHeads):
    """Right, and only for a number of heads that is a power of two."""

    def __init__(self, d_model, num_heads):
        if num_heads & (num_heads - 1):
            raise ValueError("num_heads: expected a power of two")
        super().__init__(d_model, num_heads)


def split_right(x, n_heads):
    heads = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    return right(heads, heads, heads).transpose(1, 2).flatten(2)


def split_wrong(x, n_heads):
    heads = x.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    return scale_of_later_heads(heads, heads, heads).transpose(1, 2).flatten(2)


ENTRIES = [
    Entry("a right layer", FusedHeads),
    Entry("powers of two", PowersOfTwo),
    Entry("a right function that splits", split_right),
    Entry("a scale of later heads", scale_of_later_heads, verdict="wrong", why="many heads"),
    Entry("modulo four", keys_of_head_modulo_four, verdict="wrong", why="many heads"),
    Entry("a layer", ScaleOfLaterHeads, verdict="wrong", why="right with 4 heads, and wrong"),
    Entry("a function that splits", split_wrong, verdict="wrong", why="right with 4 heads"),
]
