"""Audits the first batch of a training run, inside other people's trainers."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import Any, Literal

import torch
from torch import nn

from regard.auditor.model_audit import audit
from regard.auditor.result import Audit

OnWrong = Literal["raise", "warn"]


def audit_callback(*, on_wrong: OnWrong = "raise", **options: Any) -> Any:
    """Return a callback for Transformers' `Trainer`, and TRL's, that audits the first batch before training.

    Arguments:
        on_wrong: whether a wrong verdict raises an error, which ends the run, or only warns.
        options: those of `regard.audit`.
    """
    # Transformers is optional.
    from transformers import TrainerCallback

    class TrainerAudit(TrainerCallback):
        """Audits the first batch when training begins; `audit` holds the result."""

        audit: Audit | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            with torch.random.fork_rng():  # the order of the examples stays that of a run without an audit
                batch = next(iter(kwargs["train_dataloader"]))
            self.audit = _judge(kwargs["model"], batch, on_wrong, options)

    return TrainerAudit()


def lightning_callback(*, on_wrong: OnWrong = "raise", **options: Any) -> Any:
    """Return a callback for Lightning that audits the first batch before it is trained on.

    Arguments:
        on_wrong: whether a wrong verdict raises an error, which ends the run, or only warns.
        options: those of `regard.audit`, and `model`: which part of the module takes the batch, as "model".
    """
    callbacks: Any = import_lightning()
    name = options.pop("model", None)

    class LightningAudit(callbacks.Callback):  # type: ignore[misc]
        """Audits the first batch; `audit` holds the result."""

        audit: Audit | None = None

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if self.audit is None:
                model = pl_module if name is None else pl_module.get_submodule(name)
                self.audit = _judge(model, batch, on_wrong, options)

    return LightningAudit()


def import_lightning() -> Any:
    """Import Lightning: it is two packages, and a trainer takes the callbacks of its own only."""
    old = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    return importlib.import_module("pytorch_lightning" if old else "lightning.pytorch")


def _judge(model: nn.Module, batch: Any, on_wrong: OnWrong, options: dict[str, Any]) -> Audit:
    # The hooks of FSDP's first version are on its wrapper, those of FSDP's second and of DeepSpeed inside.
    if type(model).__name__ != "FullyShardedDataParallel":
        model = getattr(model, "module", model)  # what DistributedDataParallel wraps
    result = audit(model, batch, **options)
    if result.verdict == "wrong" and on_wrong == "raise":
        raise RuntimeError(str(result))
    if result.verdict != "right":
        warnings.warn(str(result), stacklevel=3)
    return result
