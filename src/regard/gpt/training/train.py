"""The training loop: optimizer steps, evaluations, and checkpoints from which a run resumes.

The folder of a run holds its checkpoint (`checkpoints`), the best model so far, which
`GPT.from_pretrained(folder)` loads, and its history (`history`). On resume the best weights are written again
from the checkpoint, so files and `best_loss` agree. A step depends only on the settings and on its number, so
that a run that was killed and resumed ends with the same numbers, bit for bit on a CPU.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.gpt.config import Config
from regard.gpt.files.folder import CONFIG, TOKENIZER, WEIGHTS
from regard.gpt.files.meta_device import without_weights
from regard.gpt.model import GPT
from regard.gpt.training import checkpoints, history
from regard.gpt.training.checkpoints import Checkpoint
from regard.gpt.training.corpus import Corpus
from regard.gpt.training.evaluation import head_scores, next_token_loss, validation_loss
from regard.gpt.training.history import StepMetrics
from regard.gpt.training.optimizer import learning_rate, make_optimizers
from regard.gpt.training.progress import Progress
from regard.gpt.training.run_folder import find_checkpoint, owned_folder
from regard.gpt.training.settings import TrainingSettings
from regard.support.files import remove_temporary_files
from regard.support.processes import Processes, StopRequest, process_group, stop_on_signal

LOG_EVERY = 10  # steps between reads of the losses, each of which waits for the GPU
SAMPLE_TOKENS = 200
LONG_EVERY = 8  # steps between long windows while most are short, so that no position is ever new


class TrainingResult(NamedTuple):
    """The end of a run, or of the part of it before it was stopped."""

    step: int
    finished: bool
    best_loss: float
    """The lowest validation loss, which is that of the model in the folder."""


def train(
    config: Config,
    corpus: Corpus,
    folder: Path,
    settings: TrainingSettings = TrainingSettings(),  # noqa: B008 (immutable)
    *,
    resume: bool = False,
    device: str | None = None,
    quiet: bool = False,
    watch: Callable[[GPT], Any] | None = None,
) -> TrainingResult:
    """Train a GPT on a corpus.

    - `config`: the model, with the corpus's `vocab_size` and `context_length`.
    - `folder`: the folder of the run, which is created if its parent exists. A folder that holds a run is
      refused unless `resume` is True; then config, settings and text must be those that it was started with.
    - `settings`: the hyperparameters.
    - `device`: "cpu" or "cuda"; by default a GPU if there is one.
    - `quiet`: print no progress.
    - `watch`: makes what watches the training of the model, such as a `regard.Monitor`, on every rank. It is
      open while the run trains, and its `steps` and `step()` count.

    Ctrl-C, SIGTERM or SIGHUP saves a checkpoint and returns a result with `finished=False`. While it runs, no
    other run can use the folder: an `InUseError` says which process does.
    """
    folder = Path(folder)
    if corpus.vocab_size > config.vocab_size or corpus.context_length != config.context_length:
        raise ValueError(
            f"config: expected the corpus's vocab_size={corpus.vocab_size} and "
            f"context_length={corpus.context_length}, got {config.vocab_size} and {config.context_length}"
        )
    with process_group(device) as ranks:
        if ranks.world_size > 1 and settings.minutes is not None:
            raise ValueError("minutes: expected None for several processes, whose clocks differ: give steps")
        with owned_folder(folder, ranks):
            checkpoint = find_checkpoint(folder, _arguments(config, corpus, settings), resume)
            run = TrainingRun(config, corpus, folder, settings, ranks, quiet)
            if checkpoint is not None:
                run.restore(checkpoint)
            try:
                if watch is not None:
                    run.watcher = watch(run.model)
                    run.watcher.steps = run.step
                with stop_on_signal() as stop, run.watcher or nullcontext():
                    return run.run(stop)
            except OSError as error:
                complete = f"; the checkpoint of step {run.saved_step} in {folder} is complete"
                raise OSError(f"{error}{complete if run.saved_step >= 0 else ''}") from None


def _arguments(config: Config, corpus: Corpus, settings: TrainingSettings) -> dict[str, Any]:
    """All that a run depends on, as plain data: a resumed run must have the same."""
    return {**config.to_json(), **dataclasses.asdict(settings), "corpus": corpus.digest}


class TrainingRun:
    """The state of a run, and its loop, from the first step or from a checkpoint."""

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        folder: Path,
        settings: TrainingSettings,
        ranks: Processes,
        quiet: bool,
    ) -> None:
        self.settings, self.folder, self.ranks = settings, folder, ranks
        self.arguments = _arguments(config, corpus, settings)
        self.corpus = corpus.to(ranks.device)
        torch.manual_seed(settings.seed)
        self.model = GPT(config).to(ranks.device)
        self.model.tokenizer = corpus.tokenizer
        self.optimizers = make_optimizers(self.model, settings)
        self.step = 0
        self.evaluated_step = self.saved_step = -1  # the steps of the last evaluation and checkpoint
        self.best_loss = math.inf
        self.best: dict[str, Tensor] | None = None  # the weights of the best model so far, on rank 0
        self.best_step = -1  # their step, unless they were restored
        self.earlier_seconds = 0.0  # of this run, before it was resumed
        self.warmup_seconds = 0.0  # when the warmup ended
        self.pending: list[tuple[int, float, Tensor, Tensor]] = []  # step, learning rate, loss, gradient norm
        self.watcher: Any = None
        self.quiet = quiet or not ranks.is_main
        self.progress = Progress(1, quiet=True)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint; the history after it is removed, since it will be written again."""
        state = checkpoint.state
        checkpoints.restore(checkpoint.tensors, self.model, self.optimizers)
        self.step, self.evaluated_step = state["step"], state["evaluated_step"]
        self.earlier_seconds, self.warmup_seconds = state["seconds"], state["warmup_seconds"]
        self.saved_step = self.step
        self.best_loss = math.inf if state["best_loss"] is None else state["best_loss"]
        if self.ranks.is_main:
            if state["best_loss"] is not None:
                self.best = checkpoints.best_weights(checkpoint.tensors, self.model)
            history.truncate(self.folder, checkpoint.history)

    def run(self, stop: StopRequest) -> TrainingResult:
        """Train until the end, or until `stop` is set; a checkpoint is saved in both cases."""
        s = self.settings
        if self.ranks.is_main:
            # What a save that was killed has left.
            for name in (CONFIG, TOKENIZER, WEIGHTS, checkpoints.FILE):
                remove_temporary_files(self.folder, name)
            self._save_best()
        self.started = time.perf_counter()
        total = self._total()
        self.progress = Progress(total, self._done(), self.quiet)
        if self.saved_step >= 0:
            self.progress.print(f"resumed from the checkpoint of step {self.saved_step}")
        parallel = self.ranks.data_parallel(self.model)

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            return next_token_loss(parallel(inputs), targets)

        compiled = torch.compile(forward, dynamic=False) if s.compile else forward
        self._restart_timer()
        if self.saved_step < 0:
            self._save()
        while True:
            # Evaluate and save when due, then take a step.
            ended = self._done() >= total
            evaluated = self.evaluated_step != self.step and (ended or self.step % s.evaluate_every == 0)
            if evaluated:
                self._evaluate()
            # A run that was stopped after its last step is evaluated when it is resumed: that is saved, too.
            changed = self.saved_step != self.step or (ended and evaluated)
            if changed and (ended or self.step % s.save_every == 0):
                self._save()
            if ended:
                if self.ranks.is_main:
                    self._save_best()
                return TrainingResult(self.step, True, self.best_loss)
            self._take_step(parallel, compiled)
            if self.watcher is not None:
                self.watcher.step()
            if self.step % LOG_EVERY == 0:
                self._log()
            if self._should_stop(stop):
                self._save()
                return TrainingResult(self.step, False, self.best_loss)

    def _take_step(self, parallel: torch.nn.Module, forward: Any) -> None:
        """One optimizer step; `forward` computes the loss of a batch with the model `parallel`."""
        s, ranks = self.settings, self.ranks
        progress = self._progress_after_warmup()
        if self.step == s.warmup_steps:
            self.warmup_seconds = self._seconds()
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group in groups:
            bounds = {"highest": group["highest"], "lowest": group["lowest"]}
            group["lr"] = learning_rate(self.step, progress, warmup=s.warmup_steps, **bounds)
        if self.model.config.dropout:
            # Dropout depends only on the seed, the step and the rank.
            seed = np.random.SeedSequence((s.seed, self.step, ranks.rank)).generate_state(1, np.uint64)
            torch.manual_seed(int(seed[0]) >> 1)

        # Gradients of all batches of the step, averaged over the ranks with the last one.
        length = self._window_length()
        batch_size = s.batch_size * (self.corpus.context_length // length)
        windows = batch_size * ranks.world_size * s.gradient_accumulation_steps
        loss = torch.zeros((), device=ranks.device)
        for number in range(s.gradient_accumulation_steps):
            rows = ranks.local_slice(batch_size, number * batch_size * ranks.world_size)
            inputs, targets = self.corpus.training_batch(s.seed, self.step, windows, rows, length)
            with ranks.no_sync(parallel, enabled=number < s.gradient_accumulation_steps - 1):
                with self._autocast():
                    share = forward(inputs, targets) / s.gradient_accumulation_steps
                share.backward()
            loss += share.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self.pending.append((self.step, groups[0]["lr"], loss, norm))

    def _window_length(self) -> int:
        """The length of the windows of this step. The first step and one in eight are long in any case."""
        s, context_length = self.settings, self.corpus.context_length
        if s.short_length is None or self.step % LONG_EVERY == 0:
            return context_length
        begun = self._done() < s.short_share * self._total()
        return min(s.short_length, context_length) if begun else context_length

    def _autocast(self) -> torch.autocast:
        """A block that computes in bfloat16, if the settings and the device say so."""
        device_type, precision = self.ranks.device.type, self.settings.precision
        enabled = precision == "bfloat16" or (
            precision == "auto" and device_type == "cuda" and torch.cuda.is_bf16_supported()
        )
        return torch.autocast(device_type, torch.bfloat16, enabled=enabled)

    def _seconds(self) -> float:
        """Seconds of training, those before it was resumed included."""
        return self.earlier_seconds + time.perf_counter() - self.started

    def _total(self) -> float:
        """Steps of the whole run, or seconds for a run by the clock."""
        return self.settings.steps if self.settings.minutes is None else self.settings.minutes * 60

    def _done(self) -> float:
        """Steps done, or seconds for a run by the clock."""
        return self.step if self.settings.minutes is None else self._seconds()

    def _progress_after_warmup(self) -> float:
        """The part of the run after the warmup that is done, from 0 to 1."""
        s = self.settings
        if s.minutes is None:
            return (self.step - s.warmup_steps) / max(1, s.steps - s.warmup_steps)
        return (self._seconds() - self.warmup_seconds) / max(1e-9, s.minutes * 60 - self.warmup_seconds)

    def _should_stop(self, stop: StopRequest) -> bool:
        """Whether `stop` is set on any rank: all of them must stop at the same step."""
        if self.ranks.world_size == 1 or self.step % LOG_EVERY:
            return self.ranks.world_size == 1 and stop.is_set()
        return self.ranks.any(stop.is_set())

    def _restart_timer(self) -> None:
        """Start measuring the speed again, so that evaluations and saves do not count."""
        self._timer_start, self._timer_step = time.perf_counter(), self.step

    def _log(self) -> None:
        """Write the metrics of the steps since the last call; a ValueError if a loss is not finite."""
        if not self.pending:
            return
        steps, rates, losses, norms = zip(*self.pending, strict=True)
        # Every rank has its own windows: the loss of a step is the mean over the ranks.
        means = (self.ranks.sum(torch.stack(losses)) / self.ranks.world_size).tolist()
        self.pending.clear()
        for step, mean in zip(steps, means, strict=True):
            if not math.isfinite(mean):
                raise ValueError(
                    f"loss became NaN or inf at step {step}. Lower learning_rate and resume from the "
                    f"checkpoint of step {self.saved_step}."
                )
        s = self.settings
        tokens = (
            s.batch_size * s.gradient_accumulation_steps * self.ranks.world_size * self.corpus.context_length
        )
        seconds = max(1e-9, time.perf_counter() - self._timer_start)
        speed = tokens * (self.step - self._timer_step) / seconds
        if self.ranks.is_main:
            rows = zip(steps, means, rates, torch.stack(norms).tolist(), strict=True)
            history.append_steps(self.folder, [StepMetrics(*row) for row in rows], speed, self._seconds())
        self.progress.show(self._done(), self.step, means[-1], speed)
        self._restart_timer()

    def _evaluate(self) -> None:
        """Append the validation loss, a sample and the head scores to the history; save the best model."""
        self._log()
        s = self.settings
        self.model.eval()
        with self._autocast():
            validation = validation_loss(
                self.model, self.corpus, s.evaluate_tokens, 4 * s.batch_size, self.ranks
            )
        if self.ranks.is_main:
            sample = self._sample()
            scores = head_scores(self.model, self.corpus)
            history.append_evaluation(
                self.folder,
                self.step,
                validation=validation,
                seconds=self._seconds(),
                sample=sample,
                scores=scores,
            )
            indented = "\n".join(f"    {line}" for line in sample.splitlines())
            self.progress.print(f"step {self.step}  validation loss {validation:.4f}\n{indented}")
            if validation < self.best_loss:
                self.best_step = self.step
                self.best = {
                    name: x.detach().to("cpu", copy=True) for name, x in self.model.state_dict().items()
                }
                self._save_best()
        self.best_loss = min(self.best_loss, validation)
        self.model.train()
        self.ranks.barrier()
        self.evaluated_step = self.step
        self._restart_timer()

    def _sample(self) -> str:
        """A text that the model writes, from the beginning-of-text token or the first validation token."""
        bos_token_id, context_length = self.corpus.bos_token_id, self.corpus.context_length
        prompt = [int(self.corpus.validation[0]) if bos_token_id is None else bos_token_id]
        ids = self.model.generate(
            prompt,
            max_new_tokens=min(SAMPLE_TOKENS, context_length - 1),
            temperature=0.8,
            seed=self.settings.seed,
        )
        text: str = self.corpus.tokenizer.decode(ids)
        return text

    def _save_best(self) -> None:
        if self.best is None:
            return
        with without_weights():
            model = GPT(self.model.config)
        model.load_state_dict(self.best, assign=True)
        model.tokenizer = self.model.tokenizer
        model.save(self.folder)

    def _save(self) -> None:
        self._log()
        if self.ranks.is_main:
            state = {
                "step": self.step,
                "evaluated_step": self.evaluated_step,
                "best_loss": self.best_loss if math.isfinite(self.best_loss) else None,
                "seconds": self._seconds(),
                "warmup_seconds": self.warmup_seconds,
                "arguments": self.arguments,
            }
            best = None if self.best_step == self.step else self.best
            checkpoints.save(self.folder, self.model, self.optimizers, state, best)
        self.ranks.barrier()
        self.saved_step = self.step
        self._restart_timer()
