import torch
from attend import attend


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
