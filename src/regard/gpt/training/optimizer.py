"""The optimizers of a training run, and a learning rate with linear warmup and cosine decay.

AdamW serves every weight; with Muon, it serves the embeddings and vectors only.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from regard.gpt.training.settings import TrainingSettings
from regard.support.torch_internals import foreach_add_, foreach_lerp_, foreach_mul_


def make_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """The optimizers of a model's weights; `highest` and `lowest` of their groups bound the learning rate.

    With "muon", the matrices inside the blocks, of the modules named `blocks`, belong to Muon.
    """
    s = settings
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    by_muon = {
        id(weight)
        for name, weight in named
        if s.optimizer == "muon" and weight.ndim == 2 and name.startswith("blocks.")
    }
    others = [weight for _, weight in named if id(weight) not in by_muon]
    optimizers: list[torch.optim.Optimizer] = [
        # First, since the history shows the learning rate of the first group.
        adamw(others, weight_decay=s.weight_decay, betas=(s.beta1, s.beta2))
    ]
    if by_muon:
        matrices = [weight for _, weight in named if id(weight) in by_muon]
        optimizers.append(Muon(matrices, weight_decay=s.weight_decay))
    share = s.min_learning_rate / s.learning_rate
    # Without Muon there is one optimizer for two rates.
    for optimizer, highest in zip(optimizers, (s.learning_rate, s.muon_learning_rate), strict=False):
        for group in optimizer.param_groups:
            group |= {"highest": highest, "lowest": highest * share}
    return optimizers


def adamw(weights: Iterable[Tensor], *, weight_decay: float, betas: tuple[float, float]) -> torch.optim.AdamW:
    """Fused AdamW for weights. Matrices decay; vectors, which are biases and norms, do not."""
    weights = list(weights)
    groups = [
        {"params": [weight for weight in weights if weight.ndim >= 2], "weight_decay": weight_decay},
        {"params": [weight for weight in weights if weight.ndim < 2], "weight_decay": 0.0},
    ]
    # fused is one kernel for all weights, on a CPU too since PyTorch 2.4.
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=betas, fused=True)


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each matrix is made orthogonal (Jordan 2024).

    Matrices of the same shape are updated together. `weight_decay` is decoupled, as in AdamW.
    """

    def __init__(
        self, weights: Iterable[Tensor], *, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(weights, {"lr": 0.02, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    same_shape[weight.shape].append(weight)
            for shape, weights in same_shape.items():
                for weight in weights:
                    if not self.state[weight]:
                        self.state[weight]["momentum"] = torch.zeros_like(weight)
                gradients = [weight.grad for weight in weights if weight.grad is not None]
                momenta = [self.state[weight]["momentum"] for weight in weights]
                # One kernel for all matrices of a shape.
                foreach_lerp_(momenta, gradients, 1 - group["momentum"])
                # Nesterov's step: the momentum as it would be after this gradient once more.
                ahead = torch.lerp(torch.stack(gradients), torch.stack(momenta), group["momentum"])
                updates = list(orthogonalise(ahead).to(ahead.dtype).unbind())
                # Jordan's factor for matrices with more outputs than inputs.
                rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
                foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
                foreach_add_(weights, updates, alpha=-rate)


def orthogonalise(matrices: Tensor) -> Tensor:
    """The matrices (N, rows, columns) with all their singular values close to 1.

    Five steps of a Newton-Schulz iteration, in bfloat16 on a GPU. Its coefficients grow small singular values
    fast and leave them between about 0.7 and 1.2.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    # The Gram matrix of the shorter side is the cheaper one.
    if wide := x.shape[1] <= x.shape[2]:
        x = x.mT
    # 1e-7: a gradient of zeros stays zeros instead of NaN.
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    # Jordan's coefficients, chosen for a steep slope at 0.
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        gram = x.mT @ x
        x = torch.baddbmm(x, x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), beta=a)
    return x.mT if wide else x


def learning_rate(step: int, progress: float, *, warmup: int, highest: float, lowest: float) -> float:
    """The learning rate of a step: linear up to `highest`, then a half cosine down to `lowest`.

    `warmup` is the number of warmup steps, and `progress` the part of the run after them that is done, from 0
    to 1.

    >>> [learning_rate(step, step / 8, warmup=3, highest=4, lowest=0) for step in (0, 2, 4, 8)]
    [1.0, 3.0, 2.0, 0.0]
    """
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2
