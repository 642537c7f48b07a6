"""Attacks on long runs, training and survey: signals at any moment, and files that are cut short.

What a run leaves at its end must be the same, to the last byte, as if nobody had disturbed it; a resume from
damaged files must be refused and change nothing.
"""

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from regard.gpt import GPT, Config
from regard.gpt.training.history import HEADS_FILE, METRICS_FILE
from regard.heads.corpus_survey.survey import SurveyModel, SurveyPlan, survey
from regard.support.processes import SIGNALS, Processes
from tests import forks
from tests.attack.progress import counted
from tests.gpt.training import short_runs
from tests.gpt.training.short_runs import SETTINGS, losses
from tests.patience import HANGING

DRAWS = 150
STOPPED, REFUSED = 130, 2  # exit codes of a run that a signal stopped, and of one that ended with a sentence
CORPUS = "corpus.txt"
MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
TRAINING = replace(SETTINGS, steps=24, evaluate_every=12, save_every=2)


class Subject(NamedTuple):
    """A kind of run: how it is done, what is left of it at the end, and its progress checkpoints."""

    name: str
    run: Callable[[Path, bool], bool]
    """Run in a folder, or go on there; True if it came to its end."""
    result: Callable[[Path], Any]
    """All that must be the same at the end of every run."""
    checkpoint: str
    """The name of the checkpoint in the folder."""
    is_ending: Callable[[Path], bool]
    """Whether the run in a folder has done its work, and may end at any moment."""
    rewritten: tuple[str, ...] = ()
    """Files of the folder that a resumed run writes again, whatever became of them."""


def train(folder, resume):
    """Train a small model."""
    return short_runs.run(folder, resume, TRAINING).finished


