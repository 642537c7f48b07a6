"""A monitor in training: it changes no bit, hears the steps that are due, warns, and is shown on the page."""

import json
import warnings

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.monitor import MonitorHistory, Thresholds
from regard.monitor.alarms import Alarms
from regard.monitor.history import MEASURES, HeardLayer, HeardLayers, StepRecord
from regard.monitor.page_curves import read_curves
from regard.support.files import RunFileError
from regard.support.json_lines import append_lines
from tests import ranks
from tests.auditor.small_models import GROUPED, PlainGPT, tokens
from tests.sampling import share

STEPS = 7


def llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**GROUPED | changes)).train()


def train(model, monitor, steps=STEPS, batches=1):
    """Train a model on drawn batches; its losses, and its weights at the end."""
    original = getattr(model, "_orig_mod", model)
    optimizer = torch.optim.SGD(original.parameters(), lr=0.1)
    results = []
    for step in range(steps):
        for batch in range(batches):
            ids = tokens(2, 12, seed=10 * step + batch)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            results.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    return [*results, *(x.detach().clone() for x in original.parameters())]


def same(ours, theirs):
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("way", ["plain", "dropout", "checkpointing", "mixed precision", "accumulation"])
def test_losses_and_gradients_have_the_same_bits(way):
    found = []
    for listens in (False, True):
        model = llama(attention_dropout=0.2 if way == "dropout" else 0.0)
        if way == "checkpointing":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "mixed precision"):
            batches = 2 if way == "accumulation" else 1
            if not listens:
                found.append(train(model, None, batches=batches))
                continue
            with regard.Monitor(model, every=3, rows=5, quiet=True) as monitor:
                found.append(train(model, monitor, batches=batches))
    assert same(*found)
    assert [record.step for record in monitor.history.records] == [0, 3, 6]
    assert all(len(record.layers) == 2 for record in monitor.history.records)
    certified = {layer.certified for record in monitor.history.records for layer in record.layers.values()}
    assert certified == {way != "dropout"}


@pytest.mark.parametrize("way", share(["compile(model)", "model.compile()"], 2))
def test_a_compiled_model_is_heard_and_runs_compiled_on_other_steps(way):
    graphs = 0

    def backend(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    model = llama()
    if way == "model.compile()":
        model.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    with regard.Monitor(model, every=4, rows=5, quiet=True) as monitor:
        train(model, monitor, steps=6)
    assert [record.step for record in monitor.history.records] == [0, 4]
    assert all(layer.certified for record in monitor.history.records for layer in record.layers.values())
    assert graphs


def test_evaluation_between_steps_is_not_the_training():
    model = llama()
    with regard.Monitor(model, every=1, quiet=True) as monitor:
        model.eval()
        model(input_ids=tokens(1, 5))
        model.train()
        with torch.no_grad():
            model(input_ids=tokens(1, 6))
        model(input_ids=tokens(1, 7))
        model(input_ids=tokens(1, 8))  # a second batch of the same step
        monitor.step()
    model(input_ids=tokens(1, 9))
    assert [record.tokens for record in monitor.history.records] == [(1, 7)]


def test_layers_take_turns():
    model = llama(num_hidden_layers=5)
    with regard.Monitor(model, every=1, layers=2, quiet=True) as monitor:
        train(model, monitor, steps=5)
    heard = [[int(key) for key in record.layers] for record in monitor.history.records]
    assert heard == [[0, 1, 2, 3, 4], [0, 1], [2, 3], [0, 4], [1, 2]]
    with regard.Monitor(model, every=1, layers=[3], quiet=True) as monitor:
        train(model, monitor, steps=1)
    assert monitor.history.layers == ["3"]
    (record,) = monitor.history.records
    assert record.layers[3] is record.layers["3"]
    with pytest.raises(KeyError, match="layer 0 was not read at this step, which read 3"):
        record.layers[0]


def test_attention_in_ones_own_code_is_heard():
    model = PlainGPT().train()
    with regard.Monitor(model, quiet=True) as monitor:
        model(tokens(2, 12), document_ids=torch.tensor([[0] * 5 + [1] * 7] * 2))
    (record,) = monitor.history.records
    assert len(record.layers) == 2
    assert all(x == 0.0 for layer in record.layers.values() for x in layer.values["across"])


def test_documents_that_leak_raise_an_alarm():
    model = PlainGPT("documents").train()
    sentences = []
    with regard.Monitor(model, every=1, quiet=True, alarm=sentences.append) as monitor:
        for _ in range(3):
            model(tokens(2, 12), document_ids=torch.tensor([[0] * 5 + [1] * 7] * 2))
            monitor.step()
    assert len(sentences) == 2, "once for each layer"
    assert all("of its attention to other documents" in sentence for sentence in sentences)
    assert monitor.history.alarms == sentences
    with (
        pytest.raises(RuntimeError, match="other documents"),
        regard.Monitor(model, quiet=True, alarm="raise"),
    ):
        model(tokens(2, 12), document_ids=torch.tensor([[0] * 5 + [1] * 7] * 2))


def record(step, **values):
    numbers = {name: [1.0, 1.0] for name in MEASURES}
    numbers |= {"across": [None, None], "padding": [0.0, 0.0]}
    certified = values.pop("certified", True)
    layer = HeardLayer("a", certified, "why", numbers | values)
    return StepRecord(step, (0, 3, 4), (1, 4), HeardLayers({"0": layer}))


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        ({"entropy": [0.004, 1.0]}, torch.float32, "entropy of head 0 fell below 1%"),
        ({"max_score": [3.0, 60.0]}, torch.float32, "head 1 has a score of 60"),
        ({"max_score": [3.0, 49.0]}, torch.float32, None),
        ({"max_score": [3.0, 70.0]}, torch.bfloat16, "bfloat16 rounds by 0.55 nats"),
        ({"certified": False}, torch.float32, "no longer certified: why"),
        ({"padding": [0.0, 0.2]}, torch.float32, "head 1 gives 0.2 of its attention to padding"),
        ({}, torch.float32, None),
    ],
)
def test_alarms_compare_with_the_first_reading_and_come_once(values, dtype, words):
    alarms = Alarms(Thresholds())
    assert alarms.hear(record(0), {"0": dtype}) == []
    found = alarms.hear(record(9, **values), {"0": dtype})
    if words is None:
        assert found == []
    else:
        assert len(found) == 1 + (dtype == torch.bfloat16)  # which has grown, too
        assert found[0].startswith("step 9, layer 0: ")
        assert words in found[0]
    assert alarms.hear(record(10, **values), {"0": dtype}) == []


