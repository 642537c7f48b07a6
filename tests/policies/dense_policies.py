"""Cache policies written out for one key/value head in float64, from whole matrices of scores.

Nothing here uses Regard's policies: caches are Python lists of positions, and every step is one token.
"""

import math

import torch

from regard.attention.position_hash import uniform_hash


class DenseHead:
    """The scores (group, T, S) of the query heads of one key/value head, −inf where a key is hidden."""

    def __init__(self, scores, q, k, number, sinks):
        self.scores, self.q, self.k, self.number, self.sinks = scores, q, k, number, sinks

    def weights(self, query, cached):
        """The weights of a query over cached keys alone, (group, cached)."""
        some = self.scores[:, query, cached]
        if self.sinks is not None:
            some = torch.cat([some, self.sinks.double()[:, None]], -1)
        found = some.softmax(-1).nan_to_num(0.0)
        return found[:, :-1] if self.sinks is not None else found


# Scores: (heads of the layer, which of them, cached keys, tokens read, budget) → a number for each cached key


def streaming(heads, g, cached, now, budget):
    seen = [j for j in cached if (heads[g].scores[:, now - 1, j] > -math.inf).any()]
    return [math.inf if j in seen[:4] else float(j) for j in cached]


def random(heads, g, cached, now, budget):
    zero = torch.tensor(0)
    return [uniform_hash(zero, torch.tensor(j), torch.tensor(g), 0).item() for j in cached]


def h2o(heads, g, cached, now, budget):
    raise NotImplementedError  # `simulate` has the history that it needs


def snapkv(heads, g, cached, now, budget):
    n = min(6, budget // 2)
    rows = torch.stack([heads[g].weights(i, cached) for i in range(now - n, now)])  # 0 for later keys
    observed = rows.mean((0, 1)).tolist()
    observed = [x if j < now - n else 0.0 for x, j in zip(observed, cached, strict=True)]
    padded = [0.0, *observed, 0.0]
    pooled = [sum(padded[i : i + 3]) / 3 for i in range(len(cached))]
    return [x if j < now - n else math.inf for x, j in zip(pooled, cached, strict=True)]


def tova(heads, g, cached, now, budget):
    return torch.cat([head.weights(now - 1, cached) for head in heads]).mean(0).tolist()


def key_norm(heads, g, cached, now, budget):
    return [-float((heads[g].k[j] ** 2).sum() ** 0.5) for j in cached]


def simulate(heads, score, budget, every, T):
    """For each key/value head and each query, the keys that are cached when it runs."""
    kept = [[] for _ in heads]
    cached = [[] for _ in heads]
    received = [torch.zeros(T, dtype=torch.float64) for _ in heads]
    for now in range(T):
        if len(cached[0]) == budget:
            chosen = []
            for g, head in enumerate(heads):
                if score is h2o:
                    numbers = [
                        math.inf if j >= now - budget // 2 else float(received[g][j]) for j in cached[g]
                    ]
                else:
                    numbers = score(heads, g, cached[g], now, budget)
                seen = (head.scores[:, now - 1, cached[g]] > -math.inf).any(0).tolist()
                ranked = sorted(
                    (x if visible else -math.inf, j)
                    for x, visible, j in zip(numbers, seen, cached[g], strict=True)
                )
                chosen.append(sorted(j for _, j in ranked[every:]))
            cached = chosen
        for g, head in enumerate(heads):
            cached[g] = [*cached[g], now]
            kept[g].append(cached[g])
            received[g][cached[g]] += head.weights(now, cached[g]).mean(0)
    return kept


def select(head, kind, block, budget):
    """Which keys every query of a head reads, boolean (group, T, S)."""
    group, T, S = head.scores.shape
    visible = head.scores > -math.inf
    chosen = torch.zeros_like(visible)
    for i in range(T):
        if kind == "best":
            for h in range(group):
                top = head.scores[h, i].argsort(descending=True)[:budget]
                chosen[h, i, top] = True
            continue
        ranked = []
        for first in range(0, S, block):
            keys = head.k[first : first + block]
            if not visible[:, i, first : first + block].any():
                continue
            q = head.q[:, i]  # (group, D)
            if kind == "quest":
                bound = torch.maximum(q * keys.amax(0), q * keys.amin(0)).sum(-1).max().item()
            else:
                bound = (q @ keys.mean(0)).max().item()
            ranked.append((math.inf if first <= i < first + block else bound, first))
        for _, first in sorted(ranked, reverse=True)[: max(budget // block, 1)]:
            chosen[:, i, first : first + block] = True
    return chosen & visible
