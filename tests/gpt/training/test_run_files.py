"""The files of a run: its corpus, its history and its checkpoints come back bit for bit, or are refused."""

import json
import os

import pytest
import torch
from torch import nn

from regard.gpt.training import checkpoints, history
from regard.gpt.training.corpus import prepare, python_documentation, read
from regard.gpt.training.history import (
    HEADS_FILE,
    MAX_EVALUATIONS,
    MAX_LOSSES,
    METRICS_FILE,
    StepMetrics,
    read_metrics,
    read_run,
    score_table,
)
from regard.gpt.training.optimizer import Muon, adamw
from regard.heads import HeadScores
from regard.support.files import RunFileError


def write_heads(folder, steps, *, tail="", heads=2):
    def table(step):
        return {"induction": {"heads": [[step / 1000] * heads, [float("nan")] * heads], "null": 0.1}}

    lines = [json.dumps({"step": step, "text": table(step), "repeats": table(step)}) for step in steps]
    (folder / HEADS_FILE).write_text("\n".join(lines) + "\n" + tail)
    return folder


def append_run(folder, steps):
    """Write steps with an evaluation each, of two layers of three heads; return the tables of scores."""
    tables = []
    for step in steps:
        scores = [HeadScores(*torch.rand(len(HeadScores._fields), 2, 3)) for _ in range(2)]
        baselines = [HeadScores(*torch.rand(len(HeadScores._fields), 2, 3)) for _ in range(2)]
        tables.append({"text": score_table(scores, baselines), "repeats": score_table(baselines, scores)})
        history.append_steps(folder, [StepMetrics(step, 0.5 + step, 1e-3, 2.0)], 1234.5, step / 3)
        history.append_evaluation(
            folder, step, validation=step / 7, seconds=step / 3, sample=f"text {step}", scores=tables[-1]
        )
    return tables


def test_what_is_written_is_read(tmp_path):
    assert not history.has_history(tmp_path)
    tables = append_run(tmp_path, [0, 10, 20])
    assert history.has_history(tmp_path)
    run = read_run(tmp_path)
    assert run["steps"] == [0, 10, 20]
    for inputs in ("text", "repeats"):
        assert run[inputs].keys() == set(HeadScores._fields)
        for name, score in run[inputs].items():
            assert score["heads"] == [table[inputs][name]["heads"] for table in tables]
            assert score["null"] == [table[inputs][name]["null"] for table in tables]
    assert run["validation"] == [0.0, 10 / 7, 20 / 7]
    assert run["sample"] == ["text 0", "text 10", "text 20"]
    assert run["loss"] == {"steps": [0, 10, 20], "values": [0.5, 10.5, 20.5]}
    first = {"step": 0, "loss": 0.5, "learning_rate": 1e-3, "gradient_norm": 2.0}
    assert read_metrics(tmp_path)[0] == first | {"tokens_per_second": 1234, "seconds": 0.0}


def test_truncating_removes_what_came_after_a_checkpoint(tmp_path):
    append_run(tmp_path, [0, 10])
    lengths = history.sizes(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in (METRICS_FILE, HEADS_FILE)}
    append_run(tmp_path, [20])
    with (tmp_path / METRICS_FILE).open("a") as file:
        file.write('{"step": 21, "lo')  # a line that a killed run did not finish
    history.check(tmp_path, lengths)
    history.truncate(tmp_path, lengths)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("name", [METRICS_FILE, HEADS_FILE])
def test_a_history_that_was_cut_off_is_named(tmp_path, name):
    append_run(tmp_path, [0, 10])
    lengths = history.sizes(tmp_path)
    data = (tmp_path / name).read_bytes()
    for damaged in (data[:-1], b""):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{name} is damaged: expected at least {len(data)} bytes"):
            history.check(tmp_path, lengths)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        history.check(tmp_path, lengths)