def test_the_history_is_a_table_and_its_file_survives_a_kill(tmp_path):
    file, model = tmp_path / "attention.jsonl", llama()
    with regard.Monitor(model, every=2, rows=4, file=file, quiet=True) as monitor:
        train(model, monitor, steps=3)
    history = monitor.history
    assert len(history) == 2 * 2 * 4
    assert [step for step, _ in history.series("entropy", 1, 3)] == [0, 2]
    assert "2 readings, step 0 to 2" in str(history)
    read = MonitorHistory.read(file)
    assert read.records == history.records
    with file.open("ab") as opened:
        opened.write(json.dumps(read.records[0].line()).encode()[:-40])  # killed in the middle of a write
    assert MonitorHistory.read(file).records == history.records
    with regard.Monitor(model, every=2, rows=4, file=file, quiet=True) as second:
        train(model, second, steps=1)
    both = MonitorHistory.read(file)
    assert both.records == history.records + second.history.records
    assert both.runs == [monitor.run, second.run]
    assert "of 2 runs" in str(both)
    assert MonitorHistory.read(file, run=second.run).records == second.history.records
    with pytest.raises(ValueError, match="run: expected one of"):
        MonitorHistory.read(file, run="third")
    file.write_text(json.dumps({"format": "other"}) + "\n")
    with pytest.raises(ValueError, match=r"format: expected 'regard\.monitor 1'"):
        MonitorHistory.read(file)
    history.to_csv(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0] == ",".join(["run", "step", "layer", "head", "certified", *MEASURES])
    assert len(lines) == 1 + len(history)
    for arguments, words in (
        (("speed", 0, 0), "measure: expected one of max_score"),
        (("entropy", 7, 0), "layer: expected one of 0, 1, got 7"),
        (("entropy", 0, 9), "head: expected a head of layer 0"),
    ):
        with pytest.raises(ValueError, match=words):
            history.series(*arguments)


