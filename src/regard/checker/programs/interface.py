import math
import torch
import torch.nn.functional as F


def interface_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = module.num_key_value_groups
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    softcap, sinks = kwargs.get("softcap"), kwargs.get("s_aux")
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    S = scores.shape[-1]
    if sinks is not None:
        sink = sinks.view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :S]
    weights = F.dropout(weights, dropout, module.training)
    out = weights @ value
    return out.transpose(1, 2).contiguous(), weights
