import torch
from attend import attend


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
