import math
import torch
import torch.nn.functional as F


def attention(q, k, v, mask=None, is_causal=False, window=None, softcap=None):
    # window: how many keys a query sees, its own included
    T, S, D = q.shape[-2], k.shape[-2], q.shape[-1]
    if q.ndim == 4 and k.shape[1] < q.shape[1]:  # grouped heads
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    at, keys = torch.arange(S - T, S)[:, None], torch.arange(S)
    allowed = torch.ones(T, S, dtype=torch.bool)
    if is_causal:
        allowed = keys <= at
    if window is not None:
        allowed = allowed & (keys > at - window)
    bias = 0.0
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        bias = mask
    unseen = ~allowed.any(-2).unsqueeze(-1)
    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)
    scores = q @ k.transpose(-2, -1)
    scores = scores / math.sqrt(D)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return weights @ v
