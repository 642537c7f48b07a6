import math
import torch
import torch.nn.functional as F


def make_mask(batch_size, q_length, kv_length, q_offset=0, mask_function=None, attention_mask=None, **kwargs):
    batch = torch.arange(batch_size)[:, None, None, None]
    head = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    query = (torch.arange(q_length) + q_offset)[None, None, :, None]
    key = torch.arange(kv_length)[None, None, None, :]
    mask = mask_function(batch, head, query, key)
    mask = mask.expand(batch_size, 1, q_length, kv_length)
    if attention_mask is not None:
        mask = mask & attention_mask[:, None, None, :].bool()
    return mask
