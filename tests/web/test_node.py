"""The page's modules that need no browser, tested by Node."""

import re
import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

from tests.patience import HANGING

FOLDER = Path(__file__).parent


def test_there_is_a_file_for_every_module_that_computes():
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


def test_node():
    """One process for all files: starting one takes longer than most tests."""
    node = compute_driver_executable()[0]  # the one that Playwright brings along
    options = ["--test", "--test-isolation=none", "--test-reporter=tap"]
    files = sorted(map(str, FOLDER.glob("*.test.js")))
    done = subprocess.run(
        [node, *options, *files], capture_output=True, text=True, timeout=HANGING, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "\n# fail 0\n" in done.stdout, done.stdout
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert passed, done.stdout
    assert int(passed[1]) >= sum(
        path.read_text("utf-8").count("\ntest(") for path in FOLDER.glob("*.test.js")
    )
