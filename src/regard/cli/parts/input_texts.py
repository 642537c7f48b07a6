"""The texts that a command reads: from its options, cut into windows of tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard.cli.parts.model import Model
from regard.gpt.training.corpus import read


def read_texts(texts: list[str] | None, files: list[Path] | None, default: str) -> list[str]:
    """The texts of the options --text and --file, or the `default` if there are none."""
    return [*(texts or []), *(read(path, "file") for path in files or [])] or [default]


def check_length(length: int) -> int:
    """Return the number of tokens of --length, or raise ValueError."""
    if length < 2:
        raise ValueError(f"--length: expected at least 2 tokens, got {length}")
    return length


def cut_windows(model: Model, texts: list[str], length: int, most: int) -> list[Tensor]:
    """The tokens of the texts, in windows of `length` tokens, at most so many."""
    length = min(check_length(length), model.context or length)
    if most < 1:
        raise ValueError(f"--windows: expected 1 at least, got {most}")
    ids = []
    for text in texts:
        found = model.encode(text, whole=True)
        # Models that put a token first, as Llama and Gemma, have their sink on it: every window gets one.
        lead = [] if model.start is None else [model.start]
        first, room = found[:length], length - len(lead)
        ids.append(torch.tensor(first, device="cpu"))
        later = range(length, len(found) - room + 1, room)
        ids += [torch.tensor(lead + found[i : i + room], device="cpu") for i in later]
    # One token alone has no earlier key to attend to.
    ids = [window for window in ids if len(window) > 1][:most]
    if not ids:
        raise ValueError("text: expected at least two tokens to look at")
    return ids
