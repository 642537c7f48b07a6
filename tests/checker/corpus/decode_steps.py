"""Steps of a decoder: queries on a cache of keys, whose lengths are told in several ways, or not at all."""

import torch
import torch.nn.functional as F

from tests.checker.corpus import Entry


def attend(q, k, v, visible):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None])


def lengths_with_the_new(q, k_cache, v_cache, cache_lens):
    return attend(q, k_cache, v_cache, torch.arange(k_cache.shape[2]) < cache_lens[:, None])


def lengths_before_the_new(q, k_cache, v_cache, cache_lens):
    return attend(q, k_cache, v_cache, torch.arange(k_cache.shape[2]) <= cache_lens[:, None])


def positions_after_the_lengths(q, k_cache, v_cache, cache_lens):
    rows = cache_lens[:, None] + torch.arange(q.shape[2])
    visible = torch.arange(k_cache.shape[2]) <= rows[..., None]
    return F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=visible[:, None])


def one_query_with_the_new(q, k_cache, v_cache, cache_seqlens):
    scores = torch.einsum("bhd,bshd->bhs", q, k_cache) * q.shape[-1] ** -0.5
    hidden = torch.arange(k_cache.shape[1]) >= cache_seqlens[:, None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bshd->bhd", weights, v_cache)


def one_query_before_the_new(q, k_cache, v_cache, cache_seqlens):
    return one_query_with_the_new(q, k_cache, v_cache, cache_seqlens + 1)


def keys_at_the_end(q, k_cache, v_cache, cache_lens):
    S = k_cache.shape[2]
    return attend(q, k_cache, v_cache, torch.arange(S) >= S - cache_lens[:, None])


def whole_cache(q, k_cache, v_cache):
    return F.scaled_dot_product_attention(q, k_cache, v_cache)


def mask_of_the_cache(q, k_cache, v_cache, attn_mask=None):
    return F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=attn_mask)


def unknown_lengths(q, k_cache, v_cache, filled=None):
    if filled is None:
        return whole_cache(q, k_cache, v_cache)
    return lengths_with_the_new(q, k_cache, v_cache, filled)


def lengths_ignored(q, k_cache, v_cache, cache_lens):
    return whole_cache(q, k_cache, v_cache)


BEFORE = "counts the keys before the new one"

ENTRIES = [
    Entry("lengths with the new token", lengths_with_the_new),
    Entry("one query, lengths with the new token", one_query_with_the_new),
    Entry("the whole cache", whole_cache),
    Entry("a mask of the cache", mask_of_the_cache),
    Entry("lengths of an unknown name", unknown_lengths),
    Entry("lengths before the new token", lengths_before_the_new, verdict="undecided", why=BEFORE),
    Entry("positions after it", positions_after_the_lengths, verdict="undecided", why=BEFORE),
    Entry("one query before it", one_query_before_the_new, verdict="undecided", why=BEFORE),
    Entry("keys at the end", keys_at_the_end, verdict="undecided", why="the last ones of its cache"),
    Entry("lengths ignored", lengths_ignored, verdict="wrong", mistakes=("cache-lengths-ignored",)),
]
