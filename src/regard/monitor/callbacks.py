"""Callbacks that open a monitor inside other people's trainers, and count their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed

from regard.auditor.callback import import_lightning

if TYPE_CHECKING:
    from regard.monitor.monitor import Monitor


def trainer_callback(monitor: Monitor) -> Any:
    """Return a callback for Transformers' `Trainer`, and TRL's, that opens the monitor while it trains."""
    # Transformers is optional.
    from transformers import TrainerCallback

    class TrainerMonitor(TrainerCallback):
        """Opens a monitor when training begins, and closes it when training ends."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.steps = int(state.global_step)  # of a run that is resumed
            _find_group(monitor)
            monitor.__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.__exit__()

    return TrainerMonitor()


def lightning_callback(monitor: Monitor) -> Any:
    """Return a callback for Lightning that opens the monitor while it trains."""
    callbacks: Any = import_lightning()

    class LightningMonitor(callbacks.Callback):  # type: ignore[misc]
        """Opens a monitor when training begins, and closes it when training ends."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            monitor.steps = int(trainer.global_step)
            _find_group(monitor)
            monitor.__enter__()

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            # With accumulated gradients a step takes several batches.
            while monitor.steps < trainer.global_step:
                monitor.step()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            monitor.__exit__()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            monitor.__exit__()

    return LightningMonitor()


def _find_group(monitor: Monitor) -> None:
    """Join the readings of all processes, which these trainers give a part of the data each."""
    several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    if monitor.group is None and several:
        monitor.group = distributed.group.WORLD
