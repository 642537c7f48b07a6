"""Heads made by hand to do one thing, with as much noise as asked."""

import torch

from regard import attention_map, causal


def looking_at(places, mask=causal, strength=200.0, noise=0.0):
    """A head whose query q looks at places[q]; `noise` is the spread of what is added to every score."""
    T = len(places)
    scores = torch.zeros(T, T).scatter_(1, places.view(-1, 1), strength) + noise * torch.randn(T, T)
    # The keys are one-hot, so that the queries hold the scores themselves.
    return attention_map(scores.view(1, 1, T, T), torch.eye(T).view(1, 1, T, T), mask=mask, scale=1.0)


def repeats(period, T):
    """Ids (1, T): a start, then different tokens again and again."""
    return torch.cat([torch.tensor([10_000]), torch.randperm(5000)[:period].repeat(T // period + 1)])[:T][
        None
    ]


def previous(T):
    return torch.arange(-1, T - 1).clamp(min=0)


def inducing(ids):
    """Where an induction head looks: after the last earlier copy, or at the first token."""
    x = ids[0].tolist()
    places = []
    for q in range(len(x)):
        found = [p + 1 for p in range(q) if x[p] == x[q] and p + 1 < q]
        places.append(found[-1] if found else 0)
    return torch.tensor(places)


def duplicating(ids):
    x = ids[0].tolist()
    return torch.tensor([max((p for p in range(q) if x[p] == x[q]), default=0) for q in range(len(x))])


def sinking(key, T):
    return torch.full((T,), key).minimum(torch.arange(T))
