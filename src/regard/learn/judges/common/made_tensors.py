"""The tensors that a function makes while it runs: by them a judge sees how it came to its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from regard.support.torch_internals import TorchDispatchMode


class MadeTensor(NamedTuple):
    """A tensor that an operation of PyTorch has made: the operation's name and the tensor's shape."""

    operation: str
    shape: tuple[int, ...]


def tensors_made(function: Callable[..., Any], *arguments: Any) -> list[MadeTensor]:
    """Call a function and return the tensors that it has made, without views of others."""
    made: list[MadeTensor] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has no types there
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            results = operation(*args, **(kwargs or {}))
            # A transposed tensor is a view: nothing was computed for it.
            if not any(result.alias_info for result in operation._schema.returns):
                for tensor in results if isinstance(results, tuple | list) else [results]:
                    if isinstance(tensor, Tensor):
                        made.append(MadeTensor(operation._schema.name, tuple(tensor.shape)))
            return results

    with Watch():  # type: ignore[no-untyped-call]
        function(*arguments)
    return made


def all_pairs(made: list[MadeTensor], queries: int, keys: int) -> str:
    """Return how a function came to a number for each query and key at once: a shape or a name; "" if not."""
    for tensor in made:
        if "scaled_dot_product" in tensor.operation:
            return "PyTorch's own attention"
        if tensor.shape[-2:] in ((queries, keys), (keys, queries)):
            return f"a tensor {tensor.shape}"
    return ""
