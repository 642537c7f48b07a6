import torch
import torch.distributed as dist


def exchange(x, group):
    """Send x to the next rank and return what the previous one sent."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    x = x.contiguous()
    received = torch.empty_like(x)
    send = dist.P2POp(dist.isend, x, (rank + 1) % n, group)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % n, group)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()
    return received


def ring_attention(q, k, v, causal=False, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    T, D = q.shape[-2:]
    out = torch.zeros_like(v)
    lse = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=q.dtype)
    for step in range(n):
        source = (rank - step) % n
        at = rank * T + torch.arange(T)[:, None]
        keys = source * T + torch.arange(T)
        allowed = keys <= at if causal else torch.ones(T, T, dtype=torch.bool)
        scores = (q @ k.transpose(-2, -1) / D**0.5).masked_fill(~allowed, -torch.inf)
        block_lse = torch.logsumexp(scores, -1, keepdim=True)
        block = torch.softmax(scores, -1).nan_to_num() @ v
        merged = torch.logaddexp(lse, block_lse)
        out = torch.exp(lse - merged) * out + torch.exp(block_lse - merged) * block
        lse = merged
        if step < n - 1:
            k, v = exchange(k, group), exchange(v, group)
    return out
