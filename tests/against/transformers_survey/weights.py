"""The attention weights of a plain run, read off the operations that PyTorch executes, module by module.

Every softmax is kept with the module in which it ran; for a fused attention the weights are computed from its
arguments. Nothing of this knows Regard or Transformers.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
SOFTMAX = {aten._softmax.default, aten._safe_softmax.default}


class Weights(TorchDispatchMode):
    """Inside this block, `found` gathers (name of the module, weights) of every attention that runs."""

    def __init__(self, model):
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.calls = []
        self.found = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        name = self.calls[-1] if self.calls else ""
        if op in SOFTMAX and result.ndim >= 3 and args[1] in (-1, result.ndim - 1):
            self.found.append((name, result.detach()))
        elif op is aten._scaled_dot_product_flash_attention_for_cpu.default:
            self.found.append((name, _fused(*args, **(kwargs or {}))))
        return result

    @contextmanager
    def watching(self):
        """The block itself, which also follows the modules as they are called."""
        before = nn.modules.module.register_module_forward_pre_hook(self._enter)
        after = nn.modules.module.register_module_forward_hook(self._leave, always_call=True)
        try:
            with self:
                yield self
        finally:
            before.remove()
            after.remove()

    def _enter(self, module, _):
        self.calls.append(self.names.get(module, self.calls[-1] if self.calls else ""))

    def _leave(self, *_):
        if self.calls:
            self.calls.pop()


def _fused(q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """The weights (B, H, T, S) behind PyTorch's fused attention."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)  # (B, H, T, S)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0)  # rows that may look at nothing


def steps_joined(found):
    """The steps of a generation as one matrix for each module: the prompt's rows, then a row a step.

    The keys of a step are the last ones up to its own token, or, if every step has as many, always the same.
    """
    steps = {}
    for name, weights in found:
        steps.setdefault((name, weights.ndim, weights.shape[:-2]), []).append(weights)
    joined = []
    for (name, _, _), parts in steps.items():
        if any(part.shape[-2] != 1 for part in parts[1:]):
            continue  # several attentions in one module, or another prompt
        length = sum(part.shape[-2] for part in parts)
        if len({part.shape[-1] for part in parts}) > 1:
            ends = [length - len(parts) + 1 + step for step in range(len(parts))]
            if any(part.shape[-1] > end for part, end in zip(parts, ends, strict=True)):
                continue
            parts = [
                nn.functional.pad(part, (end - part.shape[-1], length - end))
                for part, end in zip(parts, ends, strict=True)
            ]
        joined.append((name, torch.cat(parts, -2)))
    return joined


def as_maps(weights, shape):
    """Recorded weights as (B, H, T, S), if they are as many; a learned sink's column is dropped."""
    B, H, T, S = shape
    if weights.shape[-1] == S + 1:
        weights = weights[..., :-1]
    if weights.shape[-2:] == (T, S) and weights.numel() == B * H * T * S:
        return weights.reshape(B, H, T, S)
    return None
