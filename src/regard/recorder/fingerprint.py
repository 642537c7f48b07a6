"""The fingerprint of a capture: by it a certificate notices that the tokens or the layers were changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

NO_TEXT = "-"  # there was no text to hash


def make_fingerprint(tables: Iterable[Tensor | None], run: Sequence[Any], text: Sequence[Any]) -> str:
    """Return two hashes: of what ran, its `tables` of tokens and what is in `run`, and of its `text`."""
    tokens = [None if x is None else _hash_tensor(x) for x in tables]
    hashed = NO_TEXT if all(x is None for x in text) else _hash(text)
    return f"bytes:{_hash([tokens, *run])} {hashed}"


def fits(fingerprint: str, tables: Iterable[Tensor | None], run: Sequence[Any], text: Sequence[Any]) -> bool:
    """Whether nothing differs from what was hashed. Text may have been added where there was none."""
    sealed_run, _, sealed_text = fingerprint.partition(" ")
    tables = list(tables)
    now_run, now_text = make_fingerprint(tables, run, text).split()
    # The first captures of 0.1.0, as those in tests/kept, hashed the numbers of the tokens as JSON.
    if not sealed_run.startswith("bytes:"):
        now_run = _hash([[None if x is None else x.tolist() for x in tables], *run])
    return now_run == sealed_run and sealed_text in (now_text, NO_TEXT)


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()


def _hash_tensor(x: Tensor) -> list[Any]:
    numbers = x.to(torch.int64).contiguous().numpy()
    return [*x.shape, hashlib.sha256(numbers.data).hexdigest()]