def test_nan_is_none_and_an_incomplete_last_line_is_left_out(tmp_path):
    run = read_run(write_heads(tmp_path, [0, 10, 5], tail='{"step": 20, "te'))
    assert run["steps"] == [0, 5, 10]
    assert run["text"]["induction"]["heads"][1] == [[0.005, 0.005], [None, None]]
    assert run["validation"] == [None] * 3
    assert run["loss"] == {"steps": [], "values": []}


def test_a_long_run_is_thinned_with_its_ends_kept(tmp_path):
    run = read_run(write_heads(tmp_path, list(range(0, 3000, 10))))
    assert len(run["steps"]) == MAX_EVALUATIONS
    assert (run["steps"][0], run["steps"][-1]) == (0, 2990)
    assert run["steps"] == sorted(set(run["steps"]))


def test_the_losses_are_means_that_keep_the_mean(tmp_path):
    write_heads(tmp_path, [0])
    losses = [{"step": step, "loss": float(step % 7)} for step in range(1, 1025)]
    (tmp_path / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in losses))
    loss = read_run(tmp_path)["loss"]
    assert loss["steps"][-1] == 1024
    assert sum(loss["values"]) / MAX_LOSSES == pytest.approx(sum(line["loss"] for line in losses) / 1024)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"run: expected a folder that `regard train` wrote, with heads.jsonl"
    ):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text("")
    with pytest.raises(ValueError, match="holds no evaluation yet"):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text('{"step": 1, "text": 5}\n')
    with pytest.raises(ValueError, match="is not a history of `regard train`"):
        read_run(tmp_path)
    (tmp_path / HEADS_FILE).write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"line 1: expected JSON"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ({"../book.txt": {"bytes": 0}}, r"history: expected metrics\.jsonl and heads\.jsonl"),
        ({METRICS_FILE: 5, HEADS_FILE: 5}, r"metrics\.jsonl: expected an object, got 5"),
        ({METRICS_FILE: {"bytes": -1}, HEADS_FILE: {}}, r"metrics\.jsonl: expected a whole number .*got -1"),
        ({METRICS_FILE: {"bytes": 1 << 60}, HEADS_FILE: {}}, "is damaged: expected at least"),
    ],
)
def test_a_checkpoint_names_no_other_file_than_its_history(tmp_path, marks, says):
    """A checkpoint of someone else may say anything, and what it names is truncated later."""
    write_heads(tmp_path, [0])
    (tmp_path / METRICS_FILE).write_text("")
    with pytest.raises(ValueError, match=says):
        history.check(tmp_path, marks)


@pytest.mark.parametrize("line", ['{"step": "1"}', '{"step": 1, "loss": "low"}', "[1]"])
def test_a_line_of_another_kind_is_named(tmp_path, line):
    write_heads(tmp_path, [0])
    (tmp_path / METRICS_FILE).write_text(f"{line}\n")
    with pytest.raises(RunFileError, match=r"metrics\.jsonl"):
        read_run(tmp_path)


def trained(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4, bias=False))
    optimizers = make_optimizers(model)
    for _ in range(3):
        model(torch.randn(2, 3)).pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizers


def make_optimizers(model):
    by_adamw = [*model[0].parameters(), *model[1].parameters()]
    return [adamw(by_adamw, weight_decay=0.1, betas=(0.9, 0.99)), Muon(list(model[2].parameters()))]


def load(folder):
    checkpoint = checkpoints.load(folder)
    return checkpoint


def test_a_round_trip_goes_on_as_if_nothing_had_happened(tmp_path):
    model, optimizers = trained(0)
    checkpoints.save(tmp_path, model, optimizers, {"step": 3, "best": 1.25})
    again, its = trained(1)
    checkpoint = load(tmp_path)
    checkpoints.restore(checkpoint.tensors, again, its)
    assert checkpoint.state == {"step": 3, "best": 1.25}
    x = torch.randn(2, 3)
    for one, moves in ((model, optimizers), (again, its)):
        one(x).sum().backward()
        for optimizer in moves:
            optimizer.step()
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path, keep):
    checkpoints.save(tmp_path, *trained(0), {"step": 3})
    path = tmp_path / checkpoints.FILE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a complete safetensors file"):
        checkpoints.load(tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path):
    checkpoints.save(tmp_path, *trained(0), {})
    tensors = load(tmp_path).tensors
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(4, 4, bias=False))
    with pytest.raises(ValueError, match=r"expected model\.0\.bias \(5,\), got \(4,\)"):
        checkpoints.restore(tensors, model, make_optimizers(model))


