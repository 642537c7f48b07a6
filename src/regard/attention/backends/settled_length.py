"""Few queries on many keys on a GPU: PyTorch's flash kernel, or cuDNN's once the number of keys has settled.

cuDNN's kernel is the faster one, but it plans for every new length, which takes as long as thousands of calls
of the flash kernel. A cache that grows has a new length at every step, and never calls cuDNN. A cache of a
fixed size, or a rolling one that is full, calls it after so many calls of one length that they have cost as
much as the planning does (the rule of the ski rental: never more than twice the least cost).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.support.torch_internals import cudnn_attention, flash_attention, fused_sdp_choice

SETTLED = 4096
"""Calls in a row with keys of one length, from which on cuDNN runs them; each layer of a model makes one a
step."""


class SettledLength:
    """Attention of q on k and v, all of whose keys are visible, without dropout and gradients.

    Every call has the same shapes and strides but for the number of keys. It counts the calls in a row whose
    keys are alike.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.sizes: tuple[object, ...] = ()  # the number of keys, and the strides of keys and values
        self.calls = 0  # in a row with these sizes
        self.by_cudnn = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes = k.shape[2], k.stride(), v.stride()
        if sizes != self.sizes:
            self.sizes, self.calls, self.by_cudnn = sizes, 0, False
        elif not self.by_cudnn:
            self.calls += 1
            # Planning is no part of a CUDA graph that is being captured.
            if self.calls >= SETTLED and not torch.cuda.is_current_stream_capturing():
                self.calls, self.by_cudnn = 0, self._is_for_cudnn(q, k, v)
        if self.by_cudnn:
            return cudnn_attention(q, k, v, None, False, scale=self.scale)[0]
        return flash_attention(q, k, v, scale=self.scale)[0]

    def _is_for_cudnn(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether PyTorch would choose cuDNN."""
        grouped = q.shape[1] != k.shape[1]
        chosen = fused_sdp_choice(q, k, v, scale=self.scale, enable_gqa=grouped)
        return SDPBackend(chosen) == SDPBackend.CUDNN_ATTENTION
