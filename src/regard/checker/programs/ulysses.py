import torch
import torch.distributed as dist
import torch.nn.functional as F


def exchange(x, scatter, gather, group):
    """Cut x along one axis, send each rank its piece, and join what comes along another axis."""
    n = dist.get_world_size(group)
    pieces = torch.stack(x.chunk(n, scatter)).contiguous()
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=group)
    parts = list(received.unbind(0))
    return torch.cat(parts, gather)


def ulysses_attention(q, k, v, causal=False, group=None):
    # From (B, H, T/n, D) to (B, H/n, T, D) and back.
    q, k, v = (exchange(x, 1, 2, group) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return exchange(out, 2, 1, group)
