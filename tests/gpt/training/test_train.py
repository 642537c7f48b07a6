"""Training: a run that is killed ends with the same losses, and no failure damages its folder."""

import json
import math
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import regard
from regard.gpt import GPT
from regard.gpt.training import train as training_module
from regard.gpt.training.corpus import Corpus
from regard.gpt.training.history import HEADS_FILE, METRICS_FILE, read_metrics
from regard.gpt.training.optimizer import learning_rate
from regard.gpt.training.settings import TrainingSettings
from regard.gpt.training.train import TrainingRun, train
from regard.support.file_lock import InUseError
from tests.gpt.training import short_runs
from tests.gpt.training.short_runs import SETTINGS, config, corpus, in_another_process, losses, run
from tests.patience import HANGING, wait_until
from tests.sampling import share


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run that was not stopped."""
    folder = tmp_path_factory.mktemp("train") / "undisturbed"
    to_its_end(folder, resume=False)
    return folder


def to_its_end(folder, resume=True):
    """Run to the end in a process of its own, as the killed runs do: only equal processes give equal bits."""
    process = in_another_process(folder, resume)
    process.join()
    assert process.exitcode == 0


def test_a_monitor_reads_the_steps_that_are_due_and_no_loss_changes(tmp_path):
    settings = replace(SETTINGS, steps=12)
    made = []

    def watch(model):
        made.append(regard.Monitor(model, every=5, rows=4, quiet=True))
        return made[-1]

    for name, watcher in (("alone", None), ("watched", watch)):
        train(config(), corpus(), tmp_path / name, settings, device="cpu", quiet=True, watch=watcher)
    assert [record.step for record in made[0].history.records] == [0, 5, 10]
    assert losses(tmp_path / "alone") == losses(tmp_path / "watched")


def tensors(folder):
    return (folder / "model.safetensors").read_bytes()


def test_a_run_learns_and_leaves_a_model(undisturbed):
    by_step = dict(losses(undisturbed))
    assert by_step[SETTINGS.steps] < by_step[0] - 0.5
    assert [step for step, _ in losses(undisturbed)] == sorted([*range(31), 15, 30])
    model = GPT.from_pretrained(undisturbed)
    assert model.config == config()
    assert model.generate("the c", max_new_tokens=3).startswith("the c")


def test_the_model_in_the_folder_has_the_best_validation_loss(undisturbed):
    best = min(line["validation"] for line in read_metrics(undisturbed) if "validation" in line)
    model, batch_losses = GPT.from_pretrained(undisturbed).eval(), []
    for inputs, targets in corpus().validation_batches(
        SETTINGS.evaluate_tokens, 4 * SETTINGS.batch_size, slice(None)
    ):
        with torch.no_grad():
            batch_losses.append(torch.nn.functional.cross_entropy(model(inputs).mT, targets).item())
    assert sum(batch_losses) / len(batch_losses) == pytest.approx(best, rel=1e-6)


def test_head_scores_are_recorded_at_each_evaluation(undisturbed):
    lines = [json.loads(line) for line in (undisturbed / HEADS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 15, 30]
    for line in lines:
        for table in (line["text"], line["repeats"]):
            for score in table.values():
                assert [len(row) for row in score["heads"]] == [2, 2]
        assert 0 < line["text"]["entropy"]["null"] <= math.log(short_runs.CONTEXT)
    # An untrained head attends uniformly.
    highest = max(max(row) for row in lines[0]["text"]["entropy"]["heads"])
    assert highest == pytest.approx(lines[0]["text"]["entropy"]["null"], abs=0.01)


KILLS = len(share(range(8), 2))  # `python -m tests.attack runs` has many more


def test_kills_change_nothing(undisturbed, tmp_path):
    folder, draw = tmp_path / "killed", random.Random(1)
    kills, resumed_from = 0, set()
    while kills < KILLS:
        process = in_another_process(folder)
        wait_for_steps(process, folder / METRICS_FILE, draw.randint(0, 12))
        process.join(draw.uniform(0, 0.02))
        if process.is_alive():
            process.kill()
            kills += 1
            process.join()
        else:
            assert process.exitcode == 0
            if (folder / "checkpoint.safetensors").exists() and kills < KILLS:
                # It finished before it was killed often enough: start again.
                assert losses(folder) == losses(undisturbed)
                shutil.rmtree(folder)
        if (folder / "checkpoint.safetensors").exists():
            checkpoint = training_module.checkpoints.load(folder)  # always complete
            resumed_from.add(checkpoint.state["step"])
    to_its_end(folder)
    assert losses(folder) == losses(undisturbed)
    assert tensors(folder) == tensors(undisturbed)
    assert max(resumed_from) > 0
    assert not list(folder.glob(".*"))


def wait_for_steps(process, metrics, steps):
    """Until a run has written as often as this, or has ended: kills then fall everywhere on any machine."""
    before = metrics.stat().st_size if metrics.exists() else 0
    while steps and process.is_alive():
        time.sleep(0.001)
        now = metrics.stat().st_size if metrics.exists() else 0
        steps -= now != before
        before = now


def test_a_damaged_history_is_refused_and_nothing_is_changed(tmp_path, monkeypatch):
    folder = tmp_path / "damaged"
    # Twice, as `timeout` sends it.
    at_step(monkeypatch, 9, lambda: [signal.raise_signal(signal.SIGHUP) for _ in range(2)])
    assert not run(folder).finished
    metrics = folder / METRICS_FILE
    metrics.write_text(metrics.read_text()[:-9])
    before = contents(folder)
    with pytest.raises(ValueError, match=f"{METRICS_FILE} is damaged: expected at least"):
        run(folder, resume=True)
    assert contents(folder) == before


def test_ctrl_c_saves_and_prints_how_to_resume(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text(short_runs.text())
    sizes = ["--num-layers=1", "--num-heads=1", "--d-model=8", "--context-length=8", "--batch-size=2"]
    start = [sys.executable, "-c", "from regard.cli import main; main()", "train", str(book)]
    command = [*start, f"--out={tmp_path / 'run'}", *sizes, "--steps=1000000", "--device=cpu"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    metrics = tmp_path / "run" / METRICS_FILE
    wait_until(lambda: metrics.exists() and '"loss"' in metrics.read_text())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=HANGING)
    assert process.returncode == 130, stderr
    step = len([line for line in metrics.read_text().splitlines() if '"loss"' in line])
    assert f"stopped at step {step} and saved; go on with: regard train {book}" in stderr
    assert stderr.strip().endswith("--resume")


def test_two_processes_train_as_one(tmp_path):
    """Half the batch each: the same windows, the same losses up to rounding."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [short_runs.started(short_runs.as_rank, rank, port, tmp_path / "two") for rank in range(2)]
    run(tmp_path / "one", settings=replace(SETTINGS, steps=20), dropout=0.0)
    for process in ranks:
        process.join(HANGING)
        assert process.exitcode == 0
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert [step for step, _ in one] == [step for step, _ in two]
    assert [x for _, x in two] == pytest.approx([x for _, x in one], rel=1e-4)


