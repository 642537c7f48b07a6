"""The training corpus: a text, its tokens, and the windows of each step.

The windows of a step depend only on the seed and on the step, so that a resumed run continues with the same
data, and several ranks share one order. This file does not know models.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from regard.gpt import tokens
from regard.support.files import TextFileError, read_chunks

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VALIDATION_SHARE = 0.1  # of a text, at its end


@dataclass(frozen=True)
class Corpus:
    """The tokens of a text, split into a training and a validation part.

    - `train` and `validation`: token ids (N,) and (M,), int32.
    - `tokenizer`: if it has a beginning-of-text token, that replaces the first token of every window.
    - `context_length`: the length of a window.
    - `digest`: identifies the text when a run is resumed.
    """

    train: Tensor
    validation: Tensor
    tokenizer: Tokenizer
    context_length: int
    digest: str

    def __post_init__(self) -> None:
        for name, ids in (("training", self.train), ("validation", self.validation)):
            if len(ids) <= self.context_length:
                raise ValueError(
                    f"corpus: expected more than context_length={self.context_length} tokens for {name}, "
                    f"got {len(ids)}: use a longer text or a shorter context_length"
                )
        if (highest := int(max(self.train.max(), self.validation.max()))) >= self.vocab_size:
            raise ValueError(
                f"corpus: expected tokens below the tokenizer's vocab_size={self.vocab_size}, got {highest}"
            )

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the tokenizer's vocabulary."""
        size: int = self.tokenizer.get_vocab_size()
        return size

    @property
    def bos_token_id(self) -> int | None:
        """The beginning-of-text token, if the tokenizer has one."""
        return tokens.bos_token_id(self.tokenizer)

    def to(self, device: torch.device) -> Corpus:
        """The same corpus with its tokens on a device."""
        return replace(self, train=self.train.to(device), validation=self.validation.to(device))

    def training_batch(
        self, seed: int, step: int, windows: int, rows: slice, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (rows, length), of a step; `length` is by default `context_length`.

        `windows` are drawn at random from the seed and the step, and `rows` selects some of them.
        """
        # NumPy's generator, not PyTorch's: it takes a tuple as its seed, so that each step has a stream of
        # its own.
        rng = np.random.default_rng((seed, step))
        length = length or self.context_length
        starts = rng.integers(0, len(self.train) - length, windows)[rows]
        return self._windows(self.train, torch.from_numpy(starts), length)

    def validation_batches(
        self, max_tokens: int, batch_size: int, batches: slice
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of the validation windows, which do not overlap, in batches.

        If they have more than `max_tokens` tokens, so many are taken, evenly spread. `batches` selects some
        of the batches, so that several ranks can share the work.
        """
        available = (len(self.validation) - 1) // self.context_length
        count = max(1, min(available, max_tokens // self.context_length))
        # float64: linspace in float32 is off by one for corpora of more than 16 million windows.
        windows = torch.linspace(0, available - 1, count, dtype=torch.float64, device="cpu").round().long()
        for starts in torch.split(windows * self.context_length, batch_size)[batches]:
            yield self._windows(self.validation, starts, self.context_length)

    def _windows(self, ids: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the windows that begin at `starts` (B,), each (B, length)."""
        offsets = torch.arange(length + 1, device=ids.device)
        # A corpus is int32, which halves its memory on a GPU; cross_entropy wants targets in int64.
        windows = ids[starts.to(ids.device, non_blocking=True).unsqueeze(1) + offsets].long()
        if self.bos_token_id is not None:
            windows[:, 0] = self.bos_token_id
        return windows[:, :-1], windows[:, 1:]


def prepare(text: str, context_length: int, vocab_size: int | None = None) -> Corpus:
    """Tokenize a text into a corpus with windows of `context_length` tokens.

    Each character is a token, or, with `vocab_size`, a BPE of that size is learned from the training part.
    The last tenth of the text is the validation part.
    """
    split = int(len(text) * (1 - VALIDATION_SHARE))
    if not text:
        raise ValueError("corpus: expected text, got an empty string")
    if vocab_size is None:
        tokenizer = tokens.character_tokenizer(text)
    else:
        tokenizer = tokens.bpe_tokenizer([text[:split]], vocab_size)
    train, validation = (
        token_tensor(tokens.encode(tokenizer, part)) for part in (text[:split], text[split:])
    )
    return Corpus(train, validation, tokenizer, context_length, hashlib.sha256(text.encode()).hexdigest())


def token_tensor(ids: np.ndarray) -> Tensor:
    """Token ids as an int32 tensor, the dtype of a corpus."""
    return torch.from_numpy(ids.astype(np.int32))


def read(path: Path, argument: str = "corpus") -> str:
    """The text of a UTF-8 file; a `TextFileError` says why it cannot be read, and of which argument it is."""
    try:
        return "".join(read_chunks(path, argument))
    except MemoryError:
        raise TextFileError(f"{argument}: expected text that fits into memory, got {path}") from None


def python_documentation() -> str:
    """The documentation in every Python: the help topics and the docstrings of the standard library."""
    from pydoc_data.topics import topics

    library = Path(sysconfig.get_path("stdlib"))
    # What is in site-packages and dist-packages differs from machine to machine.
    excluded = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "__pycache__"}
    # Sorted below, since the order of a folder's files differs between file systems.
    sources = (path for path in library.rglob("*.py") if not excluded & set(path.relative_to(library).parts))
    texts = [text for _, text in sorted(topics.items())]
    for path in sorted(sources):
        texts += read_docstrings(path)
    return "\n\n".join(text.strip() for text in texts) + "\n"


def read_docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a source file, which is parsed but not run."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # some files of the library are invalid on purpose
        return
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text
