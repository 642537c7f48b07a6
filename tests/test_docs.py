"""What the documents say is run: sessions in the Markdown files, docstrings, and the lists of names."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONS = doctest.ELLIPSIS
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(regard.__path__, "regard.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_sessions_in_the_documents_run(path: Path) -> None:
    result = doctest.testfile(str(path), module_relative=False, optionflags=OPTIONS, encoding="utf-8")
    assert result.failed == 0


def test_the_readme_and_the_reference_have_sessions() -> None:
    parser = doctest.DocTestParser()
    for name, least in (("README.md", 5), ("docs/reference.md", 20)):
        assert len(parser.get_examples((ROOT / name).read_text(encoding="utf-8"))) >= least


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0


def documented(prefix: str) -> set[str]:
    """The names under `### `prefix.name`` headings of the reference."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    return set(re.findall(rf"^### `{re.escape(prefix)}\.(\w+)`$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("package", ["regard", "regard.layers", "regard.stages"])
def test_every_public_name_is_documented_and_nothing_else(package: str) -> None:
    assert documented(package) == set(importlib.import_module(package).__all__)


def test_links_and_pictures_in_the_documents_exist() -> None:
    for path in (*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_tree_in_the_readme_is_there() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree")[1].split("```")[1]
    package = ""
    for line in tree.splitlines():
        found = re.match(r"(├── |└── |[│ ]   (?:├── |└── ))([\w./]+)", line)
        if found is None:
            continue
        name = found[2]
        if found[1] in ("├── ", "└── "):
            package = name
            assert (ROOT / "src" / "regard" / name).exists(), name
        else:
            assert (ROOT / "src" / "regard" / package / name).exists(), package + name
