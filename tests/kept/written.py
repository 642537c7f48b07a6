"""How the files in this folder were written, once, by the version that names their folder.

    python -m tests.kept.written tests/kept/0.1.0

They are never written again: `test_kept.py` reads what an earlier version left behind.
"""

import sys
from pathlib import Path

import torch

import regard
from regard.cli import app
from regard.gpt import GPT
from regard.gpt.config import Config


def main(folder):
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "d_model": 16, "num_layers": 2, "num_heads": 2, "context_length": 16}
    model = GPT(Config(**sizes)).eval()
    seen = regard.capture(model, inputs=(torch.arange(12)[None],), values=True)
    seen.save(folder / "capture")
    seen[1].save(folder / "map.safetensors")
    corpus = folder / "corpus.txt"
    corpus.write_text("the ships will come home if the lamp is lit. " * 40, encoding="utf-8")
    run = [
        *("--steps", "4", "--num-layers", "1", "--num-heads", "2", "--d-model", "16"),
        "--evaluate-every",
        "2",
    ]
    for words in (
        ["train", str(corpus), "--out", str(folder / "run"), *run],
        ["survey", str(corpus), "--out", str(folder / "survey.csv"), "--length", "64", "--windows", "2",
         "--examples", "1", "--model", str(folder / "run")],
    ):  # fmt: skip
        app(words, standalone_mode=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
