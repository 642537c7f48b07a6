import torch
from attend import attend


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
