"""Right kernels in the styles of public libraries: their signatures, and PyTorch inside."""

import torch

from tests.checker.corpus import all_right


def _attend(q, k, v, scale=None, causal=False, softcap=0.0, window=(-1, -1), sinks=None):
    """Attention of q (H, T, D) on k (G, S, D); returns the output and the natural lse."""
    H, T, D = q.shape
    S = k.shape[1]
    k, v = k.repeat_interleave(H // k.shape[0], 0), v.repeat_interleave(H // v.shape[0], 0)
    scores = q @ k.mT * (D**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at, keys = torch.arange(S - T, S)[:, None], torch.arange(S)
    seen = torch.ones(T, S, dtype=torch.bool)
    seen = seen & (keys <= at) if causal else seen
    seen = seen & (keys >= at - window[0]) if window[0] >= 0 else seen
    seen = seen & (keys <= at + window[1]) if window[1] >= 0 else seen
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    joined = lse if sinks is None else torch.logaddexp(lse, sinks[:, None])
    return (scores - joined[..., None]).exp() @ v, lse


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
    alibi_slopes=None, deterministic=False, return_attn_probs=False,
):  # fmt: skip
    """FlashAttention: (B, T, H, D)."""
    items = [(x.transpose(0, 1) for x in item) for item in zip(q, k, v, strict=True)]
    outs = [_attend(*item, softmax_scale, causal, softcap, window_size)[0].transpose(0, 1) for item in items]
    return torch.stack(outs)


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
    causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
    return_attn_probs=False, block_table=None,
):  # fmt: skip
    """FlashAttention: packed (total, H, D)."""
    outs = []
    for b in range(len(cu_seqlens_q) - 1):
        one_q = q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]].transpose(0, 1)
        one_k, one_v = (x[cu_seqlens_k[b] : cu_seqlens_k[b + 1]].transpose(0, 1) for x in (k, v))
        outs.append(_attend(one_q, one_k, one_v, softmax_scale, causal, softcap, window_size)[0])
    return torch.cat([out.transpose(0, 1) for out in outs])


def flash_attn_varlen_qkvpacked_func(
    qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
):  # fmt: skip
    """FlashAttention: packed (total, 3, H, D)."""
    outs = []
    for b in range(len(cu_seqlens) - 1):
        q, k, v = qkv[cu_seqlens[b] : cu_seqlens[b + 1]].permute(1, 2, 0, 3)
        outs.append(_attend(q, k, v, softmax_scale, causal, 0.0, window_size)[0].transpose(0, 1))
    return torch.cat(outs)


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
    cache_batch_idx=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, -1),
    softcap=0.0, num_splits=0, return_softmax_lse=False,
):  # fmt: skip
    """FlashAttention: (B, T, H, D) on a cache, contiguous or in pages."""
    outs, lses = [], []
    for b, length in enumerate(cache_seqlens.tolist()):
        keys, values = k_cache, v_cache
        if block_table is not None:
            keys, values = (x[block_table[b].long()].flatten(0, 1)[None] for x in (keys, values))
        keys, values = (x[b if block_table is None else 0, :length].transpose(0, 1) for x in (keys, values))
        out, lse = _attend(q[b].transpose(0, 1), keys, values, softmax_scale, causal, softcap, window_size)
        outs.append(out.transpose(0, 1))
        lses.append(lse)
    return (torch.stack(outs), torch.stack(lses)) if return_softmax_lse else torch.stack(outs)


def paged_attention_into(
    out, query, key_cache, value_cache, num_kv_heads, scale, block_tables, seq_lens, block_size, max_seq_len,
    alibi_slopes=None,
):  # fmt: skip
    """vLLM: one query each, pages (pages, G, page size, D), the output written into a tensor."""
    for b, length in enumerate(seq_lens.tolist()):
        pages = block_tables[b, : -(-length // block_size)].long()
        k, v = (x[pages].transpose(0, 1).flatten(1, 2)[:, :length] for x in (key_cache, value_cache))
        out[b] = _attend(query[b][:, None], k, v, scale)[0][:, 0]


def unified_attention(
    q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,
    block_table, softcap, sinks=None,
):  # fmt: skip
    """vLLM: packed queries on keys in pages, everything required."""
    for b, length in enumerate(seqused_k.tolist()):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        keys, values = (x[block_table[b].long()].flatten(0, 1)[:length].transpose(0, 1) for x in (k, v))
        one = _attend(
            q[rows].transpose(0, 1), keys, values, softmax_scale, causal, softcap, window_size, sinks
        )
        out[rows] = one[0].transpose(0, 1)


def decode_attention(q, k_cache, v_cache, cache_lens, sm_scale, num_kv_splits=1):
    """One query each, (B, H, D), on a contiguous cache (B, S, G, D), the keys in parts."""
    outs = []
    for b, length in enumerate(cache_lens.tolist()):
        k, v = (x[b, :length].transpose(0, 1) for x in (k_cache, v_cache))
        parts = zip(k.chunk(num_kv_splits, 1), v.chunk(num_kv_splits, 1), strict=True)
        pairs = [_attend(q[b][:, None], one_k, one_v, sm_scale) for one_k, one_v in parts]
        shares = torch.softmax(torch.stack([lse for _, lse in pairs]), 0)
        outs.append(sum(out * share[..., None] for (out, _), share in zip(pairs, shares, strict=True))[:, 0])
    return torch.stack(outs)


def attention_lse_base2(q, k, v):
    """Returns the output and the log-sum-exp in base 2."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1) / torch.tensor(2.0).log()


def sink_attention(q, k, v, sinks, sm_scale):
    """gpt-oss: one sink logit per head, required."""
    scores = q @ k.mT * sm_scale
    sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


ENTRIES = all_right(__name__)
