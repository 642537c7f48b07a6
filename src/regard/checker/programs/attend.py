import math
import torch
import torch.nn.functional as F


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
