"""Functions of attention, and suites that are blind in a known way: targets of the tests of mutants."""

import torch


def attention(q, k, v, causal=False, mask=None):
    """Attention of q (B, H, T, D); a mask is True where a key is visible."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    T, S = q.shape[-2], k.shape[-2]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ v


def draw(*sizes, size=1.0, ones=False):
    """Queries, keys and values (B, H, T, D), (B, G, S, D)."""
    B, H, G, T, S, D = sizes
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, n, m, D, generator=draw) for n, m in ((H, T), (G, S), (G, S)))
    return q * size, k * size, torch.ones_like(v) if ones else v


SUITES = {
    "tolerance 0.5": {"inputs": draw(2, 4, 2, 5, 7, 8), "causal": True, "tolerance": 0.5},
    "every size 64": {"inputs": draw(1, 4, 4, 64, 64, 64), "causal": True, "tolerance": 1e-4},
    "no mask": {"inputs": draw(2, 4, 2, 5, 7, 8), "causal": False, "tolerance": 1e-4},
    "all-ones v": {"inputs": draw(2, 4, 2, 5, 7, 8, ones=True), "causal": True, "tolerance": 1e-4},
    "scores near zero": {"inputs": draw(2, 4, 2, 5, 7, 8, size=1e-3), "causal": False, "tolerance": 1e-4},
}
"""By name: what one test passes, and the difference, relative to the largest number, that it lets pass."""


def notices(target, suite):
    """Whether a test of these inputs fails: the target is too far from right, or raises an error."""
    q, k, v = suite["inputs"]
    right = attention(q, k, v, suite["causal"])
    try:
        output = target(q, k, v, suite["causal"])
    except (RuntimeError, ValueError, IndexError):
        return True
    largest = (output - right).abs().max()
    return not bool(largest <= suite["tolerance"] * right.abs().max())
