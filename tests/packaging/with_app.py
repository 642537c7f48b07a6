"""What the extra `app` adds to the library: run by test_wheel.py in a clean environment."""

from __future__ import annotations

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
main()  # `regard --version`, from sys.argv
