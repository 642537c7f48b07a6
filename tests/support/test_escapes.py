"""Text that others wrote: control characters are shown, not sent to the terminal, by every command."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.checker import Check, CheckError, Diagnosis, Report
from regard.cli import app, check, main
from regard.cli.heads import _title
from regard.heads import HeadTable
from regard.heads.tables.table import HeadRow, Score
from regard.heads.tables.table_text import summary_text
from regard.support.characters import escape

HOSTILE = (
    "\x1b[31mred\x1b]52;c;bWluZQ==\x07\x1b]8;;http://example.org\x1b\\\x9b2J\r\x08\x7f\x85"
    "\u202eevil\u2066\u2028\ud800\U000e0041[/red][link=x]"
)
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\U000e0000-\U000e007f]"
)


def test_nothing_unsafe_is_left_and_json_stays_json() -> None:
    assert escape(HOSTILE).startswith("\\u001b[31mred\\u001b]52;")
    shown = escape(json.dumps(HOSTILE, ensure_ascii=False))
    assert not UNSAFE.search(shown)
    assert json.loads(shown) == HOSTILE
    assert shown.encode().decode() == shown


@pytest.mark.parametrize(
    "text", ["", "a\tb\nc", "naïve – “weights” √D", "日本語", "می‌خواهم", "👩‍💻 ❤️", "C:\\x1b"]
)
def test_what_is_harmless_stays(text: str) -> None:
    assert escape(text) == text


def test_a_report_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = Diagnosis("no-scale", HOSTILE, HOSTILE, HOSTILE)
    checks = [
        Check(f"{HOSTILE}{status}", status, HOSTILE) for status in ("passed", "failed", "skipped", "warning")
    ]
    report = Report(HOSTILE, [HOSTILE], checks, [diagnosis], example=f"{HOSTILE}\n{HOSTILE}")
    check.print_report(report)
    for shown in (str(report), repr(report), capsys.readouterr().out):
        assert not UNSAFE.search(shown)
        assert "\\u001b[31mred" in shown
    assert json.loads(escape(report.to_json())) == json.loads(report.to_json())
    assert not UNSAFE.search(str(CheckError(HOSTILE)))


def test_names_and_messages_of_checked_code_are_shown(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def attention(q, k, v):\n"
        f"    raise type({HOSTILE[:20]!r}, (KeyboardInterrupt,), {{}})({HOSTILE!r})\n"
        f"attention.__name__ = {HOSTILE!r}\n"
    )
    said = CliRunner().invoke(app, ["check", f"{tmp_path}/mine.py:attention", "--json"])
    assert said.exit_code == 2
    assert not UNSAFE.search(said.stdout)
    assert "could not be checked: \\u001b[31mred" in json.loads(said.stdout)["error"]


def test_an_error_shows_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = HOSTILE.replace("\ud800", "")
    page = ["--out", str(tmp_path / "page.html")]
    for words in (["generate", "x", "--model", name], ["inspect", name, *page], ["heads", "--model", name]):
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert not UNSAFE.search(capsys.readouterr().err)


def test_a_table_of_heads_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    scores = {"sink": Score(*[0.5] * len(Score._fields))}
    row = HeadRow(0, 0, 0, ("sink",), 0, scores, stack=HOSTILE)
    table = HeadTable([row], model=HOSTILE)
    screen = Console(width=400)
    screen.print(_title(table))
    screen.print(summary_text(table, label="sink", key_texts={0: HOSTILE}), markup=False)
    screen.print(table)
    print(table)
    said = capsys.readouterr().out
    assert not UNSAFE.search(said)
    assert said.count("[/red][link=x]") >= 3  # as text, not as markup; the narrow table cuts it
