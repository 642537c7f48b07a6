"""What a model is trained on: a text, its tokens, and which of them come at which step.

Every step's windows are drawn from the seed and the step alone, so a run that is resumed reads on exactly
where it was, and several processes share one order between them. This file knows no models.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.gpt import tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HELD_BACK = 0.1  # the last tenth of a text is for validation


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens to judge by. `start`, if any, takes the first place of every window."""

    train: Tensor  # (N,) int32
    validation: Tensor  # (M,) int32
    tokenizer: Tokenizer
    context: int
    digest: str  # what the text is recognised by when a run is resumed

    def __post_init__(self) -> None:
        for name, ids in (("training", self.train), ("validation", self.validation)):
            if len(ids) <= self.context:
                raise ValueError(
                    f"corpus: expected more than context={self.context} tokens for {name}, got {len(ids)}: "
                    "take a longer text or a shorter context"
                )
        if (most := int(max(self.train.max(), self.validation.max()))) >= self.vocab_size:
            raise ValueError(f"corpus: expected tokens below {self.vocab_size}, the tokenizer's, got {most}")

    @property
    def vocab_size(self) -> int:
        size: int = self.tokenizer.get_vocab_size()
        return size

    @property
    def start(self) -> int | None:
        return tokens.start(self.tokenizer)

    def to(self, device: torch.device) -> Corpus:
        return Corpus(
            self.train.to(device), self.validation.to(device), self.tokenizer, self.context, self.digest
        )

    def batch(self, seed: int, step: int, windows: int, part: slice) -> tuple[Tensor, Tensor]:
        """Inputs and targets (part of windows, context) of a step: a function of the seed and the step."""
        draw = np.random.default_rng((seed, step))
        first = draw.integers(0, len(self.train) - self.context, windows)[part]
        return self._windows(self.train, torch.from_numpy(first))

    def judged(self, most: int, batch: int, part: slice) -> Iterator[tuple[Tensor, Tensor]]:
        """Every validation window, side by side; of more than `most` tokens, as many, evenly spread.

        `part` takes some of the batches, so that several processes may share the work.
        """
        whole = (len(self.validation) - 1) // self.context
        kept = max(1, min(whole, most // self.context))
        first = torch.linspace(0, whole - 1, kept, dtype=torch.float64).round().long() * self.context
        for some in torch.split(first, batch)[part]:
            yield self._windows(self.validation, some)

    def _windows(self, ids: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        reach = torch.arange(self.context + 1, device=ids.device)
        windows = ids[first.to(ids.device, non_blocking=True).unsqueeze(1) + reach].long()
        if self.start is not None:
            windows[:, 0] = self.start
        return windows[:, :-1], windows[:, 1:]


def prepare(text: str, context: int, vocab_size: int | None = None) -> Corpus:
    """The corpus of a text: by characters, or by a BPE of `vocab_size` tokens learned from its first part."""
    cut = int(len(text) * (1 - HELD_BACK))
    if not text:
        raise ValueError("corpus: expected text, got nothing")
    if vocab_size is None:
        tokenizer = tokens.characters(text)
    else:
        tokenizer = tokens.byte_pairs([text[:cut]], vocab_size)
    train, validation = (as_ids(tokens.encode(tokenizer, part)) for part in (text[:cut], text[cut:]))
    return Corpus(train, validation, tokenizer, context, hashlib.sha256(text.encode()).hexdigest())


def as_ids(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int32))


def read(path: Path) -> str:
    """The text of a file; ValueError says what is wrong with it."""
    if not path.exists():
        raise ValueError(f"corpus: expected a text file, but there is no {path}")
    if path.is_dir():
        raise ValueError(f"corpus: expected a text file, got the folder {path}")
    data = path.read_bytes()
    if not data.strip():
        raise ValueError(f"corpus: expected text, but {path} is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"corpus: expected UTF-8 text, but {path} is not, at byte {error.start}: "
            "is it binary, or in another encoding?"
        ) from None
    if "\0" in text:
        raise ValueError(f"corpus: expected text, but {path} holds zero bytes: it is binary, or UTF-16")
    return text


def python_documentation() -> str:
    """The text that every Python carries: the language's topics and the standard library's docstrings."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}
    sources = (path for path in library.rglob("*.py") if not left_out & set(path.relative_to(library).parts))
    found = [text for _, text in sorted(topics.items())]
    for path in sorted(sources):
        found += docstrings(path)
    return "\n\n".join(text.strip() for text in found) + "\n"


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a source file, read without running it."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # some files are there to be wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text