def test_accumulated_batches_are_one_large_batch(tmp_path):
    run(tmp_path / "large", settings=replace(SETTINGS, steps=5), dropout=0.0)
    run(
        tmp_path / "small",
        settings=replace(SETTINGS, steps=5, batch_size=2, gradient_accumulation_steps=2),
        dropout=0.0,
    )
    large, small = losses(tmp_path / "large"), losses(tmp_path / "small")
    assert [x for _, x in small] == pytest.approx([x for _, x in large], rel=1e-5)


def test_a_folder_with_a_run_is_left_alone(undisturbed):
    before = contents(undisturbed)
    with pytest.raises(ValueError, match="holds a run at step 30: add --resume"):
        run(undisturbed)
    with pytest.raises(
        ValueError, match=r"d_model: expected 8, with which the run in .* was started, got 16"
    ):
        run(undisturbed, resume=True, d_model=16)
    with pytest.raises(ValueError, match="seed: expected 1337"):
        run(undisturbed, resume=True, settings=replace(SETTINGS, seed=1))
    other = short_runs.prepare(short_runs.text(2990), short_runs.CONTEXT)
    with pytest.raises(ValueError, match="corpus: expected"):
        train(config(), other, undisturbed, SETTINGS, resume=True, device="cpu", quiet=True)
    assert contents(undisturbed) == before


