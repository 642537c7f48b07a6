"""What the files around the code say of it agrees with the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import regard
from regard.gpt.files.loader import INCLUDED_MODEL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == regard.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_version_is_one_line() -> None:
    text = (Path(regard.__file__).parent / "version.py").read_text(encoding="utf-8")
    assert text == f'__version__ = "{regard.__version__}"\n'


def test_ci_runs_every_python_that_is_supported() -> None:
    ci = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    tested = ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert tested == named
    assert PROJECT["requires-python"] == ">=3.11,<3.15"


def test_the_licence_of_the_model_in_the_box_is_said_everywhere() -> None:
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
    for path in (INCLUDED_MODEL / "README.md", ROOT / "NOTICE", ROOT / "README.md"):
        assert "CC BY-SA 4.0" in path.read_text(encoding="utf-8"), path


def test_the_readme_has_the_install_line_on_its_first_screen() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:30]
    assert any('pip install "regard[app]"' in line for line in first)
