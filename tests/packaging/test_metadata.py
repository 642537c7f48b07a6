"""What the files around the code say of it agrees with the code."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import regard
from regard.gpt.files.loader import INCLUDED_MODEL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == regard.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_licence_of_the_model_in_the_box_is_said_everywhere() -> None:
    assert PROJECT["license"] == "Apache-2.0 AND CC-BY-4.0 AND CC-BY-SA-4.0"
    for path in (INCLUDED_MODEL / "README.md", ROOT / "NOTICE", ROOT / "README.md"):
        assert "CC BY-SA 4.0" in path.read_text(encoding="utf-8"), path


def workflow(name: str) -> tuple[str, dict[Any, Any]]:
    """The text of a workflow, and what it says."""
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    return text, yaml.safe_load(text)


def test_a_release_needs_no_password_and_is_of_this_version() -> None:
    text, release = workflow("release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    assert release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert publish["steps"][-1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}
    assert "secrets." not in text
    (check,) = (step["run"] for step in release["jobs"]["build"]["steps"] if "GITHUB_REF_NAME" in str(step))
    for tag, code in ((f"v{regard.__version__}", 0), ("v9.9.9", 1)):
        environment = {**os.environ, "GITHUB_REF_NAME": tag}
        assert (
            subprocess.run(["bash", "-ec", check], cwd=ROOT, env=environment, check=False).returncode == code
        )


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_workflows_name_what_is_there(name: str) -> None:
    text, jobs = workflow(name)
    steps = [step for job in jobs["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert all(job["timeout-minutes"] for job in jobs["jobs"].values())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    run = "\n".join(step.get("run", "") for step in steps)
    assert set(re.findall(r"\bmake (?:\w+=\S+ )?([\w-]+)", run)) <= targets
    assert [path for path in re.findall(r"\btests/[\w/.]+", run) if not (ROOT / path).exists()] == []
    assert set(re.findall(r"[\w-]+\.(?:toml|txt)", text)) - {"versions.txt"} <= {
        x.name for x in ROOT.iterdir()
    }
