"""Attention straight from its definition, in float64, one query at a time: what every path is judged by.

Nothing here uses Regard. A query takes the scores of the keys it may look at, and of no others, so what
stands in the other keys cannot matter; the sum of exponentials is written out.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Truth(NamedTuple):
    output: Tensor  # (B, H, T, E)
    weights: Tensor  # (B, H, T, S)
    lse: Tensor  # (B, H, T)
    max_score: Tensor  # (B, H, T)


def attention(q, k, v, allowed, *, bias=None, scale=None, softcap=None, sinks=None):
    """Attention of q (B, H, T, D) on k (B, G, S, D) and v (B, G, S, E); allowed and bias are (B, H, T, S)."""
    q, k, v = q.double(), k.double(), v.double()
    B, H, T, D = q.shape
    G, S, E = k.shape[1], k.shape[2], v.shape[3]
    scale = 1 / D**0.5 if scale is None else scale
    outputs, weights, lses, largest = [], [], [], []
    for b in range(B):
        for h in range(H):
            g = h // (H // G)
            for i in range(T):
                seen = [j for j in range(S) if allowed[b, h, i, j]]
                row, top = q.new_zeros(S), q.new_tensor(-torch.inf)
                if not seen:
                    lse = q.new_tensor(-torch.inf) if sinks is None else sinks[h].double()
                    outputs.append(q.new_zeros(E))
                else:
                    scores = (k[b, g, seen] * q[b, h, i]).sum(-1) * scale
                    if softcap is not None:
                        scores = softcap * torch.tanh(scores / softcap)
                    if bias is not None:
                        scores = scores + bias[b, h, i, seen].double()
                    top = scores.max()
                    others = [] if sinks is None else [sinks[h].double()]
                    most = max([top.item()] + [s.item() for s in others])
                    total = (scores - most).exp().sum() + sum((s - most).exp() for s in others)
                    share = (scores - most).exp() / total
                    lse = most + total.log()
                    row = row.index_put((torch.tensor(seen),), share)
                    outputs.append((share[:, None] * v[b, g, seen]).sum(0))
                weights.append(row)
                lses.append(lse)
                largest.append(top)
    if not outputs:
        return Truth(q.new_zeros(B, H, T, E), q.new_zeros(B, H, T, S), *q.new_zeros(2, B, H, T))
    return Truth(
        torch.stack(outputs).view(B, H, T, E),
        torch.stack(weights).view(B, H, T, S),
        torch.stack(lses).view(B, H, T),
        torch.stack(largest).view(B, H, T),
    )


def cells(A, rows, cols):
    """Mean row mass and signed entry of largest magnitude of every cell of matrices (…, T, S)."""
    r, c = (_bounds(x, n) for x, n in zip((rows, cols), A.shape[-2:], strict=True))
    parts = [A[..., first:stop] for first, stop in c]
    sums, tops = (torch.stack([f(x) for x in parts], -1) for f in (lambda x: x.sum(-1), _largest))
    mass = torch.stack([sums[..., first:stop, :].mean(-2) for first, stop in r], -2)
    return mass, torch.stack([_largest(tops[..., first:stop, :].mT) for first, stop in r], -2)


def _bounds(bins, n):
    """The spans of some bins; a number is one of equal bins, whose edges are at floor(i · n / bins)."""
    if isinstance(bins, int):
        return [(i * n // bins, (i + 1) * n // bins) for i in range(bins)]
    return [(span[0], span[1]) for span in bins]


def _largest(x):
    return x.gather(-1, x.abs().argmax(-1, keepdim=True)).squeeze(-1)


def statistics(A, first=None):
    """Entropy and mean distance of every row of matrices (…, T, S), and what every key receives.

    The first query stands at position `first`, and the last at the last key if that is left out.
    """
    T, S = A.shape[-2:]
    own = torch.arange(T, device=A.device) + (S - T if first is None else first)
    back = own[:, None] - torch.arange(S, device=A.device)
    return torch.special.entr(A).sum(-1), (A * back).sum(-1), A.sum(-2)


def gradients(output, inputs, upstream):
    """The gradients of Σ output · upstream; zeros for an input that the output does not depend on."""
    if not output.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(output, inputs, upstream.to(output.dtype), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def error(result, truth):
    """The largest absolute difference from the truth."""
    return (result.double() - truth).abs().max().item() if truth.numel() else 0.0


def ratio_to_torch(ours, torchs, truth):
    """Our largest error over PyTorch's: at most 1 if we are no worse.

    PyTorch's error gets one unit in the last place of the largest true value on top, because two results that
    are both correctly rounded may lie that far apart, and on a small tensor PyTorch is often exact by luck.
    """
    if not truth.numel():
        return 0.0
    last_place = torch.finfo(ours.dtype).eps * truth.abs().max().item()
    allowance = error(torchs, truth) + last_place
    return 0.0 if (found := error(ours, truth)) == 0 else found / allowance if allowance else float("inf")
