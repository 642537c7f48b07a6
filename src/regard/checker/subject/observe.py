"""Finding a module's projections by what they do, not by their names.

Every operation of a forward pass in which a parameter takes part is a node. A node's output is perturbed at
one token, and the module's output is watched:

    if all tokens are the same, the output changes    only this token's row changes    other rows change too
    no (equal values are averaged to themselves)      query                            key
    yes                                               output projection                value

So the attention itself lies between the queries, keys and values that the last nodes give and the input of
the output projection. `ObservedSubject` answers with the merged heads that the module passes on, and
`ObservedWiring` takes the module's own queries, keys and values: what lies between them is compared with the
oracle's, whatever surrounds it (norms, residuals, further projections).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.checker.cases import Cases
from regard.checker.oracle.question import Question
from regard.checker.oracle.variant import Answer
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.subject import Reply, Subject

_LENGTHS = (7, 11, 5, 13, 9, 17, 6, 19, 3)


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
                output.copy_(changed)
            output = changed
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


def _changes(edits: list[Edit]) -> dict[int, Callable[[Tensor], Tensor]]:
    """Return the changes of nodes that make all these edits."""

    def change(own: list[Edit], x: Tensor) -> Tensor:
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


def _at(nodes: list[Node], place: Place) -> Node:
    if place.node >= len(nodes):
        raise RuntimeError("its forward pass takes another way for this input")
    return nodes[place.node]


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
    crossed: bool = False  # whether a role is made of another input than the one of its name

    @property
    def shared(self) -> list[str]:
        """The roles that one and the same tensor plays."""
        roles = {"query": self.query, "key": self.key, "value": self.value}
        return [name for name, places in roles.items() if sum(p == places for p in roles.values()) > 1]


@dataclass
class ObservedSubject(Subject):
    """A module of which the merged heads are observed, instead of its output."""

    core: Core | None = None
    _seen: dict[tuple[int, torch.dtype], tuple[Tensor, list[Tensor]]] = field(default_factory=dict)

    def run(self, question: Question, *, module: nn.Module | None = None, dropout: bool = False) -> Reply:
        """Run the module on a question, item by item; the answer's output is the merged heads (B, T, H·E)."""
        merged = []
        for item in question.items():
            reply, nodes = _watch(self, item, {}, module=module, dropout=dropout)
            if reply.answer is None or self.core is None:
                return reply
            try:
                parts = [p.read(_at(nodes, p).given, item.q.shape[-2]) for p in self.core.merged]
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
            reply, nodes = _watch(self, question, _changes(edits))
            if reply.answer is None:
                raise RuntimeError(reply.error_line)
            parts = [p.read(_at(nodes, p).given, question.q.shape[-2]) for p in core.merged]
            return torch.cat(parts, -1) if parts else reply.answer.output[0].detach()

        base = merged(0, 0.0)
        columns = [merged(s, 1.0) - base for s in range(question.k.shape[-2])]
        bent = (merged(0, 2.0) - base - 2 * columns[0]).abs().max() / base.abs().max().clamp_min(1e-30)
        return torch.stack(columns, -1).transpose(0, 1), bent

    def observe(self, question: Question) -> tuple[Tensor, Tensor, Tensor]:
        """Return the module's own queries, keys and values on a question, (B, T, width) each."""
        key = (id(question.q), question.dtype)
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
            reply, nodes = _watch(self, plain, {})
            if reply.answer is None:
                reply, nodes = _watch(self, item, {})
            if reply.answer is None:
                raise RuntimeError(reply.error_line)
            T, S = item.q.shape[-2], item.k.shape[-2]
            roles = ((self.core.query, T), (self.core.key, S), (self.core.value, S))
            items.append([torch.cat([p.read(_at(nodes, p).output, n) for p in r], -1) for r, n in roles])
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


