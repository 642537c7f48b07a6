"""Lesson 16, linear attention and the delta rule: a state of fixed size in place of a cache that grows.

Without softmax the sum over keys can be made once and carried on: every token adds its key and value to a
matrix, and a query reads that matrix. The delta rule first takes out what the matrix says to that key, so
that new values replace old ones.
"""

import torch


def feature(x):
    """Positive numbers from any numbers: x + 1 above 0, and exp(x) below."""
    return torch.nn.functional.elu(x) + 1


def linear_attention(q, k, v):
    """Causal attention with feature(q) · feature(k) as weights: q, k (T, D), v (T, E). Returns (T, E)."""
    q, k = feature(q), feature(k)  # (T, D) each
    state = torch.zeros(k.shape[-1], v.shape[-1])  # the sum of key times value, (D, E)
    total = torch.zeros(k.shape[-1])  # the sum of the keys, (D,)
    outputs = []
    for t in range(len(q)):
        state = state + torch.outer(k[t], v[t])  #: the state with token t, (D, E)
        total = total + k[t]  #: the sum of the keys with token t, (D,)
        out = (q[t] @ state) / (q[t] @ total)  #: what token t reads, divided by the sum of its weights, (E,)
        outputs.append(out)
    return torch.stack(outputs)


def delta_rule(q, k, v, beta):
    """Attention whose state is corrected: q, k (T, D) with keys of length 1, v (T, E), beta (T,) from 0 to 1.

    beta says how much of the old value is replaced. Returns the outputs (T, E) and the last state (D, E).
    """
    state = torch.zeros(k.shape[-1], v.shape[-1])  # (D, E)
    outputs = []
    for t in range(len(q)):
        old = k[t] @ state  #: what the state says to this key before, (E,)
        state = state + beta[t] * torch.outer(k[t], v[t] - old)  #: the corrected state, (D, E)
        out = q[t] @ state  #: what token t reads, (E,)
        outputs.append(out)
    return torch.stack(outputs), state


# Predict, then look: a head of width 128 has a state of 128 x 128 numbers. A cache holds a key and a value of
# 128 numbers for each token. After how many tokens is the cache as large as the state?
tokens_until_the_cache_is_as_large = 64  #: your prediction


if __name__ == "__main__":
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    v = torch.tensor([[10.0], [20.0], [30.0]])
    outputs, state = delta_rule(k, k, v, torch.ones(3))
    print("the first key, written twice, now says", (k[0] @ state).item())
    x = torch.randn(6, 4)
    print("linear attention", tuple(linear_attention(x, x, x).shape))
