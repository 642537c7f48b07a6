"""A module's attention, observed from inside.

`ObservedSubject` answers with the merged heads that the module passes on, and `ObservedWiring` takes the
module's own queries, keys and values (see `roles`): what lies between them is compared with the oracle's,
whatever surrounds it (norms, residuals, further projections).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question
from regard.checker.oracle.wiring import Wiring
from regard.checker.subject.reply import Reply
from regard.checker.subject.roles_of_parts.nodes import Edit, make_changes, node_at, watch
from regard.checker.subject.roles_of_parts.roles import Core
from regard.checker.subject.subject import Subject


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
