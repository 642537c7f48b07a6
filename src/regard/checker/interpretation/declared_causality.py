"""What code says of its causality and length: in its names, its words and the masks that it holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.checker.subject import vocabulary
from regard.checker.subject.subject import Subject


def causal_hypotheses(subject: Subject, causal: bool | None, declared: bool | None) -> list[bool]:
    """Return the possible answers to whether the code is causal by itself."""
    if causal is not None:
        return [causal]
    if "causal" in subject.arguments and "causal" not in subject.extra:
        return [False]  # its causal argument decides
    if declared is not None:
        return [declared]
    return [True, False] if described_causality(subject) else [False, True]


def declared_causality(subject: Subject) -> bool | None:
    """Return whether the code declares itself causal: by name, attribute or triangular buffer.

    None if it declares nothing.
    """
    module = subject.module
    if subject.is_transformers:
        return None  # the model passes the mask
    by_name = vocabulary.says_causal(subject.name)
    if by_name is not None:
        return by_name
    if module is not None:
        for name, value in vars(module).items():
            if vocabulary.size(name) == "causal" and isinstance(value, bool):
                return value
        if holds_causal_mask(module):
            return True
    return None


def described_causality(subject: Subject) -> bool | None:
    """Return whether the docstring calls the code causal; None if it does not say.

    Prose is easily misread: it is where to begin, and never makes code wrong.
    """
    if subject.is_transformers or "mask" in subject.arguments or "causal" in subject.arguments:
        return None  # the model passes the mask, or the docstring describes an option
    module = subject.module
    doc = (type(module).__dict__.get("__doc__") if module is not None else subject.target.__doc__) or ""
    return vocabulary.docstring_says_causal(doc) if len(doc) < 4000 else None


def holds_causal_mask(module: nn.Module) -> bool:
    """Return whether a buffer or an attribute of the module is a causal mask."""
    tensors = [*module.buffers(), *(value for value in vars(module).values() if isinstance(value, Tensor))]
    return any(is_triangular(tensor) for tensor in tensors)


def max_length(subject: Subject) -> int | None:
    """Return a module's maximum length: a size of that meaning, or the side of a square mask."""
    module = subject.module
    if module is None:
        return None
    for name, value in {**vars(module), **subject.init}.items():
        if vocabulary.size(name) == "length" and isinstance(value, int) and not isinstance(value, bool):
            return value
    tensors = [tensor for _, tensor in [*module.named_buffers(), *plain_tensors(module)]]
    squares = [t.shape[-1] for t in tensors if t.ndim >= 2 and t.shape[-1] == t.shape[-2] > 1]
    return max(squares, default=None)


def plain_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the tensors that are attributes, but neither parameters nor buffers, with their paths."""
    return [
        (f"{path}.{name}".lstrip("."), value)
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor)
    ]


def is_triangular(tensor: Tensor) -> bool:
    """Return whether a tensor is a causal mask in a usual form: tril or triu of ones, booleans or −inf."""
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    square = tensor.reshape(-1, *tensor.shape[-2:])[0]
    # A mask that is added may hold −1e4 or −1e9 in place of −inf.
    for marked in (square != 0, square < -1e3 if square.dtype.is_floating_point else square != 0):
        n = len(marked)
        for mark in (marked, ~marked):
            lower = torch.ones(n, n, dtype=torch.bool, device=mark.device)
            # A causal mask that is off by one declares causality, too; the output then shows the mistake.
            if any(bool((mark == lower.tril(d)).all()) for d in (-1, 0, 1)):
                return True
    return False
