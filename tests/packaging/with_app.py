"""What the extra `app` adds to the library: run by test_wheel.py in a clean environment."""

import contextlib
import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import regard
from regard.__main__ import main
from regard.gpt import GPT

seen = regard.capture(GPT.from_pretrained("default"), text="The sea was high, and the sea was cold.")
assert seen.certificate.certified
assert regard.plot(seen[0, 0][0]).axes
assert "layer" in str(seen.heads())
seen.show(open=False, block=False).close()


def command(*words):
    """The exit code of a command, and what it prints in one line."""
    sys.argv = ["regard", *words]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    return code, " ".join(printed.getvalue().split())


# The course brings its lessons, and judges them.
assert command("learn", "1", "--no-open")[0] in (None, 0)
assert Path("regard-lessons", "lesson12.html").exists()
code, said = command("learn", "1", "--check")
assert code == 3
assert "still to write" in said
print("the app works")
