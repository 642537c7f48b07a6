"""The nodes of a forward pass: every operation in which a parameter takes part, watched and changed.

A node's output can be changed at one token or in some channels, to see what follows from it (see `roles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.oracle.question import Question
from regard.checker.subject.reply import Reply
from regard.checker.subject.subject import Subject
from regard.support.torch_internals import TorchDispatchMode


class Node(NamedTuple):
    """One operation in which a parameter takes part: what came in, and what came out."""

    path: str  # of the parameter
    given: Tensor
    output: Tensor


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the nodes of a forward pass, and changes the outputs of some."""

    def __init__(self, module: nn.Module, changes: Mapping[int, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.changes = changes
        self.nodes: list[Node] = []
        # Storages that hold parameters or are computed from parameters alone. The tensors are kept, so that
        # no address is used again.
        self._paths = {_address(p): name for name, p in module.named_parameters()}
        self._kept: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: True would import PyTorch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in _tensors((args, kwargs)) if x.is_floating_point() or x.is_complex()]
        paths = [self._paths.get(_address(x)) for x in tensors]
        result = func(*args, **(kwargs or {}))
        output = next(_tensors(result), None)
        if output is None or not any(paths):
            return result
        if all(paths):  # a view, a copy or a product of parameters
            self._paths.setdefault(_address(output), next(path for path in paths if path))
            self._kept.append(output)
            return result
        given = next(x for x, path in zip(tensors, paths, strict=True) if path is None)
        held = [(x.ndim, path) for x, path in zip(tensors, paths, strict=True) if path is not None]
        path = max(held)[1]  # of a weight, rather than of its bias
        if (change := self.changes.get(len(self.nodes))) is not None:
            changed = change(output)
            if isinstance(result, Tensor) and not func._schema.is_mutable:
                result = changed
            else:
                # What an in-place operator returns is its argument, with which the module goes on.
                output.copy_(changed)
            output = changed
        # A later in-place operator may overwrite what came in.
        self.nodes.append(Node(path, given.detach().clone(), output.detach()))
        return result


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


class Axis(NamedTuple):
    """The axis of the tokens in a node's tensor; two neighbouring axes in an image."""

    first: int
    axes: int = 1

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the tensor with one axis of tokens, at `first`."""
        return tensor if self.axes == 1 else tensor.flatten(self.first, self.first + self.axes - 1)


class Place(NamedTuple):
    """Where a role's tensor stands: a node, the axis of its tokens, and its channels (None for all)."""

    node: int
    axis: Axis
    channels: tuple[int, ...] | None = None

    def read(self, tensor: Tensor, length: int) -> Tensor:
        """Return (T, channels) of a node's tensor, which must have this length."""
        rows = self.axis.flat(tensor) if tensor.ndim >= sum(self.axis) else tensor
        if rows.ndim <= self.axis.first or rows.shape[self.axis.first] != length:
            raise RuntimeError(f"its forward pass takes another way for {length} tokens")
        flat = rows.movedim(self.axis.first, 0).flatten(1)
        return flat if self.channels is None else flat[:, list(self.channels)]


Edit = tuple[Place, int | None, Callable[[Tensor], Tensor]]  # where, at which token (None: all), and what


def make_changes(edits: list[Edit]) -> dict[int, Callable[[Tensor], Tensor]]:
    """Return the changes of nodes that make all these edits."""

    def change(own: list[Edit], x: Tensor) -> Tensor:
        # Rows are written through views, and flattening other strides would copy them.
        changed = x.clone(memory_format=torch.contiguous_format)
        for place, token, edit in own:
            rows = place.axis.flat(changed).movedim(place.axis.first, 0)  # a view
            channels = slice(None) if place.channels is None else list(place.channels)
            for row in rows if token is None else rows[token : token + 1]:
                flat = row.flatten()
                flat[channels] = edit(flat[channels])
                row.copy_(flat.view(row.shape))
        return changed

    nodes = {place.node for place, _, _ in edits}
    return {node: partial(change, [edit for edit in edits if edit[0].node == node]) for node in nodes}


def node_at(nodes: list[Node], place: Place) -> Node:
    if place.node >= len(nodes):
        raise RuntimeError("its forward pass takes another way for this input")
    return nodes[place.node]


def watch(
    subject: Subject,
    question: Question,
    changes: Mapping[int, Callable[[Tensor], Tensor]],
    *,
    module: nn.Module | None = None,
    dropout: bool = False,
) -> tuple[Reply, list[Node]]:
    """Run a subject's module on one sequence and record its nodes."""
    module = module or subject.runnable(question.dtype)
    assert module is not None
    watch = _Watch(module, changes)
    with torch.enable_grad(), watch:  # without gradients PyTorch would run fused encoders as one operation
        reply = Subject.run(subject, question, module=module, dropout=dropout)
    return reply, watch.nodes