def test_what_cannot_be_heard_is_said_once_and_training_goes_on():
    class Skipping(PlainGPT):
        """Its blocks do not run."""

        def forward(self, idx, *rest, **more):
            return self.head(self.tokens(idx))

    model = Skipping().train()
    with (
        regard.Monitor(model, every=1, quiet=True) as monitor,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(3):
            model(tokens(1, 4)).sum().backward()
            monitor.step()
    assert len([x for x in caught if "could not be read" in str(x.message)]) == 1
    assert monitor.problem
    assert not monitor.history.records


def test_a_loop_that_forgets_the_block_or_the_steps_is_told():
    model = llama()
    monitor = regard.Monitor(model, every=1, quiet=True)
    assert "with monitor:" in str(monitor.history)
    with pytest.raises(RuntimeError, match="this monitor is not open"):
        train(model, monitor, steps=1)
    with pytest.warns(UserWarning, match=r"3 forward passes counted as one step"), monitor:
        train(model, None, steps=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every: expected a whole number of at least 1, got 0"),
        ({"rows": 2.5}, "rows: expected a whole number"),
        ({"layers": 0}, "layers: expected a whole number of at least 1"),
        ({"layers": [0, 7]}, "layers: expected numbers below 2, the layers of the model, got 7"),
        ({"loggers": [3]}, "loggers: expected objects with add_scalar or log, got one of int"),
        ({"alarm": "shout"}, 'alarm: expected "warn", "raise" or a function'),
    ],
)
def test_bad_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        regard.Monitor(llama(), **options)


def test_readings_of_data_parallel_ranks_are_joined(tmp_path):
    with ranks.started("tests.monitor.ranks_program", 2, tmp_path) as processes:
        errors = [process.communicate(timeout=ranks.LIMIT)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors
    first, second = (MonitorHistory.read(tmp_path / f"rank-{rank}.jsonl") for rank in range(2))
    alone = MonitorHistory.read(tmp_path / "alone.jsonl")
    assert len(first.records) == 2
    assert not second.records, "one process writes"
    for joined, whole in zip(first.records, alone.records, strict=True):
        for key, layer in joined.layers.items():
            for measure, numbers in layer.values.items():
                expected = whole.layers[key].values[measure]
                if numbers[0] is None:
                    assert numbers == expected
                else:
                    assert numbers == pytest.approx(expected, rel=1e-4, abs=1e-6), measure


def test_a_model_without_attention_is_refused_at_once():
    with pytest.raises(ValueError, match="model: expected one with attention that capture recognises"):
        regard.Monitor(nn.Sequential(nn.Linear(4, 4)))


def test_a_run_that_is_never_heard_is_told_why():
    model, ids = llama().eval(), tokens(1, 8)
    with regard.Monitor(model, every=2, quiet=True) as monitor:
        model(ids)
        with pytest.warns(UserWarning, match="evaluation mode"):
            monitor.step()
        for _ in range(3):  # it is said once
            model(ids)
            monitor.step()
        model.train()
        with pytest.warns(UserWarning, match="no forward pass of this model"):
            monitor.step()
    assert not monitor.history.records


def test_numbers_that_are_not_finite_raise_an_alarm():
    model, ids = llama(attention_dropout=0.1).train(), tokens(1, 8)
    with regard.Monitor(model, every=1, quiet=True, alarm=[].append) as monitor:
        model(ids)
        monitor.step()
        with torch.no_grad():
            model.model.layers[1].self_attn.q_proj.weight.fill_(torch.nan)
        model(ids)
        monitor.step()
    assert [alarm for alarm in monitor.history.alarms if "NaN or infinite" in alarm]


def heard(step, key, scores, run="second"):
    layer = HeardLayer(f"layers.{key}", True, "", {"max_score": scores, "across": [None] * len(scores)})
    return StepRecord(step, (0, 9, 10), (1, 10), HeardLayers({key: layer}), run=run)


def test_layers_that_take_turns_have_a_place_at_every_step(tmp_path):
    path = tmp_path / "attention.jsonl"
    for record in (
        heard(5, "0", [9.0, 9.0], run="first"),
        heard(0, "0", [1.0, 2.0]),
        heard(10, "1", [3.0, None]),
    ):
        append_lines(path, [record.line()])
    found = read_curves(path)
    assert (found["name"], found["steps"]) == ("attention.jsonl", [0, 10])
    table = found["batch"]["largest_score"]
    assert table["heads"] == [[[1.0, 2.0], [None, None]], [[None, None], [3.0, None]]]
    assert table["null"] == [None, None]
    assert list(found["batch"]) == ["largest_score"]  # nothing is known of documents


def test_a_long_history_is_thinned_and_an_empty_one_refused(tmp_path):
    path = tmp_path / "long.jsonl"
    for step in range(200):
        append_lines(path, [heard(step, "0", [float(step)]).line()])
    steps = read_curves(path)["steps"]
    assert (len(steps), steps[0], steps[-1]) == (64, 0, 199)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(RunFileError, match="holds no reading yet"):
        read_curves(tmp_path / "empty.jsonl")
