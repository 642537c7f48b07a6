"""The random inputs on which a judge tries the learner's code: those of a seed, which a grader may choose.

A file that was written for the numbers of one seed fails with those of another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_seed = ContextVar("seed", default=0)


@contextmanager
def inputs_of(seed: int) -> Iterator[None]:
    """Judge with the inputs of a seed in this block; the global random state begins at the seed as well."""
    torch.manual_seed(seed)
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


def input_generator(number: int = 0) -> torch.Generator:
    """Return a new generator for the inputs of a judge, which may number several of them."""
    return torch.Generator().manual_seed(1000 * _seed.get() + number)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers, the same for a seed and the number of the judge's inputs."""
    return torch.randn(*shape, generator=input_generator(seed))
