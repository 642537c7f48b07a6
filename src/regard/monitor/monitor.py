"""`Monitor`: listens to a forward pass of a model in training now and then: what do its heads do?"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from regard.attention.arguments import check_whole_number
from regard.auditor.batch import read_batch
from regard.maps import AttentionMap
from regard.monitor.alarms import Alarms, Thresholds
from regard.monitor.history import (
    HeardLayer,
    HeardLayers,
    MonitorHistory,
    StepRecord,
    layer_numbers,
)
from regard.monitor.measures import BatchTokens, HeadReading, choose_rows, read
from regard.recorder.capture_block import capture
from regard.recorder.capture_result import Capture
from regard.recorder.layer import Layer
from regard.recorder.observation import named_arguments
from regard.recorder.sources.compilation import uncompiled
from regard.recorder.sources.structure_of_models.model_parts import (
    attention_names,
    check_recognised,
    look_at,
    original_model,
)
from regard.support.json_lines import append_lines
from regard.support.override import MethodWrappers

LINEAR = "it has no softmax: a monitor reads softmax attention"
LIBRARIES = ("regard", "torch", "contextlib")  # packages whose lines no warning is about
NOT_OPEN = (
    "this monitor is not open: write `with monitor:` around the training, or give the trainer its callback"
)
EVALUATING = "the model is in evaluation mode, and only training is read: call model.train() before the loop"
NOT_TRAINING = "no forward pass of this model ran with gradients: give the monitor the model that is trained"


class Monitor:
    """Records what every head does while a model trains, from one forward pass in `every` steps.

        with regard.Monitor(model, every=50, file="attention.jsonl") as monitor:
            for batch in batches:
                model(**batch).loss.backward()
                optimizer.step()
                monitor.step()
        print(monitor.history)

    It listens to the forward pass that the training makes anyway, the first one of a step: losses and
    gradients keep their bits. For each layer and head it records the largest score, the entropy, also as a
    share of the largest possible one, the key that receives the most attention and its share, the range of
    lse, the mean distance, the share that goes to other documents and to padding, the share of a sink logit,
    the longest query and key, and whether the layer's map is certified. Numbers are exact for the rows that
    were sampled; other rows are sampled every time.

    Arguments:
        model: the model that is trained. A compiled model runs uncompiled on the steps that are listened to.
        every: how many steps lie between two readings.
        rows: how many rows of every layer are read.
        layers: the layers to read: numbers, keys such as "decoder.3" or module names; a whole number n reads
            n layers at a time, in turn. By default all layers are read every time.
        file: a file to which a line of JSON is appended for each reading. Several runs may share it: every
            line names its run.
        loggers: where a few numbers for each layer go: objects with `add_scalar(name, value, step)`, as
            TensorBoard's `SummaryWriter`, or with `log(numbers, step=step)`, as a run of Weights & Biases.
        alarm: what to do with an alarm: "warn", "raise" or a function that takes its sentence.
        thresholds: when alarms are raised, a `regard.monitor.Thresholds`.
        group: the data-parallel processes whose readings are joined; by default those of
            `DistributedDataParallel`. Every one of them must be given a monitor, and the first one writes.
        quiet: whether to leave out the line that each reading prints to a terminal.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 50,
        rows: int = 256,
        layers: Collection[int | str] | int | None = None,
        *,
        file: str | PathLike[str] | None = None,
        loggers: Sequence[Any] = (),
        alarm: str | Callable[[str], object] = "warn",
        thresholds: Thresholds | None = None,
        group: Any = None,
        quiet: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
        every, rows = check_whole_number("every", every), check_whole_number("rows", rows)
        if isinstance(layers, int):
            check_whole_number("layers", layers)
        if not isinstance(given := Thresholds() if thresholds is None else thresholds, Thresholds):
            raise ValueError(f"thresholds: expected a regard.monitor.Thresholds, got {type(given).__name__}")
        for logger in loggers:
            if not hasattr(logger, "add_scalar") and not hasattr(logger, "log"):
                kind = type(logger).__name__
                raise ValueError(f"loggers: expected objects with add_scalar or log, got one of {kind}")
        if alarm not in ("warn", "raise") and not callable(alarm):
            raise ValueError(f'alarm: expected "warn", "raise" or a function, got {alarm!r}')
        if group is None and isinstance(model, DistributedDataParallel):
            group = model.process_group
        if isinstance(model, DistributedDataParallel):
            model = model.module
        self.model = original_model(model)
        # A ValueError now, not in the middle of a run.
        check_recognised(self.model, look_at(self.model).parts)
        _check_layers(self.model, layers)
        self.every, self.rows, self.layers = every, rows, layers
        self.file = None if file is None else Path(file)
        self.loggers, self.alarm, self.group, self.quiet = loggers, alarm, group, quiet
        self.history = MonitorHistory()
        self.run = datetime.now(UTC).isoformat(timespec="milliseconds")
        """The name of this run in its records: when the monitor was made."""
        self.steps = 0
        """How many steps the training has taken."""
        self.problem = ""
        """Why the last step that was due could not be read; "" if it could."""
        self._alarms = Alarms(given)
        self._turn = 0  # readings so far
        self._stepped, self._passes = False, 0  # whether `step` was called, and forward passes of training
        self._names: list[str] = []  # of all layers, once they are known
        self._undo = ExitStack()
        self._armed: ExitStack | None = None  # what is open until the next forward pass
        self._open = False

    def __enter__(self) -> Self:
        if self._open:
            raise RuntimeError("this monitor is open already")
        wrappers = MethodWrappers()
        wrappers.add(self.model, "forward", self._run)
        self._undo.enter_context(wrappers.active())
        self._open = True
        self._arm_if_due()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._disarm()
        self._open = False
        self._undo.close()
        if kind is None and self._passes > self.every and not self._stepped:
            warnings.warn(
                f"Monitor: {self._passes} forward passes counted as one step, since monitor.step() was never "
                "called: call it after each step of the optimizer",
                stacklevel=2,
            )

    def step(self) -> None:
        """Say that the training has taken a step of its optimizer."""
        if not self._open:
            raise RuntimeError(NOT_OPEN)
        self._stepped = True
        if self._armed is not None:  # nothing has been heard since this step was due
            self._note(NOT_TRAINING if self.model.training else EVALUATING)
        self.steps += 1
        self._disarm()
        self._arm_if_due()

    def __getattr__(self, name: str) -> Any:
        # A trainer that is given the monitor itself asks it for its events.
        hint = ": give the trainer monitor.callback() or monitor.lightning_callback()"
        ending = hint if name.startswith("on_") else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{ending}")

    def callback(self) -> Any:
        """A callback for Transformers' `Trainer`, and TRL's: `Trainer(…, callbacks=[monitor.callback()])`."""
        from regard.monitor.callbacks import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """A callback for Lightning: `lightning.Trainer(callbacks=[monitor.lightning_callback()])`."""
        from regard.monitor.callbacks import lightning_callback

        return lightning_callback(self)

    def _arm_if_due(self) -> None:
        if self._open and self.steps % self.every == 0:
            self._armed = ExitStack()
            # Before the step begins, since a compiled model decides when it is called what it runs.
            wrappers = MethodWrappers()
            self._armed.enter_context(uncompiled(look_at(self.model), wrappers))
            self._armed.enter_context(wrappers.active())

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.close()
            self._armed = None

    def _run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward pass, and listen to it if it is the first one of a step that is due."""
        # Evaluation and generation between two steps are not the training.
        if not self.model.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if self._armed is None:  # also in the forward pass that is listened to, which runs through here again
            self._passes += 1
            return forward(*args, **kwargs)
        armed, self._armed = self._armed, None
        layers = self._choose_layers()
        with armed:
            block = capture(self.model, layers=layers)
            block.warn = False
            with ExitStack() as undo:
                try:
                    seen = undo.enter_context(block)
                except (ValueError, RuntimeError) as error:
                    self._note(str(error))
                    return forward(*args, **kwargs)
                # Through the model, so that the capture's own wrapper of it is called.
                output = self.model.forward(*args, **kwargs)
                began = time.perf_counter()
                try:
                    undo.close()
                except (ValueError, RuntimeError) as error:  # nothing was heard
                    self._note(str(error))
                    return output
            self.problem = ""
            named = {name: x for name, x in named_arguments(self.model, args, kwargs) if name}
            self._record(seen, named, began)
        return output

    def _choose_layers(self) -> Collection[int | str] | None:
        """The layers of this reading: those that were asked for, or the next ones in turn."""
        if not isinstance(self.layers, int):
            return self.layers
        if not self._names:
            return None  # all of them once, to learn their names
        first = (self._turn - 1) * self.layers
        return [
            self._names[(first + i) % len(self._names)] for i in range(min(self.layers, len(self._names)))
        ]

    def _note(self, problem: str) -> None:
        """Note why a step could not be read, and say it once: the training goes on."""
        if problem != self.problem:
            sentence = f"Monitor: step {self.steps} could not be read: {problem}"
            warnings.warn(sentence, stacklevel=_callers_level())
        self.problem = problem

    def _record(self, seen: Capture, arguments: dict[str, Any], began: float) -> None:
        """Read the layers of a capture, join the readings of all ranks, and hand the record out."""
        tokens = _tokens(arguments, self.model)
        turn, self._turn = self._turn, self._turn + 1
        self._names = self._names or [layer.name for layer in seen.layers]
        readings: dict[str, tuple[Layer, HeadReading | None]] = {}
        dtypes: dict[str, torch.dtype] = {}
        rows = torch.zeros(0, dtype=torch.long, device="cpu")
        shape: tuple[int, ...] = ()
        for layer in seen.layers:
            m = layer.data().map
            if not isinstance(m, AttentionMap):
                readings[str(layer.key)] = layer, None
                continue
            rows, shape = choose_rows(m.matrix[2], self.rows, turn), (m.matrix[0], m.matrix[2])
            # Rows and keys that are no tokens, as windows of a picture, have no documents.
            of_layer = tokens if layer.evidence.unplaced is None else BatchTokens()
            readings[str(layer.key)] = layer, read(m, rows, of_layer)
            dtypes[str(layer.key)] = m.stored_dtype
        self._join([reading for _, reading in readings.values() if reading is not None])
        layers = HeardLayers((key, _layer_record(*pair)) for key, pair in readings.items())
        ends = () if not len(rows) else (int(rows[0]), int(rows[-1]), len(rows))
        seconds = round(time.perf_counter() - began, 4)
        record = StepRecord(self.steps, ends, shape, layers, seconds, run=self.run)
        record.alarms.extend(self._alarms.hear(record, dtypes))
        self.history.records.append(record)
        if self._is_first:
            self._hand_out(record)
        for sentence in record.alarms:
            if self.alarm == "raise":
                raise RuntimeError(sentence)
            if callable(self.alarm):
                self.alarm(sentence)
            elif self._is_first:
                warnings.warn(sentence, stacklevel=_callers_level())

    @property
    def _is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.group is None or distributed.get_rank(self.group) == 0

    def _join(self, readings: Sequence[HeadReading]) -> None:
        """Add up the readings of data-parallel ranks: one sum and one maximum for all layers."""
        if self.group is None or not readings:
            return
        # Ranks may read texts of other lengths: the attention that keys receive is as long as the longest.
        lengths = [x.sums["received"].shape[-1] for x in readings]
        length = torch.tensor(lengths, device=readings[0].sums["received"].device)
        distributed.all_reduce(length, distributed.ReduceOp.MAX, group=self.group)
        for reading, own, most in zip(readings, lengths, length.tolist(), strict=True):
            for name in ("received", "seen"):
                reading.sums[name] = nn.functional.pad(reading.sums[name], (0, most - own))
        self._reduce([x.sums for x in readings], distributed.ReduceOp.SUM)
        self._reduce([x.maxima for x in readings], distributed.ReduceOp.MAX)

    def _reduce(self, tables: Sequence[dict[str, Tensor]], operation: Any) -> None:
        """Reduce the tensors of tables over the ranks, all of them at once."""
        parts = [x for table in tables for x in table.values()]
        whole = torch.cat([part.flatten() for part in parts])
        distributed.all_reduce(whole, operation, group=self.group)
        pieces = iter(torch.split(whole, [part.numel() for part in parts]))
        for table in tables:
            table.update({name: next(pieces).view_as(x) for name, x in table.items()})

    def _hand_out(self, record: StepRecord) -> None:
        """Write a record to the file, the loggers and the terminal."""
        if self.file is not None:
            append_lines(self.file, [record.line()])
        numbers = layer_numbers(record)
        for logger in self.loggers:
            if hasattr(logger, "add_scalar"):
                for name, value in numbers.items():
                    logger.add_scalar(name, value, record.step)
            else:
                logger.log(numbers, step=record.step)
        if not self.quiet and sys.stderr.isatty():
            tops = [x for name, x in numbers.items() if name.endswith("/max_score")]
            least = [x for name, x in numbers.items() if name.endswith("/least_entropy")]
            certified = sum(layer.certified for layer in record.layers.values())
            print(
                f"attention at step {record.step}: largest score {max(tops, default=0):.4g}, least entropy "
                f"{min(least, default=0):.3g}, {certified} of {len(record.layers)} layers certified",
                file=sys.stderr,
            )


def _check_layers(model: nn.Module, layers: Collection[int | str] | int | None) -> None:
    """Raise a ValueError for the number of a layer that the model cannot have."""
    count = len(attention_names(model))  # 0 for attention that is only seen when it runs
    numbers = () if layers is None or isinstance(layers, int) else layers
    beyond = [x for x in numbers if isinstance(x, int) and not 0 <= x < count]
    if count and beyond:
        raise ValueError(f"layers: expected numbers below {count}, the layers of the model, got {beyond[0]}")


def _callers_level() -> int:
    """The stack level, for a warning of the caller, of the first line outside of Regard and PyTorch.

    That is the line that called the model: between it and the monitor are wrappers and `nn.Module`.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in LIBRARIES:
        frame, level = frame.f_back, level + 1
    return level


def _layer_record(layer: Layer, reading: HeadReading | None) -> HeardLayer:
    if reading is None:
        return HeardLayer(layer.name, False, LINEAR, {})
    certified = layer.evidence.certified
    problem = "" if certified else str(layer.evidence).removeprefix("not certified: ")
    return HeardLayer(layer.name, certified, problem, reading.values())


def _tokens(arguments: dict[str, Any], model: nn.Module) -> BatchTokens:
    """What the arguments of a forward pass say about padding and documents."""
    with suppress(ValueError):  # a batch without token ids says nothing
        batch = read_batch(arguments, None, getattr(model, "config", None))
        return BatchTokens(batch.real, batch.documents)
    return BatchTokens()
