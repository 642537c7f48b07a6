"""Correct kernels in plain PyTorch, one for every layout, into which a mistake can be planted.

Each is one core, which attends with one sequence, in a wrapper that knows the layout. They are source text,
like the templates of `examples`.
"""

from __future__ import annotations

from regard.checker.mistakes.mistake import Mistake, Swap

_IMPORTS = """\
import math
import torch
import torch.nn.functional as F


"""
_CORE = """\
def attend(q, k, v, is_causal=False, window=(-1, -1), softcap=None, sinks=None):
    T, S, D = q.shape[-2], k.shape[-2], q.shape[-1]
    if q.ndim == 4 and k.shape[1] < q.shape[1]:  # grouped heads
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    at, keys = torch.arange(S - T, S)[:, None], torch.arange(S)
    allowed = torch.ones(T, S, dtype=torch.bool)
    if is_causal:
        allowed = keys <= at
    left, right = window
    if left >= 0:
        allowed = allowed & (keys >= at - left)
    if right >= 0:
        allowed = allowed & (keys <= at + right)
    scores = q @ k.transpose(-2, -1)
    scores = scores / math.sqrt(D)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~allowed, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(q.shape[0], -1, T, 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return weights[..., :S] @ v, lse


"""
_FLASH = """\
def flash_attention(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, sinks=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = attend(q, k, v, causal, window_size, softcap or None, sinks)
    return out.transpose(1, 2)
"""
_PACKED = """\
def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=False, window_size=(-1, -1), softcap=0.0, s_aux=None):
    outs, lses = [], []
    for b in range(len(cu_seqlens_q) - 1):
        start, end = cu_seqlens_q[b], cu_seqlens_q[b + 1]
        first, last = cu_seqlens_k[b], cu_seqlens_k[b + 1]
        one_q, one_k, one_v = q[start:end], k[first:last], v[first:last]
        one_q, one_k, one_v = (x.transpose(0, 1)[None] for x in (one_q, one_k, one_v))
        out, lse = attend(one_q, one_k, one_v, causal, window_size, softcap or None, s_aux)
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, dim=-1)
"""
_PAGED = """\
def paged_attention(query, key_cache, value_cache, block_tables, seq_lens, softcap=None, sinks=None):
    page = key_cache.shape[1]
    outs = []
    for b, length in enumerate(seq_lens.tolist()):
        pages = block_tables[b, : -(-length // page)].long()
        k = key_cache[pages].flatten(0, 1)[:length]
        v = value_cache[pages].flatten(0, 1)[:length]
        one_q, k, v = query[b][None, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
        out, lse = attend(one_q, k, v, is_causal=True, softcap=softcap, sinks=sinks)
        outs.append(out[0, :, 0])
    return torch.stack(outs)
"""
_KV_CACHE = """\
def cached(q, k_cache, v_cache, cache_seqlens, block_table=None, causal=True, window=(-1, -1), softcap=None):
    outs = []
    for b, length in enumerate(cache_seqlens.tolist()):
        k, v = k_cache[b], v_cache[b]
        if block_table is not None:
            pages = block_table[b, : -(-length // k_cache.shape[1])].long()
            k, v = k_cache[pages].flatten(0, 1), v_cache[pages].flatten(0, 1)
        k, v = k[:length], v[:length]
        one_q, k, v = (x.transpose(0, 1)[None] for x in (q[b], k, v))
        out, lse = attend(one_q, k, v, causal, window, softcap)
        outs.append(out[0].transpose(0, 1))
    return torch.stack(outs)
"""
_SPLIT = """\
def split_decode(q, k_cache, v_cache, cache_seqlens, num_splits=2):
    outs = []
    for b, length in enumerate(cache_seqlens.tolist()):
        chunk = -(-length // num_splits)
        parts, lses = [], []
        for start in range(0, length, chunk):
            at = min(length, start + chunk)
            k, v = k_cache[b, start:at], v_cache[b, start:at]
            one_q, k, v = q[b][None, :, None], k.transpose(0, 1)[None], v.transpose(0, 1)[None]
            out, lse = attend(one_q, k, v)
            parts.append(out)
            lses.append(lse)
        shares = torch.softmax(torch.stack(lses), dim=0)
        outs.append((torch.stack(parts) * shares[..., None]).sum(0)[0, :, 0])
    return torch.stack(outs)
"""
_INTERFACE = """\
def interface_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    S = scores.shape[-1]
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :S]
    weights = F.dropout(weights, dropout, module.training)
    out = weights @ value
    return out.transpose(1, 2).contiguous(), weights
"""
_MASK_INTERFACE = """\
def make_mask(batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None, **kwargs):
    batch = torch.arange(batch_size)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    query = (torch.arange(q_length) + q_offset)[None, None, :, None]
    key = torch.arange(kv_length)[None, None, None, :]
    mask = mask_function(batch, head, query, key)
    mask = mask.expand(batch_size, 1, q_length, kv_length)
    if attention_mask is not None:
        mask = mask & attention_mask[:, None, None, :].bool()
    return mask
"""
_MASK_MOD = """\
def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx
"""

WRAPPERS = {
    "flash": _FLASH,
    "packed": _PACKED,
    "paged": _PAGED,
    "kv cache": _KV_CACHE,
    "split": _SPLIT,
}
KERNEL_TEMPLATES = {kind: _IMPORTS + _CORE + wrapper for kind, wrapper in WRAPPERS.items()}
KERNEL_TEMPLATES |= {"interface": _IMPORTS + _INTERFACE, "mask interface": _IMPORTS + _MASK_INTERFACE}
KERNEL_TEMPLATES |= {"mask mod": _MASK_MOD}
KERNEL_NAMES = {
    "flash": "flash_attention",
    "packed": "varlen",
    "paged": "paged_attention",
    "kv cache": "cached",
    "split": "split_decode",
    "interface": "interface_attention",
    "mask interface": "make_mask",
    "mask mod": "causal_mask",
}


def core_plants(mistake: Mistake) -> tuple[Swap, ...]:
    """Return the swaps that plant a mistake in the core of every kernel; () if it does not apply there."""
    swaps = mistake.plants.get("function", ())
    return swaps if all(old in _CORE for old, _ in swaps) else ()
