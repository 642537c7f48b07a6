"""Finding a module's queries, keys and values by what they do, not by their names.

A node's output is perturbed at one token, and the module's output is watched:

    if all tokens are the same, the output changes    only this token's row changes    other rows change too
    no (equal values are averaged to themselves)      query                            key
    yes                                               output projection                value

So the attention itself lies between the queries, keys and values that the last nodes give and the input of
the output projection: the `Core`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.checker.interpretation.cases import Cases
from regard.checker.oracle.question import Question
from regard.checker.subject import vocabulary
from regard.checker.subject.observation import Axis, Core, Node, Place, node_at, watch
from regard.checker.subject.subject import Subject

# The axis of the tokens is told by its length, which must differ from every width of the module.
_LENGTHS = (7, 11, 5, 13, 9, 17, 6, 19, 3)


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
        # A tensor that is only expanded cannot be written to in place.
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
        reply, nodes = watch(self.subject, question, changes)
        if reply.answer is None:
            raise RuntimeError(reply.error_line)
        return reply.answer.output.detach(), nodes

    @classmethod
    def of(cls, subject: Subject, cases: Cases, dtype: torch.dtype, heads: int) -> _RoleFinder | None:
        """Return a finder, with lengths that no parameter has as a dimension; None if it does not run."""
        assert subject.module is not None
        sizes = {n for p in subject.module.parameters() for n in p.shape}
        # Fused projections and split heads have multiples and parts of the parameters' sizes.
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
            sources=self._sources(query, key, value),
        )

    def _has_head_axes(self, paths: dict[str, tuple[str, ...]]) -> bool:
        assert self.subject.module is not None
        used = {path for group in paths.values() for path in group}
        layers = dict(self.subject.module.named_modules())
        return any(
            # A convolution has an axis for its kernel, and none for heads.
            p.ndim > 2 and not isinstance(layers[name.rpartition(".")[0]], nn.Conv1d | nn.Conv2d)
            for name, p in self.subject.module.named_parameters()
            if name in used
        )

    def _sources(
        self, query: list[Place], key: list[Place], value: list[Place]
    ) -> tuple[int, int, int] | None:
        """Return which input queries, keys and values are made of; None if a role is not made of just one."""
        question = self.question
        if question.k is question.q:
            return 0, 1, 2
        names = "qk" if question.k is question.v else "qkv"
        own_input = (0, 1, len(names) - 1)  # of each role
        sources: list[list[int]] = [[], [], []]  # for each role, the inputs that it changes with
        for i, name in enumerate(names):
            moved = getattr(question, name) + 1.0
            changed = replace(question, **{name: moved})
            if name == "k" and question.k is question.v:
                changed = replace(changed, v=moved)
            _, nodes = self._outputs(changed, {})
            for role, places in enumerate((query, key, value)):
                if any(self._moves(nodes, place) for place in places):
                    sources[role].append(i)
        if any(len(inputs) != 1 for inputs in sources):
            return None
        if all(inputs == [own] for inputs, own in zip(sources, own_input, strict=True)):
            return 0, 1, 2
        return (sources[0][0], sources[1][0], sources[2][0]) if len(names) == 3 else None

    def _moves(self, nodes: list[Node], place: Place) -> bool:
        before, after = self.nodes[place.node].output, node_at(nodes, place).output
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
            # Height and width are the last axes of (B, C, H, W), and come before the channels otherwise.
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
            # A pass that was changed may take another way, with fewer nodes.
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
        # Each channel takes up to two runs of the module.
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