def test_a_full_disk_leaves_the_last_checkpoint_good(tmp_path, undisturbed):
    """A limit on the size of a file stands for a disk without room: writing breaks off in the same way."""
    folder = tmp_path / "full"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # Room for the first checkpoint, which has no moments yet, but not for the next.
        resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, limits[1]))
        with pytest.raises(OSError, match=r"cannot write.*the checkpoint of step 0 in .* is complete"):
            run(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert run(folder, resume=True).finished
    assert losses(folder) == losses(undisturbed)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    wild = replace(SETTINGS, learning_rate=1e30, min_learning_rate=0.0, warmup_steps=0, max_grad_norm=1e30)
    message = (
        r"loss became NaN or inf at step \d+\. Lower learning_rate and resume from the checkpoint of step \d+"
    )
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "run", settings=wild)
    checkpoint = training_module.checkpoints.load(tmp_path / "run")
    assert all(x.isfinite().all() for x in checkpoint.tensors.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: expected a whole number of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number above 0"),
        ({"min_learning_rate": 1.0}, "min_learning_rate: expected from 0 to learning_rate=0.001"),
        ({"beta2": 1.0}, "beta2: expected from 0 to below 1"),
        ({"minutes": -1.0}, "minutes: expected a number above 0"),
        ({"precision": "float8"}, "precision: expected 'auto', 'float32' or 'bfloat16'"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**changes)


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine():
    rates = [learning_rate(s, (s - 10) / 90, warmup=10, highest=1.0, lowest=0.1) for s in range(101)]
    assert rates[:10] == pytest.approx([(s + 1) / 11 for s in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_a_stopped_run_with_muon_and_short_windows_goes_on_with_the_same_bits(tmp_path, monkeypatch):
    settings = replace(SETTINGS, optimizer="muon", steps=12, short_length=4, short_share=0.5)
    lengths = []
    windows = Corpus._windows

    def recorded(own, ids, starts, length):
        lengths.append(length)
        return windows(own, ids, starts, length)

    whole = run(tmp_path / "whole", settings=settings)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_should_stop", lambda own, stop: own.step == 5)
        stopped = run(tmp_path / "stopped", settings=settings)
    assert (stopped.step, stopped.finished) == (5, False)
    monkeypatch.setattr(Corpus, "_windows", recorded)
    resumed = run(tmp_path / "stopped", resume=True, settings=settings)
    assert resumed == whole
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "whole")
    assert lengths[:3] == [4, short_runs.CONTEXT, short_runs.CONTEXT]  # of steps 5, 6 and 7


@pytest.mark.parametrize("name", [METRICS_FILE, HEADS_FILE])
def test_a_history_without_a_checkpoint_is_not_continued(tmp_path, name):
    os.mkfifo(tmp_path / name)  # opening it to append would wait for a reader forever
    with pytest.raises(ValueError, match=f"holds {name} of another run but no checkpoint"):
        run(tmp_path)


def test_files_of_others_are_left_alone_and_those_of_killed_saves_are_removed(tmp_path):
    others = [".notes.json.swp", ".old.safetensors.backup", ".config.json.swp"]
    folders = [".model.safetensors.ab3_x9zq", ".checkpoint.safetensors.ab3_x9zq"]
    for name in [".a.json.d", *folders]:
        (tmp_path / name).mkdir()
    for name in [*others, *(f"{name}/.tmpAb3x9Z" for name in folders)]:
        (tmp_path / name).touch()
    run(tmp_path, settings=replace(SETTINGS, steps=1))
    assert all((tmp_path / name).exists() for name in [*others, ".a.json.d"])
    assert not any((tmp_path / name).exists() for name in folders)


OVERSHOOTING = replace(SETTINGS, learning_rate=3.0, min_learning_rate=3.0, warmup_steps=0)
"""With such a learning rate the model of step 0 stays the best."""


def model_files(folder):
    return {name: (folder / name).read_bytes() for name in MODEL_FILES}


MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")


@pytest.fixture(scope="module")
def overshot(tmp_path_factory):
    """The folder of a run whose model of step 0 is its best."""
    folder = tmp_path_factory.mktemp("train") / "overshot"
    best = run(folder, settings=OVERSHOOTING).best_loss
    validations = [line["validation"] for line in read_metrics(folder) if "validation" in line]
    assert validations[0] == best < min(validations[1:])
    return folder


def test_a_live_run_refuses_a_second_and_has_its_model_at_its_end_though_it_is_deleted(
    overshot, tmp_path, monkeypatch
):
    folder, refused = tmp_path / "run", []

    def start_a_second():
        for resume in (False, True):
            with pytest.raises(InUseError, match=r"out: .* is in use by process") as error:
                run(folder, resume, settings=OVERSHOOTING)
            refused.append(error)

    at_step(monkeypatch, 5, start_a_second)
    at_step(monkeypatch, 22, lambda: (folder / "model.safetensors").unlink())
    assert run(folder, settings=OVERSHOOTING).finished
    assert len(refused) == 2
    assert losses(folder) == losses(overshot)
    assert model_files(folder) == model_files(overshot)
    assert not (folder / ".lock").exists()


def at_step(patch, step, action):
    """Let something happen once, after a step."""
    take_step, happened = TrainingRun._take_step, []

    def then_act(self, *rest):
        take_step(self, *rest)
        if self.step == step and not happened:
            happened.append(step)
            action()

    patch.setattr(TrainingRun, "_take_step", then_act)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
