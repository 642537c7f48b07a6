"""The guides for those who extend Regard: the example of each works. Sessions run in `test_docs`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import typer.main

import regard
from regard.checker.catalogue import CATALOGUE, read_themes
from regard.checker.examples import NAMES, code_of_test, loaded_program, mended_program, plant_mistake
from regard.cli import app
from scripts import reference
from tests.checker.test_property_tests import passes

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to"


def test_the_mistake_of_the_guide_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (HOW_TO / "add-a-mistake.md").read_text(encoding="utf-8")
    (path,) = re.findall(r"`src/regard/checker/(mistakes/[\w-]+\.toml)`", guide)
    (text,) = re.findall(r"```toml\n(.*?)```", guide, flags=re.DOTALL)
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    (tmp_path / "themes.toml").write_text(f'roles = ["{file.stem}"]\n', encoding="utf-8")
    (mistake,) = read_themes(tmp_path)["roles"]
    assert mistake.name not in CATALOGUE
    for kind in mistake.plants:
        code = code_of_test(mistake, kind)
        assert passes(code, mended_program(mistake, kind))
        assert not passes(code, plant_mistake(mistake, kind))
    monkeypatch.setitem(CATALOGUE, mistake.name, mistake)
    with loaded_program(plant_mistake(mistake, "head"), NAMES["head"]) as head:
        report = regard.check(head)
    assert [diagnosis.name for diagnosis in report.diagnoses] == [mistake.name]


def test_the_table_of_what_works_has_the_numbers_of_the_measurements() -> None:
    docs = HOW_TO.parent
    table = (docs / "compatibility.md").read_text(encoding="utf-8")
    survey = (docs / "transformers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (equal and certified|partly|refused) \| (\d+) ", survey, flags=re.MULTILINE)
    counts = dict(rows)
    assert f"{counts['equal and certified']} of Transformers' model types equal and certified" in table
    assert f"certified, {counts['partly']} partly" in table
    assert f"{counts['refused']} types" in table
    (transformers,) = re.findall(r"with Transformers ([\d.]+)\.", survey)
    assert f"| Transformers | {transformers}:" in table
    constraints = (docs.parent / "constraints.txt").read_text(encoding="utf-8")
    (torch,) = re.findall(r"^torch==([\d.]+)$", constraints, flags=re.MULTILINE)
    assert f"| PyTorch | {torch}," in table


@pytest.mark.parametrize("name", ["docs/which-call.md", "AGENTS.md"])
def test_the_calls_and_commands_of_a_page_are_there(name: str) -> None:
    text = (HOW_TO.parents[1] / name).read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    calls = set(re.findall(r"\b(regard(?:\.\w+)+)", code))
    assert len(calls) > 5
    for call in calls - {"regard.gpt"}:
        reference.resolve(call)
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"\bregard ([a-z-]+)", code)) <= set(commands)
    attributes = re.findall(r"self\.(\w+)", inspect.getsource(regard.Capture))
    assert set(re.findall(r"\bseen\.(\w+)", code)) <= {*dir(regard.Capture), *attributes}
