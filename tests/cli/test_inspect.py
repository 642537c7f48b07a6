"""`regard inspect`: a page in a file or served, of a model or of captures, and what it says of mistakes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app, main
from regard.cli.parts.model import Model
from regard.gpt import GPT, Config
from regard.gpt.tokens import character_tokenizer
from regard.show.server.limits import StoppedError
from tests.captures import captured
from tests.patience import HANGING
from tests.sampling import share
from tests.show.server.client import ask

TEXT = "the cat sat on the mat, the cat sat on the hat"
run = CliRunner().invoke


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model on disk."""
    torch.manual_seed(0)
    tokenizer = character_tokenizer(TEXT + "\n")
    model = GPT(
        Config(
            vocab_size=tokenizer.get_vocab_size(), context_length=64, num_layers=2, num_heads=2, d_model=16
        )
    )
    model.tokenizer = tokenizer
    path = tmp_path_factory.mktemp("models") / "tiny"
    model.save(path)
    return path


@pytest.fixture
def fails(monkeypatch, capsys):
    """What a wrong command says: one line on stderr, and exit code 2."""

    def run_wrongly(*arguments):
        monkeypatch.setattr(sys, "argv", ["regard", "inspect", *map(str, arguments)])
        with ThreadPoolExecutor(1) as thread:  # a browser of another test may have an event loop in this one
            assert str(thread.submit(main).exception()) == "2"
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return run_wrongly


def test_a_page_of_texts_and_files_is_written_and_the_command_ends(folder, tmp_path):
    (tmp_path / "mat.txt").write_text("the mat", encoding="utf-8")
    out = tmp_path / "page.html"
    options = ["--text", TEXT, "--text", "the hat", "--file", str(tmp_path / "mat.txt"), "--out", str(out)]
    result = run(app, ["inspect", "--model", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert out.read_text("utf-8").startswith("<!doctype html>")
    assert f"Open {out} in any browser" in result.output
    steps = ["Starting …", "Opening", "Reading text 1 of 3 …", "Writing the page …", "MB, made in"]
    assert sorted(steps, key=result.output.index) == steps
    assert "queries run down, keys run across" in result.output
    assert "█" in result.output  # the first token looks at itself alone


def test_a_saved_capture_is_shown(tmp_path):
    captured(12).save(tmp_path / "capture")
    out = tmp_path / "page.html"
    result = run(app, ["inspect", str(tmp_path / "capture"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 10_000


@contextmanager
def served(*arguments):
    """The real command in a process of its own, and the address that it prints."""
    script = Path(sys.executable).parent / "regard"
    process = subprocess.Popen(
        [script, "inspect", "--no-open", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also if these tests ignore it
    )
    try:
        yield process.stdout.readline().strip(), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_it_serves_reads_and_writes_until_ctrl_c(folder):
    alike = [f"{TEXT}, the cat", f"{TEXT}, the mat"]  # texts that begin alike are all shown
    with served("--model", folder, "--text", alike[0], "--text", alike[1]) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        meta = ask(address, "/api/meta").lines[0]
        assert meta["model"] == "tiny"
        assert meta["can"] == {key: True for key in ("capture", "generate", "cut", "values", "retained")}
        assert ["".join(text["tokens"]) for text in meta["texts"]] == alike
        lines = ask(address, "/api/capture", body={"text": "the hat sat"}).lines
        assert lines[0] == {"progress": {"doing": "reading", "done": 0, "of": 2}}
        assert lines[-1] == {"text": 2}
        long = ask(address, "/api/capture", body={"text": "the cat " * 20}).lines
        assert long[-1] == {"too_long": {"tokens": 160, "most": 64}}
        shortened = {"text": "the cat " * 20, "first": 64}
        assert ask(address, "/api/capture", body=shortened).lines[-1] == {"text": 3}
        assert len(ask(address, "/api/meta").lines[0]["texts"][3]["tokens"]) == 64
        start, *steps, end = ask(address, "/api/generate", body={"text": "the", "tokens": 3}).lines
        assert "".join(start["start"]["tokens"]) == "the"
        assert len(steps) == 3
        assert steps[1]["step"]["computed"] == {"cached": 1, "recomputed": 4}
        assert end["end"]["text"] == "".join(step["step"]["token"] for step in steps)
        ids = [step["step"]["token_id"] for step in steps]
        assert ask(address, "/api/capture", body={"text": "the", "continuation": ids}).lines[-1] == {
            "text": 4
        }
        generated = ask(address, "/api/meta").lines[0]["texts"][4]
        assert "".join(generated["tokens"]) == "the" + end["end"]["text"]
        assert (generated["boundary"], generated["layers"][0]["evidence"]["certified"]) == (3, True)
        refusal = ask(address, "/api/capture", body={"text": "the", "continuation": [10_000]}).lines[-1][
            "error"
        ]
        assert refusal.startswith("continuation: expected ids from 0 to")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=HANGING)
        assert (process.returncode, stderr) == (0, "")


@pytest.mark.at_length("test_it_serves_reads_and_writes_until_ctrl_c")
@pytest.mark.parametrize("number", share([signal.SIGTERM, signal.SIGHUP], 2))
def test_a_signal_ends_it_and_leaves_nothing(number, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with served("--model", folder, "--text", TEXT) as (address, process):
        assert ask(address, "/api/meta").lines[0]["model"] == "tiny"
        process.send_signal(number)
        process.send_signal(number)  # `timeout` sends it twice
        _, stderr = process.communicate(timeout=HANGING)
    assert (process.returncode, stderr) == (128 + number, "")
    assert [path for path in tmp_path.iterdir() if path.name.startswith("regard")] == []


def test_reading_stops_when_nobody_waits(folder):
    told = []

    def tell(doing, done, of):
        told.append(done)
        if done == 1:
            raise StoppedError

    opened = Model.open(str(folder))
    with pytest.raises(StoppedError):
        opened.read("the cat", tell)
    assert told == [0, 1]
    assert len(opened.read("the cat").layers) == 2  # and the model is as it was


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", " "], "text: expected some text to read"),
        (["--text", "the cat " * 20], "text: expected at most 64 tokens"),
        (["--file", "no-such-file.txt"], "which does not exist"),
        (["--out", "no/such/page.html"], "--out: expected a file in a folder that exists"),
        (["--run", "no-such-run"], "run: expected a folder that `regard train` wrote"),
        (["--port", "99999", "--no-open"], "port: expected a number from 0"),
        (["--host", "256.256.256.256", "--no-open"], "cannot be served"),
        (["capture"], "not both"),
    ],
)
def test_what_a_user_gets_wrong_is_said_in_a_line(arguments, message, folder, fails):
    text = [] if {"--text", "--file"} & {*arguments} else ["--text", TEXT]
    assert message in fails("--model", folder, *text, *arguments)


def test_what_is_no_capture_is_said_in_a_line(tmp_path, fails):
    x = torch.eye(3)
    regard.attention_map(x, x).save(tmp_path / "map.safetensors")
    said = fails(tmp_path / "map.safetensors")
    assert "expected a capture" in said
