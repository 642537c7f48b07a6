"""Lesson 14, windows and sinks: a query sees the latest keys and the first ones, however long the text is.

A window keeps the work and the memory of each new token constant. But trained models give much of their
attention to the first token, and a window that moves past it takes that token away. Keep it, and the model
goes on.
"""

import torch


def streaming_mask(T, S, window, sinks):
    """Which keys may be seen: (T, S), True where a query may look at a key.

    The T queries are the last of S tokens. A query sees the `window` latest keys, its own included, and the
    first `sinks` keys of the text. It never sees a later key.
    """
    query = torch.arange(S - T, S)[:, None]  #: the position of each query in the text, (T, 1)
    key = torch.arange(S)[None, :]  # the position of each key, (1, S)
    causal = key <= query  # (T, S)
    near = key > query - window  #: True for the latest keys, (T, S)
    first = key < sinks  #: True for the first keys, (1, S)
    return causal & (near | first)  #: which keys may be seen, (T, S)


def evict(k, v, window, sinks):
    """What a cache of keys and values (B, H, S, D) keeps: the first `sinks` and the latest `window`."""
    if k.shape[-2] <= sinks + window:
        return k, v
    k = torch.cat([k[..., :sinks, :], k[..., -window:, :]], dim=-2)  #: (B, H, sinks + window, D)
    v = torch.cat([v[..., :sinks, :], v[..., -window:, :]], dim=-2)  #: (B, H, sinks + window, D)
    return k, v


# Predict, then look: every layer has a window of 4 keys, so a token reads at most 3 tokens back. What those
# tokens hold, they have read themselves, one layer before. From how many tokens back can something reach the
# output after 3 layers?
tokens_back_after_3_layers = 9  #: your prediction


if __name__ == "__main__":
    print("eight tokens, window 3, one sink:", streaming_mask(8, 8, 3, 1).int(), sep="\n")
    k = v = torch.arange(10.0).view(1, 1, 10, 1)
    print("of ten keys the cache keeps", evict(k, v, 3, 1)[0].flatten().tolist())
