"""The command `regard`: help, version, the stages, errors in one line, and signals."""

import inspect
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import regard
from regard.cli import app, data, main
from regard.cli.parts import welcome
from regard.cli.parts.command_table import TABLE
from regard.cli.parts.signals import unwind_on_signals
from regard.support.files import atomic_write

run = CliRunner().invoke
NAMES = ("cpu", "shakespeare")  # a sentence may begin with a value


def test_version():
    result = run(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"regard {regard.__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["stages", "--help"]])
def test_help_has_examples(arguments):
    result = run(app, arguments)
    assert result.exit_code == 0
    assert "Examples:\n" in result.output
    assert "regard stages --save stages.png" in result.output


def test_without_a_command_it_greets_with_three_ways():
    result = run(app, [], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines() if line[:1].strip()] == [
        "Regard:",
        *welcome.WAYS,
        "Every",
    ]
    assert len(result.output.splitlines()) <= 24
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\x1b" not in result.output  # this is no terminal


def test_every_command_has_examples_that_name_it():
    assert app.registered_commands
    for command in app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"  regard {name}" in run(app, [name, "--help"]).output


def test_the_function_of_every_command_takes_what_the_table_says():
    for name, about in TABLE.items():
        if "options" not in about:  # a group, and what commands share
            continue
        place, *rest = name.replace("-", "_").split()
        function = getattr(import_module(f"regard.cli.{place}"), (rest or [place])[0])
        names = [*about["options"], *([about["extra_words"]] if "extra_words" in about else [])]
        inspect.signature(function).bind(**dict.fromkeys(names))
        assert all(about["options"][option] or option in TABLE["shared"] for option in about["options"])


def test_help_fits_80_columns():
    group = get_command(app)
    for name in ("", *group.commands):
        lines = run(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).output.splitlines()
        assert [line for line in lines if len(line) > 80] == []


def test_every_option_is_described_in_a_sentence():
    group = get_command(app)
    for name, command in group.commands.items():
        for parameter in command.params:
            said = parameter.help or ""
            assert said.endswith("."), f"{name} {parameter.name}: {said}"
            assert said[0].isupper() or said[0].isdigit() or said.startswith(NAMES), f"{name}: {said}"


def test_stages_walks_and_saves(tmp_path):
    path = tmp_path / "[bold]stages.svg"  # a name, and no markup
    result = run(app, ["stages", "--save", str(path)])
    assert result.exit_code == 0
    assert path.name in result.output
    assert "6. Several heads" in result.output
    assert "agrees with torch" in result.output
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("save", "message"),
    [
        ("a.gif", "regard: save: expected a file that ends with .png, .svg or .pdf, got a.gif"),
        ("no/such/a.png", "regard: save: expected a file in a folder that exists, got no/such/a.png"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(save, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["regard", "stages", "--save", save])
    with pytest.raises(SystemExit, match="2"):
        main()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_the_real_command(tmp_path):
    """As it is installed: the script beside this Python, in its own process."""
    script = Path(sys.executable).parent / "regard"
    done = subprocess.run([script, "stages", "--save", "a.gif"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "regard: save: expected a file that ends with .png, .svg or .pdf, got a.gif\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_being_written_is_removed(number, tmp_path, monkeypatch):
    def fetch(name):
        with atomic_write(tmp_path / "page.html") as file:
            file.write_text("half of a page")
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)  # `timeout` sends it twice

    monkeypatch.setattr(data, "fetch", fetch)
    monkeypatch.setattr(sys, "argv", ["regard", "data", "smollm2"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_later_signal_ends_it_at_once(monkeypatch):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    with unwind_on_signals():
        with pytest.raises(SystemExit, match="143"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == []
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert raised == [signal.SIGTERM]


def test_an_ignored_hangup_stays_ignored():
    """`nohup` ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwind_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.SIG_IGN)
    finally:
        signal.signal(signal.SIGHUP, before)
