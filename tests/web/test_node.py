"""The page's modules that need no browser, tested by Node: one test here is one file there."""

import subprocess
from pathlib import Path

import pytest
from playwright._impl._driver import compute_driver_executable

from tests.patience import HANGING

FOLDER = Path(__file__).parent


def test_there_is_a_file_for_every_module_that_computes() -> None:
    names = {path.name.removesuffix(".test.js") for path in FOLDER.glob("*.test.js")}
    views = {
        "curves",
        "heads",
        "map",
        "measurements",
        "predictions",
        "retention",
        "runs",
        "selection",
        "text",
    }
    parts = {"camera", "chart", "colours", "lru", "quantity", "score_words", "state", "tiles", "tokens"}
    sources = {"model", "packed", "responder", "weights"}
    assert views | parts | sources <= names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.test.js")), ids=lambda path: path.name)
def test_node(path: Path) -> None:
    node = compute_driver_executable()[0]  # the one that Playwright brings along
    command = [node, "--test", "--test-reporter=tap", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "\n# fail 0\n" in done.stdout, done.stdout
    assert "\n# pass 0\n" not in done.stdout, f"no test ran:\n{done.stdout}"
