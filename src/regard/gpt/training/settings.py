"""`TrainingSettings`: the hyperparameters of a training run.

The sizes of the model are in `regard.gpt.Config`. This file knows numbers and their bounds only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from regard.attention.arguments import check_positive, check_whole_number


@dataclass(frozen=True)
class TrainingSettings:
    """The hyperparameters of a training run; the defaults are nanoGPT's for a CPU.

    - `steps`: optimizer steps. `minutes`: if given, the schedule follows the clock instead, for a machine
      that is available for a limited time; such a run cannot be repeated bit for bit.
    - `batch_size`: windows of each process in a batch; `gradient_accumulation_steps`: batches of a step.
    - `learning_rate`: its maximum, reached after `warmup_steps`; it decays to `min_learning_rate`.
    - `optimizer`: "adamw", or "muon" for the matrices of the blocks and AdamW for the other weights;
      `muon_learning_rate`: the maximum of Muon's learning rate.
    - `weight_decay` of both; `beta1`, `beta2` of AdamW; `max_grad_norm`: gradients are clipped to this norm.
    - `short_length`: if given, seven of eight batches have windows of so many tokens until `short_share` of
      the run is done, and as many more of them. They cost less, and models learn most from near tokens.
    - `evaluate_every`: steps between evaluations, each on at most `evaluate_tokens` validation tokens.
    - `save_every`: steps between checkpoints.
    - `precision`: "auto" is bfloat16 on a GPU that supports it and float32 elsewhere.
    - `compile`: use `torch.compile`.
    """

    steps: int = 2000
    batch_size: int = 12
    gradient_accumulation_steps: int = 1
    learning_rate: float = 1e-3
    min_learning_rate: float = 1e-4
    warmup_steps: int = 100
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_learning_rate: float = 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    max_grad_norm: float = 1.0
    seed: int = 1337
    short_length: int | None = None
    short_share: float = 0.5
    evaluate_every: int = 250
    evaluate_tokens: int = 131072
    save_every: int = 250
    minutes: float | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "gradient_accumulation_steps"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name)))
        for name in ("evaluate_every", "evaluate_tokens", "save_every"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name)))
        for name in ("warmup_steps", "seed"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name), 0))
        for name in ("learning_rate", "muon_learning_rate", "max_grad_norm"):
            check_positive(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected from 0 to below 1, got {getattr(self, name)!r}")
        if not 0 <= self.min_learning_rate <= self.learning_rate:
            raise ValueError(
                f"min_learning_rate: expected from 0 to learning_rate={self.learning_rate}, "
                f"got {self.min_learning_rate!r}"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay!r}")
        if self.minutes is not None:
            check_positive("minutes", self.minutes)
        if self.short_length is not None:
            object.__setattr__(self, "short_length", check_whole_number("short_length", self.short_length))
        if not 0 <= self.short_share <= 1:
            raise ValueError(f"short_share: expected from 0 to 1, got {self.short_share!r}")
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"optimizer: expected 'adamw' or 'muon', got {self.optimizer!r}")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"precision: expected 'auto', 'float32' or 'bfloat16', got {self.precision!r}")
