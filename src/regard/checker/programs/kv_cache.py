import torch
from attend import attend


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
