"""Imports point down: a floor uses the floors below it and none above. Files stay one concept long."""

import ast
from pathlib import Path

import pytest

import regard

SOURCE = Path(regard.__file__).parent
FLOORS = {
    "attention": 0,
    "atomic": 0,
    "lru": 0,
    "override": 0,
    "processes": 0,
    "safetensor_files": 0,
    "version": 0,
    "maps": 1,
    "layers": 1,
    "stages": 1,
    "heads": 2,
    "gpt": 2,
    "recorder": 2,
    "checker": 2,
    "testing": 2,
    "show": 3,
    "cli": 4,
}
UPWARD = {
    # `seen.show()`, `.figure()` and `.to_html()` import what draws them when they are called, and not before.
    ("recorder/result.py", "show"),
}
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imported(path: Path) -> set[str]:
    """The parts of regard that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            assert node.level == 0, f"{path}: imports are absolute"
    return {name.split(".")[1] for name in names if name.startswith("regard.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for other in imported(path) & FLOORS.keys():
        if (path.relative_to(SOURCE).as_posix(), other) not in UPWARD:
            assert FLOORS[other] <= FLOORS[part], f"{part} is below {other}"


def test_upward_imports_are_inside_functions() -> None:
    """Importing the lower part alone does not import the upper one."""
    for file, other in UPWARD:
        for node in ast.parse((SOURCE / file).read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert f"regard.{other}" not in ast.unparse(node)


def test_safetensors_files_are_opened_in_one_place() -> None:
    """Their errors and the check of their format are in `safetensor_files`, for everyone."""
    opening = [path for path in FILES if "safe_open" in path.read_text() or "load_file" in path.read_text()]
    assert opening == [SOURCE / "safetensor_files.py"]


def test_every_part_has_a_floor() -> None:
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in FILES}
    assert parts == FLOORS.keys()


def test_what_an_import_is_here() -> None:
    assert "attention" in imported(SOURCE / "maps" / "map.py")
