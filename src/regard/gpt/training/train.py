"""Training: steps taken, losses and head scores written down, and nothing lost when it is stopped.

A run lives in a folder: `checkpoint.safetensors`, from which it goes on; the best model so far, which
`GPT.from_pretrained(folder)` opens; `metrics.jsonl`, a line a step; `heads.jsonl`, a line an evaluation.
What comes at a step is a function of the settings and the step alone, so a run that is killed and resumed
ends with the same numbers, bit for bit on a CPU.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.atomic import atomic_write
from regard.attention.arguments import check_positive, check_whole_number
from regard.gpt.config import Config
from regard.gpt.model import GPT
from regard.gpt.training import checkpoints
from regard.gpt.training.corpus import Corpus
from regard.gpt.training.evaluation import head_scores, loss, validation_loss
from regard.gpt.training.optimizer import adamw, learning_rate
from regard.gpt.training.progress import Progress
from regard.processes import Processes, joined

METRICS, HEADS = "metrics.jsonl", "heads.jsonl"
SHOWN_EVERY = 10  # steps between looks at the losses, for which a GPU has to be waited for
SAMPLE_TOKENS = 200


@dataclass(frozen=True)
class Settings:
    """How a model is trained; the defaults are nanoGPT's for a CPU.

    - `batch` windows a process reads at once, `accumulate` times a step.
    - `learning_rate` after `warmup` steps, falling to `lowest_rate` at the end.
    - `evaluate_every` steps on at most `evaluate_tokens` tokens; `save_every` steps a checkpoint.
    - `minutes`: the schedule follows the clock instead of `steps`, for a machine that is lent for a while;
      such a run cannot be repeated bit for bit.
    - `precision`: "auto" is bfloat16 where a GPU has it, float32 elsewhere. `compile`: by `torch.compile`.
    """

    steps: int = 2000
    batch: int = 12
    accumulate: int = 1
    learning_rate: float = 1e-3
    lowest_rate: float = 1e-4
    warmup: int = 100
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    clip: float = 1.0
    seed: int = 1337
    evaluate_every: int = 250
    evaluate_tokens: int = 131072
    save_every: int = 250
    minutes: float | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "evaluate_every", "evaluate_tokens", "save_every"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name)))
        for name in ("warmup", "seed"):
            object.__setattr__(self, name, check_whole_number(name, getattr(self, name), 0))
        for name in ("learning_rate", "clip"):
            check_positive(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected from 0 to below 1, got {getattr(self, name)!r}")
        if not 0 <= self.lowest_rate <= self.learning_rate:
            raise ValueError(
                f"lowest_rate: expected from 0 to {self.learning_rate}, the highest, got {self.lowest_rate!r}"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay!r}")
        if self.minutes is not None:
            check_positive("minutes", self.minutes)
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"precision: expected 'auto', 'float32' or 'bfloat16', got {self.precision!r}")


class Outcome(NamedTuple):
    """Where a run ended."""

    step: int
    finished: bool
    best: float
    """The lowest validation loss, which is that of the model in the folder."""


def train(
    config: Config,
    corpus: Corpus,
    folder: Path,
    settings: Settings = Settings(),  # noqa: B008 (immutable)
    *,
    resume: bool = False,
    device: str | None = None,
    quiet: bool = False,
) -> Outcome:
    """Train a GPT on a corpus, in a folder that is made if its parent exists.

    A folder that holds a run is left alone unless `resume` says to go on with it, with the same config,
    settings and text. Ctrl-C, or SIGTERM, saves and returns; `finished` is False then.
    """
    folder = Path(folder)
    if corpus.vocab_size > config.vocab_size or corpus.context != config.context:
        raise ValueError(
            f"config: expected vocab_size={corpus.vocab_size} and context={corpus.context}, the corpus's, "
            f"got {config.vocab_size} and {config.context}"
        )
    with joined(device) as us:
        if us.count > 1 and settings.minutes is not None:
            raise ValueError("minutes: expected None for several processes, whose clocks differ: give steps")
        found = _open(folder, config, corpus, settings, resume)
        run = Run(config, corpus, folder, settings, us, quiet)
        if found is not None:
            run.restore(*found)
        try:
            with _stopping() as stop:
                return run.go(stop)
        except OSError as error:
            raise OSError(f"{error}; the checkpoint of step {run.saved} in {folder} is whole") from None
        finally:
            run.progress.close()


def _open(
    folder: Path, config: Config, corpus: Corpus, settings: Settings, resume: bool
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint to go on from, if there is one; refuses to write over a run, or to mix two."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out: expected a folder, got the file {folder}")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"out: expected a folder in one that exists: make {folder.absolute().parent} first")
    found = checkpoints.load(folder)
    if found is not None and not resume:
        raise ValueError(
            f"out: {folder} holds a run at step {found[1]['step']}: "
            "add --resume to go on with it, or choose another folder"
        )
    if found is None and folder.is_dir() and any(folder.glob("model*.safetensors")):
        raise ValueError(f"out: {folder} holds a model but no run to resume: choose another folder")
    if found is not None:
        asked = {**config.to_json(), **dataclasses.asdict(settings), "corpus": corpus.digest}
        for name, now in asked.items():
            if (before := found[1]["asked"].get(name)) != now:
                raise ValueError(
                    f"{name}: expected {before!r}, as the run in {folder} was begun with, got {now!r}"
                )
    return found


class Run:
    """One training run, from its first step or from a checkpoint on."""

    def __init__(
        self, config: Config, corpus: Corpus, folder: Path, settings: Settings, us: Processes, quiet: bool
    ) -> None:
        self.settings, self.folder, self.us = settings, folder, us
        self.asked = {**config.to_json(), **dataclasses.asdict(settings), "corpus": corpus.digest}
        self.corpus = corpus.to(us.device)
        torch.manual_seed(settings.seed)
        self.model = GPT(config).to(us.device)
        self.model.tokenizer = corpus.tokenizer
        s = settings
        self.optimizer = adamw(self.model, weight_decay=s.weight_decay, betas=(s.beta1, s.beta2))
        self.step = 0
        self.evaluated = self.saved = -1  # at which step that was done last
        self.best = math.inf
        self.spent = self.warm = 0.0  # seconds of earlier runs of this one; when the warm-up ended
        self.pending: list[tuple[int, float, Tensor, Tensor]] = []  # step, rate, loss and gradient norm
        self.quiet = quiet or not us.first
        self.progress = Progress(1, quiet=True)

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from a checkpoint; what was written down after it is forgotten, since it will come again."""
        checkpoints.restore(tensors, self.model, self.optimizer)
        self.step, self.evaluated, self.spent = state["step"], state["evaluated"], state["spent"]
        self.warm, self.saved = state["warm"], self.step
        self.best = math.inf if state["best"] is None else state["best"]
        if self.us.first:
            _forget_after(self.folder / METRICS, self.step, self.evaluated)
            _forget_after(self.folder / HEADS, self.step, self.evaluated)

    def go(self, stop: threading.Event) -> Outcome:
        """Train until the end, or until `stop` is set, which is saved too."""
        s = self.settings
        if self.us.first:
            self.folder.mkdir(exist_ok=True)
            for kind in (".*.safetensors.*", ".*.json*.*"):  # of a save that was killed
                for unfinished in self.folder.glob(kind):
                    unfinished.unlink()
        self.began = time.perf_counter()
        total = s.steps if s.minutes is None else s.minutes * 60
        self.progress = Progress(total, self._done_of_total(), self.quiet)
        shared = self.us.shared(self.model)

        def forward(inputs: Tensor, targets: Tensor) -> Tensor:
            return loss(shared(inputs), targets)

        compiled = torch.compile(forward, dynamic=False) if s.compile else forward
        self._mark()
        if self.saved < 0:
            self._save()
        while True:
            ended = self.step >= s.steps if s.minutes is None else self._seconds() >= s.minutes * 60
            if self.evaluated != self.step and (ended or self.step % s.evaluate_every == 0):
                self._evaluate()
            if self.saved != self.step and (ended or self.step % s.save_every == 0):
                self._save()
            if ended:
                return Outcome(self.step, True, self.best)
            self._take_step(shared, compiled)
            if self.step % SHOWN_EVERY == 0:
                self._write_down()
            if self._anyone(stop):
                self._save()
                return Outcome(self.step, False, self.best)

    def _take_step(self, shared: torch.nn.Module, forward: Any) -> None:
        s = self.settings
        done = self._done()
        if self.step == s.warmup:
            self.warm = self._seconds()
        rate = learning_rate(self.step, done, warmup=s.warmup, highest=s.learning_rate, lowest=s.lowest_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.model.config.dropout:
            # Dropout, too, is a function of the step and the process.
            drawn = np.random.SeedSequence((s.seed, self.step, self.us.rank)).generate_state(1, np.uint64)
            torch.manual_seed(int(drawn[0]) >> 1)
        windows = s.batch * self.us.count * s.accumulate
        summed = torch.zeros((), device=self.us.device)
        for turn in range(s.accumulate):
            part = self.us.part(s.batch, turn * s.batch * self.us.count)
            inputs, targets = self.corpus.batch(s.seed, self.step, windows, part)
            with self.us.apart(shared, turn < s.accumulate - 1):
                with self._precision():
                    mean = forward(inputs, targets) / s.accumulate
                mean.backward()
            summed += mean.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.pending.append((self.step, rate, summed, norm))

    def _precision(self) -> torch.autocast:
        kind, wanted = self.us.device.type, self.settings.precision
        half = wanted == "bfloat16" or (
            wanted == "auto" and kind == "cuda" and torch.cuda.is_bf16_supported()
        )
        return torch.autocast(kind, torch.bfloat16, enabled=half)

    def _seconds(self) -> float:
        return self.spent + time.perf_counter() - self.began

    def _done_of_total(self) -> float:
        return self.step if self.settings.minutes is None else self._seconds()

    def _done(self) -> float:
        """How much of the run after the warm-up lies behind, from 0 to 1."""
        s = self.settings
        if s.minutes is None:
            return (self.step - s.warmup) / max(1, s.steps - s.warmup)
        return (self._seconds() - self.warm) / max(1e-9, s.minutes * 60 - self.warm)

    def _anyone(self, stop: threading.Event) -> bool:
        """Whether any process was told to stop: all of them stop at the same step, so they ask each other."""
        if self.us.count == 1 or self.step % SHOWN_EVERY:
            return self.us.count == 1 and stop.is_set()
        flag = torch.tensor(float(stop.is_set()), device=self.us.device)
        return bool(self.us.total(flag) > 0)

    def _mark(self) -> None:
        """From here on the speed is measured: evaluations do not count."""
        self._since, self._steps_since = time.perf_counter(), self.step

    def _write_down(self) -> None:
        """The losses since the last time, a line each."""
        if not self.pending:
            return
        steps, rates, losses, norms = zip(*self.pending, strict=True)
        # Every process has its own windows: the loss of a step is that of all of them.
        means = (self.us.total(torch.stack(losses)) / self.us.count).tolist()
        self.pending.clear()
        if not all(map(math.isfinite, means)):
            raise ValueError(
                f"the loss is no number any more, from step {steps[0]} on: try a lower learning_rate; "
                f"the checkpoint of step {self.saved} is from before"
            )
        tokens = self.settings.batch * self.settings.accumulate * self.us.count * self.corpus.context
        now = time.perf_counter()
        speed = tokens * (self.step - self._steps_since) / max(1e-9, now - self._since)
        lines = [
            {"step": step, "loss": mean, "learning_rate": rate, "gradient_norm": norm}
            for step, rate, mean, norm in zip(steps, rates, means, torch.stack(norms).tolist(), strict=True)
        ]
        lines[-1] |= {"tokens_per_second": round(speed), "seconds": round(self._seconds(), 2)}
        self._append(METRICS, *lines)
        self.progress.show(self._done_of_total(), self.step, means[-1], speed)
        self._mark()

    def _evaluate(self) -> None:
        """The validation loss, a sample and what every head does; the best model so far is kept."""
        self._write_down()
        s = self.settings
        self.model.eval()
        with self._precision():
            judged = validation_loss(self.model, self.corpus, s.evaluate_tokens, 4 * s.batch, self.us)
        if self.us.first:
            text = self._sample()
            seconds = round(self._seconds(), 2)
            self._append(
                METRICS, {"step": self.step, "validation": judged, "seconds": seconds, "sample": text}
            )
            self._append(HEADS, {"step": self.step, **head_scores(self.model, self.corpus)})
            self.progress.say(f"step {self.step}  validation loss {judged:.4f}\n{_indented(text)}")
            if judged < self.best:
                self.model.save(self.folder)
        self.best = min(self.best, judged)
        self.model.train()
        self.us.wait()
        self.evaluated = self.step
        self._mark()

    def _sample(self) -> str:
        start, context = self.corpus.start, self.corpus.context
        first = [int(self.corpus.validation[0])] if start is None else [start]
        ids = self.model.generate(
            first, max_new_tokens=min(SAMPLE_TOKENS, context - 1), temperature=0.8, seed=self.settings.seed
        )
        text: str = self.corpus.tokenizer.decode(ids)
        return text

    def _save(self) -> None:
        self._write_down()
        if self.us.first:
            best = self.best if math.isfinite(self.best) else None
            state = {"step": self.step, "evaluated": self.evaluated, "best": best, "asked": self.asked}
            state |= {"spent": self._seconds(), "warm": self.warm}
            checkpoints.save(self.folder, self.model, self.optimizer, state)
        self.us.wait()
        self.saved = self.step
        self._mark()

    def _append(self, name: str, *lines: dict[str, Any]) -> None:
        if self.us.first:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))


def _forget_after(path: Path, step: int, evaluated: int) -> None:
    """Drop the lines that a killed run wrote after its last checkpoint, and one that it did not finish."""
    if not path.exists():
        return
    kept = []
    for text in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["step"] <= (step if "loss" in line else evaluated) and text.endswith("\n"):
            kept.append(text)
    with atomic_write(path) as file:
        file.write_text("".join(kept), encoding="utf-8")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; a second one interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def asked(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
