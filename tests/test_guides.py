"""The guides for those who extend Regard: the example of each works. Sessions run in `test_docs`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import regard
from regard.checker.catalogue import CATALOGUE, read_themes
from regard.checker.examples import NAMES, loaded_program, mended_program, plant_mistake
from regard.checker.property_tests import code_of_test
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
    known = dict(CATALOGUE)
    monkeypatch.setattr(CATALOGUE, "_read", lambda: known | {mistake.name: mistake})
    with loaded_program(plant_mistake(mistake, "head"), NAMES["head"]) as head:
        report = regard.check(head)
    assert [diagnosis.name for diagnosis in report.diagnoses] == [mistake.name]