def train_result(folder):
    """The model, every loss, and the tensors of the last checkpoint."""
    with safe_open(folder / "checkpoint.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}  # noqa: SIM118
    return [(folder / name).read_bytes() for name in MODEL_FILES], losses(folder), tensors


def train_is_ending(folder):
    """Whether the last evaluation is in the history."""
    metrics = folder / METRICS_FILE
    return metrics.exists() and f'"step": {TRAINING.steps}, "validation"' in metrics.read_text()


def describe_heads(folder, resume):
    """Survey a small model over a short corpus."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    sizes = {"num_layers": 1, "num_heads": 2, "d_model": 8}
    model = GPT(Config(vocab_size=64, context_length=16, **sizes)).eval()
    reader = SurveyModel("small", model.maps, lambda text: [ord(x) % 64 for x in text], 0, "weights")
    folder.mkdir(exist_ok=True)
    corpus = folder.parent / CORPUS
    ranks = Processes(0, 1, torch.device("cpu"))
    try:
        survey(reader, SurveyPlan(corpus, length=16), folder / "out.csv", ranks=ranks, fresh=not resume)
    except KeyboardInterrupt:
        return False
    return True


def survey_result(folder):
    """The table and its examples, which are the only files that are left."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def survey_is_ending(folder):
    """Whether the table is there."""
    return (folder / "out.csv").exists()


SUBJECTS = (
    Subject("training", train, train_result, "checkpoint.safetensors", train_is_ending, MODEL_FILES),
    Subject("survey", describe_heads, survey_result, "out.csv.shards", survey_is_ending),
)


def work(subject, folder, resume):
    """What a process does: a run whose outcome is in its exit code, and its error in a file."""
    error, code = "", 1
    try:
        code = 0 if subject.run(folder, resume) else STOPPED
        # The second of two signals may come when the run has ended: it must not disturb the report of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    except (ValueError, OSError) as refusal:
        error, code = str(refusal), REFUSED
    except KeyboardInterrupt:  # before or after the time in which the run listens for signals
        code = STOPPED
    except BaseException as mistake:
        error = repr(mistake)
    (folder.parent / f"said-{os.getpid()}").write_text(error)
    os._exit(code)


class Attack:
    """One folder, the processes that are started in it, and the draws."""

    def __init__(self, subject, expected, home, draw):
        self.subject, self.expected, self.draw = subject, expected, draw
        self.home = home
        self.folder = home / "run"
        home.mkdir()
        (home / CORPUS).write_text(short_runs.text(600))
        self.figures = Counter()
        self.processes = []

    def start(self, resume=True):
        """Start a run in a process of its own."""
        process = FORKS.Process(target=work, args=(self.subject, self.folder, resume))
        process.start()
        self.processes.append(process)
        self.figures["processes"] += 1
        return process

    def end(self, process):
        """Wait for a process and return its exit code."""
        process.join(HANGING)
        assert not process.is_alive(), "a process hangs"
        return process.exitcode

    def said(self, process):
        """The error of a process that has ended by itself; "" if it had none."""
        return (self.home / f"said-{process.pid}").read_text()

    def finish(self):
        """Go on to the end, and compare what is there with what must be."""
        process = self.start()
        code = self.end(process)
        assert code == 0, self.said(process)
        self.compare()

    def compare(self):
        """The result must be that of an undisturbed run, with nothing beside it."""
        assert self.subject.result(self.folder) == self.expected, "the result differs"
        left = [path.name for path in self.folder.iterdir() if path.name.startswith(".")]
        assert not left, f"left behind: {left}"

    def contents(self):
        """The files of the folder, but for the lock that a killed process may leave."""
        files = (
            path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")
        )
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    @contextmanager
    def moment(self, process):
        """Halt a process after a few of its checkpoints, and a little later; True if it is at work then."""
        checkpoint = self.folder / self.subject.checkpoint
        changes, before, wrote = self.draw.randint(0, 6), _state(checkpoint), False
        while changes and process.is_alive():
            time.sleep(0.0005)
            if (now := _state(checkpoint)) != before:
                changes, before, wrote = changes - 1, now, True
        time.sleep(self.draw.uniform(0, 0.03))
        _send(process, signal.SIGSTOP)
        try:
            yield wrote and process.is_alive() and not self.subject.is_ending(self.folder)
        finally:
            _send(process, signal.SIGCONT)

    def stop(self, process, number, times=1):
        """Send a signal to a run at a random moment, and return its exit code."""
        with self.moment(process) as at_work:
            _send(process, number)
            self.figures["signals"] += 1
        if times > 1:
            _send(process, number)
        code = self.end(process)
        if at_work and number != signal.SIGKILL and times == 1:
            assert code in (0, STOPPED), f"signal {number} ended a run that was at work: {code}"
        return code

    # The attacks

    def signals(self):
        """Kills and polite signals, one after the other, at random moments."""
        for _ in range(self.draw.randint(1, 3)):
            number = self.draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
            process = self.start()
            code = self.stop(process, number, self.draw.choice([1, 1, 2]))
            # Before its run begins, a process dies of a signal as any other does.
            unbegun = not (self.home / f"said-{process.pid}").exists()
            assert code in (0, STOPPED, -number) or (unbegun and number == signal.SIGINT), (code, number)
            self.figures["stopped and saved"] += code == STOPPED
            self.figures["killed"] += code == -signal.SIGKILL
            self.damage_result()
            if code == 0 and self.subject.name == "survey":
                break
        self.finish()

    def damage_result(self):
        """Delete, empty or change some of the files that the next resume writes again."""
        if not (self.folder / self.subject.checkpoint).exists():
            return
        for file in (self.folder / name for name in self.subject.rewritten):
            way = self.draw.choice(
                [None, Path.unlink, lambda x: x.write_bytes(b""), lambda x: x.write_text("{}")]
            )
            if way is not None and file.exists():
                way(file)
                self.figures["damaged model files"] += 1

    def cuts(self):
        """A checkpoint or a history that is cut short: a resume is refused, and changes nothing."""
        if not self.interrupted():
            return
        newest = self.folder / self.subject.checkpoint
        if newest.is_dir():  # of a survey, which has no other state than its chunks
            newest = max(newest.glob("chunk-*"), default=newest)
            if newest.is_dir():  # stopped before its first chunk: there is nothing to cut
                return self.finish()
        choice = self.draw.choice([newest, newest, self.folder / METRICS_FILE, self.folder / HEADS_FILE])
        file = choice if choice.exists() and choice.stat().st_size else newest
        os.truncate(file, self.draw.randrange(file.stat().st_size))
        self.figures["files cut short"] += 1
        before = self.contents()
        process = self.start()
        code, said = self.end(process), self.said(process)
        # What was appended to a history after the checkpoint is removed by a resume in any case.
        if code == 0 and file is not newest:
            return self.compare()
        assert code == REFUSED, f"damage was not noticed: {code}, {said}"
        assert file.name in said, said
        assert self.contents() == before, "a refused resume changed something"
        self.figures["refused: damaged"] += 1

    def interrupted(self):
        """Leave an unfinished run in the folder; False if it was too fast."""
        process = self.start()
        code = self.stop(process, self.draw.choice([signal.SIGKILL, signal.SIGTERM]))
        return code != 0 and (self.folder / self.subject.checkpoint).exists()


ATTACKS = (Attack.signals, Attack.cuts)
FORKS = forks.context()


def attack(draws, seed):
    """Draw attacks on training and survey; every one must leave what an undisturbed run leaves."""
    figures = Counter()
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="regard-attack-") as name:
        home = Path(name)
        expected = {subject.name: _undisturbed(subject, home) for subject in SUBJECTS}
        for number in counted(draws, "runs"):
            draw = random.Random(f"{seed} {number}")
            subject, way = SUBJECTS[number // 2 % 2], ATTACKS[number % 2]
            place = home / str(number)
            began = time.monotonic()
            attempt = Attack(subject, expected[subject.name], place, draw)
            try:
                way(attempt)
            except AssertionError as error:
                raise AssertionError(
                    f"seed {seed}, draw {number}: {way.__name__} of {subject.name}: {error}"
                ) from error
            finally:
                for process in attempt.processes:
                    process.kill()  # nothing, unless an assertion failed
            worst = max(worst, time.monotonic() - began)
            figures[f"{way.__name__} of {subject.name}"] += 1
            figures += attempt.figures
            shutil.rmtree(place)
    left = len(multiprocessing.active_children())
    assert not left, f"{left} processes are left"
    return {**dict(sorted(figures.items())), "processes left": left, "worst seconds of a draw": worst}


def _undisturbed(subject, home):
    """The result of a run that nobody disturbs, in a process like those of the others."""
    place = home / subject.name
    attempt = Attack(subject, None, place, random.Random(0))
    process = attempt.start(resume=False)
    assert attempt.end(process) == 0, attempt.said(process)
    return subject.result(attempt.folder)


def _state(path):
    """What tells one state of a file from the next."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _send(process, number):
    """Send a signal to a process, if it lives."""
    with suppress(ProcessLookupError):
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, number)
