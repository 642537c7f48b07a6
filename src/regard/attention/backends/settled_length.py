"""Few queries on many keys on a GPU: PyTorch's flash kernel, or its own choice once their number has settled.

PyTorch mostly chooses cuDNN's kernel, which is the faster one, but plans for every new length, and that takes
as long as thousands of calls of the flash kernel. A cache that grows has a new length at every step, and
never calls it. A cache of a fixed size, or a rolling one that is full, calls it after so many calls of one
length that they have cost as much as the planning does (the rule of the ski rental: never more than twice the
least cost).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from regard.support.torch_internals import flash_attention

SETTLED = 4096
"""Calls in a row with keys of one length, from which on PyTorch chooses; each layer of a model makes one a
step."""


class SettledLength:
    """Attention of q on k and v, all of whose keys are visible, without dropout and gradients.

    Every call has the same shapes and strides but for the number of keys. It counts the calls in a row whose
    keys are alike. `attention` computes the same by the kernel that PyTorch chooses.
    """

    def __init__(self, scale: float, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self.scale, self.attention = scale, attention
        self.sizes: tuple[object, ...] = ()  # of the keys, and the strides of keys and values
        self.calls = 0  # in a row with these sizes
        self.settled = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes = k.shape, k.stride(), v.stride()
        if sizes != self.sizes:
            self.sizes, self.calls, self.settled = sizes, 0, False
        elif not self.settled:
            self.calls += 1
            # Planning is no part of a CUDA graph that is being captured.
            self.settled = self.calls >= SETTLED and not torch.cuda.is_current_stream_capturing()
        return self.attention(q, k, v) if self.settled else flash_attention(q, k, v, scale=self.scale)[0]
