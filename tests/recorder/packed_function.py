"""An attention function with the interface of FlashAttention's packed path, written with plain operators."""

import itertools

import torch


def packed_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    cu_seq_lens_q=None,
    position_ids=None,
    **kwargs,
):
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    T = query.shape[2]
    edges = [0, T]
    if cu_seq_lens_q is not None:
        edges = cu_seq_lens_q.tolist()
    elif position_ids is not None:
        edges = [*(position_ids[0] == 0).nonzero().flatten().tolist(), T]
    output = torch.zeros_like(query)
    for first, last in itertools.pairwise(edges):
        document = slice(first, last)
        scores = query[:, :, document] @ key[:, :, document].mT * scaling
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        output[:, :, document] = weights @ value[:, :, document]
    return output.transpose(1, 2).contiguous(), None


def unpacked_attention(module, query, key, value, attention_mask, position_ids=None, **kwargs):
    """The same, but it is told of the documents and ignores them."""
    return packed_attention(module, query, key, value, attention_mask, **kwargs)