def test_a_folder_that_is_gone_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match=r"cannot write a checkpoint to .*gone"):
        checkpoints.save(tmp_path / "gone", *trained(0), {})


@pytest.mark.parametrize("header_bytes", [(1 << 40) - 8, None])
def test_a_sparse_file_of_a_terabyte_is_refused_at_once(tmp_path, header_bytes):
    header = b'{"__metadata__":{"sha256":"' + b"0" * 64 + b'"}}'
    path = tmp_path / checkpoints.FILE
    path.write_bytes((header_bytes or len(header)).to_bytes(8, "little") + header)
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match="is not a complete safetensors file"):
        checkpoints.load(tmp_path)


TEXT = "".join(chr(97 + i * i % 26) + (" " if i % 5 == 0 else "") for i in range(1000))


def test_targets_are_the_next_tokens():
    inputs, targets = prepare(TEXT, 8).training_batch(0, 0, 6, slice(None))
    assert inputs.shape == targets.shape == (6, 8)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_the_order_depends_on_seed_and_step_alone():
    one, two = prepare(TEXT, 8), prepare(TEXT, 8)
    two.training_batch(3, 7, 4, slice(None))  # what was drawn before does not matter
    assert torch.equal(
        one.training_batch(3, 5, 4, slice(None))[0], two.training_batch(3, 5, 4, slice(None))[0]
    )
    for seed, step in ((3, 6), (4, 5)):
        assert not torch.equal(
            one.training_batch(3, 5, 4, slice(None))[0], one.training_batch(seed, step, 4, slice(None))[0]
        )


def test_validation_reads_every_token_once():
    corpus = prepare(TEXT, 8)
    seen = torch.cat([targets for _, targets in corpus.validation_batches(10**9, 5, slice(None))]).flatten()
    assert torch.equal(seen, corpus.validation[1 : 1 + len(seen)].long())
    assert len(corpus.validation) - 1 - len(seen) < 8


def test_validation_of_fewer_tokens_is_spread_out():
    corpus = prepare(TEXT, 8)
    corpus.validation[:] = torch.arange(len(corpus.validation)).clamp(max=corpus.vocab_size - 1)
    first = torch.cat([inputs for inputs, _ in corpus.validation_batches(3 * 8, 5, slice(None))])
    assert first.shape == (3, 8)
    parts = [inputs for i in range(2) for inputs, _ in corpus.validation_batches(3 * 8, 1, slice(i, None, 2))]
    assert torch.equal(torch.cat([parts[0], parts[2], parts[1]]), first)


def test_an_empty_text():
    with pytest.raises(ValueError, match="corpus: expected text, got an empty string"):
        prepare("", 8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "expected UTF-8 text, .* is not .*start byte.*: is it binary"),
        (b"text and \0 zero", "contains zero bytes"),
    ],
)
def test_bad_files(tmp_path, data, message):
    path = tmp_path / "book.txt"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read(path)


def test_a_mark_at_the_start_is_no_text(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes("\ufefftext".encode())
    assert read(path) == "text"


def test_the_library_is_read_in_the_order_of_its_files(tmp_path, monkeypatch):
    for name in ("zoo.py", "ant.py", "tests/ant.py", "cat/fish.py", "cat/dog.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'"""Of {name}."""')
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert python_documentation().endswith(
        "\n\nOf ant.py.\n\nOf cat/dog.py.\n\nOf cat/fish.py.\n\nOf zoo.py.\n"
    )
