from attend import attend


def flash_attention(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, sinks=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = attend(q, k, v, causal, window_size, softcap or None, sinks)
    return out.transpose(1, 2)