def _watch(
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


def observe_core(subject: Subject, cases: Cases, dtype: torch.dtype, heads: int) -> Core | None:
    """Find a module's queries, keys, values and merged heads; None if they cannot be told apart.

    `heads` is how many heads it probably has; a wrong number only costs time.
    """
    if subject.module is None or not any(True for _ in subject.module.parameters()):
        return None
    finder = _RoleFinder.of(subject, cases, dtype, heads)
    return None if finder is None else finder.find()


class _Effect(NamedTuple):
    """What a perturbation of one node does."""

    same: bool  # the output changes if all tokens are the same
    others: bool  # rows of other tokens change
    own: bool  # the row of its own token changes
    feeds: frozenset[int]  # later nodes whose inputs change
    bent: bool  # the output is not linear in it


class _RoleFinder:
    """Perturbs the nodes of one module, one after the other."""

    def __init__(self, subject: Subject, question: Question, heads: int) -> None:
        self.subject, self.question, self.heads = subject, question, heads
        self.same = question.map_inputs(lambda x: x[..., :1, :].expand_as(x).contiguous())
        self.T, self.S = question.q.shape[-2], question.k.shape[-2]
        self.token = self.T // 2
        self.output, self.nodes = self._outputs(question, {})
        self.same_output, same_nodes = self._outputs(self.same, {})
        self.same_way = len(same_nodes) == len(self.nodes)

    def _outputs(
        self, question: Question, changes: Mapping[int, Callable[[Tensor], Tensor]]
    ) -> tuple[Tensor, list[Node]]:
        """Return the module's output on a question, with some nodes changed, and all its nodes."""
        reply, nodes = _watch(self.subject, question, changes)
        if reply.answer is None:
            raise RuntimeError(reply.error_line)
        return reply.answer.output.detach(), nodes

    @classmethod
    def of(cls, subject: Subject, cases: Cases, dtype: torch.dtype, heads: int) -> _RoleFinder | None:
        """Return a finder, with lengths that no parameter has as a dimension; None if it does not run."""
        assert subject.module is not None
        sizes = {n for p in subject.module.parameters() for n in p.shape}
        sizes |= {a * b for a in sizes for b in (2, 3)} | {a // b for a in sizes for b in (2, 3, 4, 6, 8)}
        limit = cases.max_length or 64
        free = [n for n in _LENGTHS if n not in sizes and n <= limit]
        crossed = subject.inputs != "x"
        if len(free) < 1 + crossed:
            return None
        question = cases.plain(B=1, T=free[0], S=free[1] if crossed else None, seed=90).to(dtype)
        if crossed and subject.run(question).answer is None:  # it wants equal lengths
            question = cases.plain(B=1, T=free[0], seed=90).to(dtype)
        try:
            return cls(subject, question, heads)
        except RuntimeError:
            return None

    def find(self) -> Core | None:
        """Return where the roles stand."""
        if not self.same_way:
            return None
        axes = {i: axis for i, node in enumerate(self.nodes) if (axis := self._axis(node.output)) is not None}
        effects = {i: self._effect(i, axis) for i, axis in axes.items()}
        by_effect = {i: _role(effect) for i, effect in effects.items()}
        if not {"query", "key"} & set(by_effect.values()):
            # A sink gives equal values less than weight 1. A fused projection has all roles in one node.
            by_linearity = {i: _role_by_linearity(effect) for i, effect in effects.items()}
            by_effect = by_linearity if {"key", "value"} <= set(by_linearity.values()) else by_effect
        inner = {i for i, role in by_effect.items() if role in ("query", "key", "value")}
        last = [i for i in sorted(inner) if not effects[i].feeds & inner]
        places: dict[str, list[Place]] = {"query": [], "key": [], "value": []}
        complete = {"query", "key", "value"} <= {by_effect[i] for i in last}
        for i in last:
            fused = by_effect[i] == "value" and not complete
            for role, channels in (self._fused_roles(i, axes[i]) if fused else {by_effect[i]: None}).items():
                places[role].append(Place(i, axes[i], channels))
        return self._core(places, axes, effects, by_effect)

    def _core(
        self,
        places: dict[str, list[Place]],
        axes: dict[int, Axis],
        effects: dict[int, _Effect],
        roles: dict[int, str],
    ) -> Core | None:
        value = places["value"]
        if not value:
            return None
        key = places["key"] or value  # one tensor is used as key and value, or as everything
        query = places["query"] or key
        after = [i for i in axes if roles[i] == "out" and any(i in effects[p.node].feeds for p in value)]
        first = [i for i in after if not any(i in effects[j].feeds for j in after)]
        merged: list[Place] = []
        for i in first:
            given = self.nodes[i].given
            if (axis := self._axis(given)) is None:
                return None
            if not any(given.equal(self.nodes[p.node].given) for p in merged):
                merged.append(Place(i, axis))
        used = {p.node for p in (*query, *key, *value)} | set(first)
        around = dict.fromkeys(n.path for i, n in enumerate(self.nodes) if i in axes and i not in used)
        paths = {
            name: tuple(dict.fromkeys(self.nodes[p.node].path for p in role))
            for name, role in (("query", query), ("key", key), ("value", value), ("out", merged))
        }
        scores = dict.fromkeys(node.path for node in self.nodes if self._is_scores(node.output))
        return Core(
            tuple(query),
            tuple(key),
            tuple(value),
            tuple(merged),
            paths,
            tuple(around),
            tuple(scores),
            head_axes=self._has_head_axes(paths),
            crossed=self._is_crossed(query, key, value),
        )

    def _has_head_axes(self, paths: dict[str, tuple[str, ...]]) -> bool:
        assert self.subject.module is not None
        used = {path for group in paths.values() for path in group}
        layers = dict(self.subject.module.named_modules())
        return any(
            p.ndim > 2 and not isinstance(layers[name.rpartition(".")[0]], nn.Conv1d | nn.Conv2d)
            for name, p in self.subject.module.named_parameters()
            if name in used
        )

    def _is_crossed(self, query: list[Place], key: list[Place], value: list[Place]) -> bool:
        """Return whether queries, keys or values do not change with the input that they are named after."""
        question = self.question
        if question.k is question.q:
            return False
        inputs = {"q": query, "k": key, "v": value}
        for name, places in inputs.items():
            if name in "kv" and question.k is question.v:
                changed = replace(question, k=(moved := question.k + 1.0), v=moved)
            else:
                changed = replace(question, **{name: getattr(question, name) + 1.0})
            _, nodes = self._outputs(changed, {})
            if not all(self._moves(nodes, place) for place in places):
                return True
        return False

    def _moves(self, nodes: list[Node], place: Place) -> bool:
        before, after = self.nodes[place.node].output, _at(nodes, place).output
        return before.shape == after.shape and not torch.allclose(before, after)

    def _is_scores(self, x: Tensor) -> bool:
        return x.is_floating_point() and sum(size in (self.T, self.S) for size in x.shape) >= 2

    def _axis(self, x: Tensor) -> Axis | None:
        """Return the axis of the tokens; None if there is none, or two (these are scores)."""
        if not x.is_floating_point():
            return None
        axes = [Axis(axis) for axis, size in enumerate(x.shape) if size in (self.T, self.S)]
        if not axes and self.subject.layout in ("BCHW", "BHWC"):
            pairs = [Axis(i, 2) for i in range(1, x.ndim - 1) if x.shape[i] * x.shape[i + 1] == self.T]
            axes = pairs[-1:] if self.subject.layout == "BCHW" else pairs[:1]
        return axes[0] if len(axes) == 1 else None

    def _effect(self, node: int, axis: Axis) -> _Effect:
        """Perturb a node at one token, in both directions, and with a single token."""
        before = axis.flat(self.nodes[node].output)
        shape = [n for a, n in enumerate(before.shape) if a != axis.first]
        draw = torch.Generator().manual_seed(node)
        noise = torch.randn(shape, generator=draw, dtype=torch.float64).to(self.question.dtype)
        crossed = self.S != self.T
        token = min(self.token, before.shape[axis.first] - 1)
        up, nodes = self._run(self.question, node, axis, token, noise)
        down, _ = self._run(self.question, node, axis, token, -noise)
        same, _ = self._run(self.same, node, axis, token, noise)
        rows = self._changed(up, self.output).flatten(0, -2).any(0)
        own = bool(rows[token]) if token < len(rows) else False
        others = int(rows.sum()) > (1 if crossed else int(own))
        feeds = frozenset(
            j
            for j, (old, new) in enumerate(zip(self.nodes, nodes, strict=False))
            if j > node and not torch.allclose(old.given, new.given, rtol=1e-7, atol=1e-9)
        )
        bent = bool(self._changed(up + down, 2 * self.output).any())
        return _Effect(bool(self._changed(same, self.same_output).any()), others, own, feeds, bent)

    def _changed(self, output: Tensor, before: Tensor) -> Tensor:
        """Return (…, T), where a row has changed by more than rounding, of a float32 on the way too."""
        rounding = max(1e3 * torch.finfo(before.dtype).eps, 1e-6)
        threshold = rounding * max(1.0, float(before.abs().max()))
        return (output - before).abs().amax(-1) > threshold

    def _run(
        self, question: Question, node: int, axis: Axis, token: int, noise: Tensor
    ) -> tuple[Tensor, list[Node]]:
        """Return the output and the nodes with a node's output changed at one token."""

        def change(x: Tensor) -> Tensor:
            changed = x.clone(memory_format=torch.contiguous_format)
            axis.flat(changed).select(axis.first, token).add_(noise)
            return changed

        return self._outputs(question, {node: change})

    def _fused_roles(self, node: int, axis: Axis) -> dict[str, tuple[int, ...] | None]:
        """Return the roles of a node that has several, and the channels of each: a fused projection."""
        output = axis.flat(self.nodes[node].output)
        width = output.numel() // output.shape[axis.first]
        if width > 768:
            return {"value": None}
        for size in (width // 3 // self.heads, 1):  # whole heads, if their first and last channels agree
            if size < 1 or width % size:
                continue
            starts = range(0, width, size)
            first = [self._channel_role(node, axis, c) for c in starts]
            if size > 1 and first != [self._channel_role(node, axis, c + size - 1) for c in starts]:
                continue
            found: dict[str, list[int]] = {}
            for start, role in zip(starts, first, strict=True):
                found.setdefault(role, []).extend(range(start, start + size))
            break
        return {name: tuple(channels) for name, channels in found.items()}

    def _channel_role(self, node: int, axis: Axis, channel: int) -> str:
        """Return the role of one channel of a node."""
        output = axis.flat(self.nodes[node].output)
        shape = [n for a, n in enumerate(output.shape) if a != axis.first]
        noise = torch.zeros(math.prod(shape), dtype=self.question.dtype)
        noise[channel] = 1.0
        token = min(self.token, output.shape[axis.first] - 1)
        same, _ = self._run(self.same, node, axis, token, noise.view(shape))
        if bool(self._changed(same, self.same_output).any()):
            return "value"
        up, _ = self._run(self.question, node, axis, token, noise.view(shape))
        rows = self._changed(up, self.output).flatten(0, -2).any(0)
        return "key" if int(rows.sum()) > int(rows[token]) else "query"


def _role(effect: _Effect) -> str:
    """Return a node's role by the table at the head of this file."""
    if effect.same:
        return "value" if effect.others else "out"
    if not effect.own and not effect.others:
        return "none"
    return "key" if effect.others else "query"


def _role_by_linearity(effect: _Effect) -> str:
    """Return a node's role by linearity: softmax bends what goes into the scores, values stay linear."""
    if not effect.own and not effect.others:
        return "none"
    if effect.bent:
        return "key" if effect.others else "query"
    return "value" if effect.others else "out"


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


def named_roles(core: Core, module: nn.Module) -> tuple[int, int, int] | None:
    """Return which of query, key and value, by the parameters' names, acts as each of them.

    A role whose parameters have no such names counts as itself. None if a parameter that is named after the
    output projection is not used.
    """
    used = {path for paths in core.paths.values() for path in paths} | set(core.surroundings)
    out = [
        path for path, p in module.named_parameters() if vocabulary.projection(path) == "out" and p.ndim > 1
    ]
    if out and not core.merged and not used & set(out):
        return None
    order = ("query", "key", "value")
    acting = []
    for i, role in enumerate(order):
        names = {vocabulary.projection(path) for path in core.paths[role]}
        acting.append(order.index(name) if len(names) == 1 and (name := names.pop()) in order else i)
    return acting[0], acting[1], acting[2]


def describe_core(core: Core) -> str:
    """Return between which parameters the attention was compared, as a phrase for the report."""

    def names(*roles: str) -> str:
        paths = [path for role in roles for path in core.paths[role]]
        parts = dict.fromkeys(path.removesuffix(".weight").removesuffix(".bias") for path in paths)
        shown = [f"`{part}`" for part in parts]
        return ", ".join(shown[:4]) + (" …" if len(shown) > 4 else "") if shown else "its output"

    return f"compared from {names('query', 'key', 'value')} to {names('out')}"
