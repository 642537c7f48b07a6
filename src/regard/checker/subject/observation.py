"""A module's attention, observed from inside: every operation in which a parameter takes part is a node.

A node's output can be changed at one token or in some channels, to see what follows from it (see `roles`).
`ObservedSubject` answers with the merged heads that the module passes on, and `ObservedWiring` takes the
module's own queries, keys and values: what lies between them is compared with the oracle's, whatever
surrounds it (norms, residuals, further projections).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.wiring import Wiring
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


@dataclass(frozen=True)
class Core:
    """Where a module's queries, keys, values and merged heads stand among its nodes."""

    query: tuple[Place, ...]
    key: tuple[Place, ...]
    value: tuple[Place, ...]
    merged: tuple[Place, ...]  # read from a node's input; empty if they are the module's output
    paths: dict[str, tuple[str, ...]]  # the parameters of each role
    surroundings: tuple[str, ...] = ()  # parameters of nodes around the attention
    on_scores: tuple[str, ...] = ()  # parameters that are added to the scores, or multiply them
    head_axes: bool = False  # whether a weight has an axis of heads, so that their order cannot be a mistake
    sources: tuple[int, int, int] | None = (0, 1, 2)  # the input of each role; None if it is not clear


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


@dataclass
class ObservedSubject(Subject):
    """A module of which the merged heads are observed, instead of its output."""

    core: Core | None = None
    _seen: dict[tuple[int, torch.dtype], tuple[Tensor, list[Tensor]]] = field(default_factory=dict)

    def run(
        self,
        question: Question,
        *,
        module: nn.Module | None = None,
        dropout: bool = False,
        watched: bool = False,
    ) -> Reply:
        """Run the module on a question, item by item; the answer's output is the merged heads (B, T, H·E)."""
        merged = []
        for item in question.items():
            reply, nodes = watch(self, item, {}, module=module, dropout=dropout)
            if reply.answer is None or self.core is None:
                return reply
            try:
                parts = [p.read(node_at(nodes, p).given, item.q.shape[-2]) for p in self.core.merged]
            # `Place.read` and `node_at` raise it where the pass takes another way for this input.
            except RuntimeError as error:
                return Reply(None, error)
            merged.append(torch.cat(parts, -1) if parts else reply.answer.output[0])
        return Reply(Answer(torch.stack(merged)))

    def weights(self, question: Question, factor: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return the weights (channels, T, S) of one sequence, and how far its output bends in the values.

        The queries are multiplied by `factor`. A number is added to the values of one token after the other:
        what the merged heads gain is its weight.
        """
        assert self.core is not None
        core = self.core

        def merged(token: int, added: float) -> Tensor:
            edits: list[Edit] = [(place, None, lambda row: row * factor) for place in core.query]
            edits += [(place, token, lambda row: row + added) for place in core.value]
            reply, nodes = watch(self, question, make_changes(edits))
            if reply.answer is None:
                raise RuntimeError(reply.error_line)
            parts = [p.read(node_at(nodes, p).given, question.q.shape[-2]) for p in core.merged]
            return torch.cat(parts, -1) if parts else reply.answer.output[0].detach()

        base = merged(0, 0.0)
        columns = [merged(s, 1.0) - base for s in range(question.k.shape[-2])]
        bent = (merged(0, 2.0) - base - 2 * columns[0]).abs().max() / base.abs().max().clamp_min(1e-30)
        return torch.stack(columns, -1).transpose(0, 1), bent

    def observe(self, question: Question) -> tuple[Tensor, Tensor, Tensor]:
        """Return the module's own queries, keys and values on a question, (B, T, width) each."""
        key = (id(question.q), question.dtype)
        # The id of a tensor that is gone may be that of another one.
        if key not in self._seen or self._seen[key][0] is not question.q:
            while len(self._seen) > 32:
                self._seen.pop(next(iter(self._seen)))
            self._seen[key] = question.q, self._observe(question)
        q, k, v = self._seen[key][1]
        return q, k, v

    def _observe(self, question: Question) -> list[Tensor]:
        assert self.core is not None
        items = []
        bare = replace(question, mask=None, padding=None, bias=None)  # projections do not depend on masks
        for item, plain in zip(question.items(), bare.items(), strict=True):
            reply, nodes = watch(self, plain, {})
            # A module may refuse to run without a mask.
            if reply.answer is None:
                reply, nodes = watch(self, item, {})
            if reply.answer is None:
                raise RuntimeError(reply.error_line)
            T, S = item.q.shape[-2], item.k.shape[-2]
            roles = ((self.core.query, T), (self.core.key, S), (self.core.value, S))
            items.append([torch.cat([p.read(node_at(nodes, p).output, n) for p in r], -1) for r, n in roles])
        return [torch.stack(parts) for parts in zip(*items, strict=True)]


@dataclass(frozen=True)
class ObservedWiring(Wiring):
    """A wiring that takes queries, keys and values from the module itself."""

    observed: ObservedSubject | None = None
    interleaved: bool = False  # the channels of one head are H apart, in queries, keys and values
    merged_interleaved: bool = False  # the same in the merged heads, as einsum orders them

    def project(self, question: Question, *, split: str = "transpose") -> tuple[Tensor, Tensor, Tensor]:
        """Return the module's own queries, keys and values, split into heads."""
        assert self.observed is not None
        q, k, v = self.observed.observe(question)
        if self.interleaved:
            q, k, v = (
                x.unflatten(-1, (-1, heads)).mT.flatten(-2)  # type: ignore[no-untyped-call]
                for x, heads in ((q, self.heads), (k, self.groups), (v, self.groups))
            )
        q, k, v = (x.to(question.dtype) for x in (q, k, v))  # a norm may widen them
        return self.split(q, k, v, split)

    def finish(
        self, mixed: Tensor, free: Tensor | None, *, view: bool = False, skip: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Merge the heads in the order in which the module merges them."""
        merged, free = super().finish(mixed, free, view=view, skip=skip)
        if self.merged_interleaved:
            merged = merged.unflatten(-1, (self.heads, -1)).mT.flatten(-2)  # type: ignore[no-untyped-call]
        return merged, free


def observed_wirings(
    subject: ObservedSubject, question: Question, head_counts: Sequence[int], scale: float | None
) -> list[Wiring]:
    """Return the wirings of an observed module, for each number of heads that its widths allow."""
    assert subject.core is not None
    q, k, v = (x.shape[-1] for x in subject.observe(question))
    reply = subject.run(question)
    if reply.answer is None:
        return []
    merged = reply.answer.output.shape[-1]
    wirings: list[Wiring] = []
    joined = [len(subject.core.query)] if len(subject.core.query) > 1 else []
    for H in dict.fromkeys([*joined, *head_counts]):
        D, rest = divmod(q, H)
        if rest or D == 0 or k % D or k == 0:
            continue
        G = k // D
        if H % G or v % G or H * (v // G) != merged:
            continue
        plain = ObservedWiring(H, G, splits=True, width=question.q.shape[-1], scale=scale, observed=subject)
        wirings.append(plain)
        # Channels in another order are consistent if all are; an einsum may order its own sums.
        orders = [(True, True), (False, True), (True, False)] if subject.core.head_axes else [(True, True)]
        wirings += [replace(plain, interleaved=a, merged_interleaved=b) for a, b in orders if H > 1]
    return wirings
