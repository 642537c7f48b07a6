"""Options of a call: two at once, a scale that is given, and a mask for each item of the batch."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.checker.corpus import right, wrong
from tests.checker.layers import FourLayers

INF = float("inf")


def _scores(q, k, scale=None):
    return q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)


def _triangle(scores):
    T, S = scores.shape[-2:]
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


# Right, in several conventions.


def both_masks_add_up(q, k, v, attn_mask=None, is_causal=False):
    visible = _triangle(q @ k.mT) if is_causal else None
    if attn_mask is not None:
        visible = attn_mask if visible is None else visible & attn_mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def refuses_without_words(q, k, v, mask=None, causal=False):
    assert mask is None or not causal
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def documented_precedence(q, k, v, attn_mask=None, is_causal=False):
    """Scaled dot-product attention.

    Arguments:
        attn_mask: boolean, True = may look.
        is_causal: whether to hide later keys; ignored if `attn_mask` is given.
    """
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal and attn_mask is None
    )


def interface(module, query, key, value, attention_mask, scaling=None, is_causal=None, **kwargs):
    # As Transformers calls it: the mask holds causality already.
    out = F.scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, is_causal=bool(is_causal) and attention_mask is None
    )
    return out.transpose(1, 2), None


def everything(
    q, k, v, mask=None, key_padding_mask=None, causal=False, window=None, softcap=None, scale=None
):
    """key_padding_mask (B, S): True = keep. window: how many keys a query sees, its own included."""
    scores = _scores(q, k, scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    T, S = scores.shape[-2:]
    at, keys = torch.arange(S - T, S)[:, None], torch.arange(S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -INF) if mask.dtype == torch.bool else scores + mask
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask[:, None, None], -INF)
    if causal:
        scores = scores.masked_fill(keys > at, -INF)
    if window is not None:
        scores = scores.masked_fill(keys <= at - window, -INF)
    return scores.softmax(-1) @ v


class TwoMasks(FourLayers):
    """As torch's: True hides in both masks."""

    def join(self, attn_mask, key_padding_mask):
        hidden = [m for m in (attn_mask, key_padding_mask) if m is not None]
        return torch.stack(torch.broadcast_tensors(*hidden)).any(0) if hidden else None

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        q, k, v = self.project(query, key, value)
        padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
        hidden = self.join(attn_mask, padding)
        return self.finish(F.scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden))


def divided_by_the_scale(q, k, v, scale=None):
    return (q @ k.mT / (q.shape[-1] ** 0.5 if scale is None else scale)).softmax(-1) @ v


def scaled_once_more(q, k, v, scale=1.0):
    return (_scores(q, k) * scale).softmax(-1) @ v


def unused_scale(q, k, v, scale=None):
    """`scale` is not used; it is there for the signature's sake."""
    return _scores(q, k).softmax(-1) @ v


def cap_after_bias(q, k, v, attn_bias=None, softcap=None):
    scores = _scores(q, k)
    scores = scores if attn_bias is None else scores + attn_bias
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    return scores.softmax(-1) @ v


def cap_before_bias(q, k, v, attn_bias=None, softcap=None):
    scores = _scores(q, k)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if attn_bias is None else scores + attn_bias
    return scores.softmax(-1) @ v


def mask_of_items(q, k, v, mask=None):
    scores = _scores(q, k)
    if mask is not None:
        scores = scores.masked_fill(~(mask[:, None] if mask.ndim == 3 else mask), -INF)
    return scores.softmax(-1) @ v


def mask_of_heads(q, k, v, mask=None):
    """mask: (T, S) or (H, T, S), True = may look."""
    scores = _scores(q, k)
    return (scores if mask is None else scores.masked_fill(~mask, -INF)).softmax(-1) @ v


# Wrong.


def fused_path_has_no_cap(q, k, v, key_padding_mask=None, softcap=None):
    """key_padding_mask (B, S): True = keep."""
    if key_padding_mask is not None:
        return F.scaled_dot_product_attention(q, k, v, key_padding_mask[:, None, None])
    scores = _scores(q, k)
    return (scores if softcap is None else softcap * torch.tanh(scores / softcap)).softmax(-1) @ v


def masked_path_has_no_scale(q, k, v, mask=None, sm_scale=None):
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, scale=sm_scale)
    return _scores(q, k).masked_fill(~mask, -INF).softmax(-1) @ v


class CausalReplacesPadding(TwoMasks):
    def forward(self, query, key, value, key_padding_mask=None, is_causal=False):
        T, S = query.shape[1], key.shape[1]
        causal = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
        if is_causal:
            return super().forward(query, key, value, None, causal)
        return super().forward(query, key, value, key_padding_mask)


class JoinedByAnd(TwoMasks):
    def join(self, attn_mask, key_padding_mask):
        hidden = [m for m in (attn_mask, key_padding_mask) if m is not None]
        return torch.stack(torch.broadcast_tensors(*hidden)).all(0) if hidden else None


def visible_in_either(q, k, v, mask=None, is_causal=False):
    visible = _triangle(q @ k.mT) if is_causal else None
    if mask is not None:
        visible = mask if visible is None else visible | mask
    return F.scaled_dot_product_attention(q, k, v, visible)


def required_scale_ignored(q, k, v, scale):
    return _scores(q, k).softmax(-1) @ v


def first_mask_of_items(q, k, v, mask=None):
    mask = mask[0] if mask is not None and mask.ndim == 3 else mask
    return F.scaled_dot_product_attention(q, k, v, mask)


def lengths_of_first_item(q, k, v, lengths=None):
    mask = None if lengths is None else torch.arange(k.shape[-2])[None] < lengths[0]
    return F.scaled_dot_product_attention(q, k, v, mask)


def padding_tiled(q, k, v, padding_mask=None):
    """padding_mask: (B, S), True = padding."""
    B, H = q.shape[:2]
    scores = _scores(q, k).flatten(0, 1)  # (B·H, T, S)
    if padding_mask is not None:
        scores = scores.masked_fill(torch.cat([padding_mask] * H)[:, None], -INF)
    return scores.softmax(-1).unflatten(0, (B, H)) @ v


RIGHT = [both_masks_add_up, refuses_without_words, documented_precedence, interface, everything]
RIGHT += [divided_by_the_scale, scaled_once_more, unused_scale, cap_after_bias, cap_before_bias]
RIGHT += [mask_of_items, mask_of_heads]
DROPPED = [fused_path_has_no_cap, masked_path_has_no_scale, CausalReplacesPadding]
ENTRIES = [
    *(right(thing) for thing in RIGHT),
    right(TwoMasks, true_means="hide"),
    right(nn.MultiheadAttention, true_means="hide"),
    *(wrong(thing, "option-dropped") for thing in DROPPED),
    *(wrong(thing, "masks-joined-by-or") for thing in (JoinedByAnd, visible_in_either)),
    wrong(required_scale_ignored, "scale-ignored"),
    wrong(first_mask_of_items, "mask-of-first-item"),
    wrong(lengths_of_first_item, "mask-of-first-item"),
    wrong(padding_tiled, "mask-tiled-over-heads"),
]
