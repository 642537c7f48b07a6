"""A module's attention as it runs inside: its queries, keys, values and merged heads.

The attention is intercepted as in a capture, and its tensors are matched by their numbers with what the
module's layers return and take. That shows where each role stands. From there on the layers are read, and
what lies between them is compared with the oracle's, whatever surrounds it: norms, residuals, further layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.checker.interpretation.cases import Cases
from regard.checker.oracle.question import Answer, Question
from regard.checker.oracle.wiring import Split, Wiring
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import copy_module
from regard.checker.subject.construct import choose_implementation
from regard.checker.subject.subject import Reply, Subject

if TYPE_CHECKING:
    from regard.recorder.attention_call import AttentionCall, Call
    from regard.recorder.layer import LayerId

_ROLES = ("query", "key", "value")
_LENGTHS = (7, 11, 5, 13, 9, 17)  # the axis of the tokens is told by its length


class LayerNumbers(NamedTuple):
    """What one layer was given, and what it returned."""

    path: str
    given: Tensor
    output: Tensor


class Place(NamedTuple):
    """Where a role's numbers stand: in a layer's input or output, on the axes of its tokens, in channels."""

    call: int  # which of the calls of the module's layers
    path: str  # of the layer
    side: str  # a field of `LayerNumbers`
    first: int  # the axis of the tokens
    axes: int  # 2 in an image
    channels: tuple[int, ...]

    def read(self, calls: list[LayerNumbers], length: int) -> Tensor:
        """Return (T, channels) of a sequence of this length."""
        if self.call < len(calls) and calls[self.call].path == self.path:
            rows = _rows(getattr(calls[self.call], self.side), self.first, self.axes)
            if len(rows) == length:
                return rows[:, list(self.channels)]
        raise RuntimeError(f"its forward pass takes another way for {length} tokens")


def _rows(tensor: Tensor, first: int, axes: int) -> Tensor:
    """Return a tensor of one sequence as (T, channels)."""
    tensor = tensor if axes == 1 else tensor.flatten(first, first + axes - 1)
    return tensor.movedim(first, 0).flatten(1)


@contextmanager
def _layer_numbers(module: nn.Module) -> Iterator[list[LayerNumbers]]:
    """Note the calls of a module's layers that hold parameters and no further layers."""
    calls: list[LayerNumbers] = []

    def note(path: str) -> object:
        def hook(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            if given and isinstance(output, Tensor):
                # Later operations in place may overwrite what came in.
                calls.append(LayerNumbers(path, given[0].detach().clone(), output.detach().clone()))

        return hook

    layers = [(n, part) for n, part in module.named_modules() if n and part._parameters and not part._modules]
    hooks = [part.register_forward_hook(note(path)) for path, part in layers]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@dataclass
class InsideSubject(Subject):
    """A module of which the merged heads are observed, instead of its output."""

    places: dict[str, Place] = field(default_factory=dict)  # of "query", "key", "value" and "merged"
    sources: tuple[int, int, int] | None = (0, 1, 2)  # the input of each role; None if it is not clear
    # By their inputs, which stay: hundreds of interpretations ask for the projections of one question.
    projected: dict[tuple[Tensor, ...], list[Tensor]] = field(default_factory=dict)

    def _run(
        self, question: Question, module: nn.Module | None = None, dropout: bool = False
    ) -> tuple[Reply, list[LayerNumbers]]:
        module = module or self.runnable(question.dtype)
        assert module is not None
        with _layer_numbers(module) as calls:
            return Subject.run(self, question, module=module, dropout=dropout), calls

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
            reply, calls = self._run(item, module, dropout)
            if reply.answer is None:
                return reply
            place = self.places.get("merged")
            try:
                merged.append(place.read(calls, item.q.shape[-2]) if place else reply.answer.output[0])
            except RuntimeError as error:
                return Reply(None, error)
        return Reply(Answer(torch.stack(merged)))

    def project(self, question: Question) -> list[Tensor]:
        """Return the module's own queries, keys and values on a question, (B, T, width) each."""
        inputs = (question.q, question.k, question.v)
        if inputs in self.projected:
            return self.projected[inputs]
        items = []
        bare = replace(question, mask=None, padding=None, bias=None)  # projections do not depend on masks
        for item, plain in zip(question.items(), bare.items(), strict=True):
            reply, calls = self._run(plain)
            if reply.answer is None:  # it may refuse to run without a mask
                reply, calls = self._run(item)
            if reply.answer is None:
                raise RuntimeError(reply.error_line)
            lengths = (item.q.shape[-2], item.k.shape[-2], item.k.shape[-2])
            items.append([self.places[r].read(calls, n) for r, n in zip(_ROLES, lengths, strict=True)])
        return self.projected.setdefault(inputs, [torch.stack(x) for x in zip(*items, strict=True)])

    def acting_roles(self) -> tuple[int, int, int] | None:
        """Return which of query, key and value, by the names of its layers, acts as each of them.

        A role whose layer has no such name counts as itself. None if a layer that is named after the output's
        projection is not used.
        """
        assert self.module is not None
        named = [n for n, p in self.module.named_parameters() if p.ndim > 1]
        out = [name.rpartition(".")[0] for name in named if vocabulary.projection(name) == "out"]
        if "merged" not in self.places and out:
            return None
        meanings = [vocabulary.projection(self.places[role].path) for role in _ROLES]
        acting = [_ROLES.index(m) if m in _ROLES else i for i, m in enumerate(meanings)]
        return acting[0], acting[1], acting[2]

    def describe(self) -> str:
        """Return between which layers the attention was compared, as a phrase for the report."""
        layers = ", ".join(dict.fromkeys(f"`{self.places[role].path}`" for role in _ROLES))
        end = f"`{self.places['merged'].path}`" if "merged" in self.places else "its output"
        return f"compared from {layers} to {end}"


@dataclass(frozen=True)
class InsideWiring(Wiring):
    """A wiring that takes queries, keys and values from the module itself."""

    inside: InsideSubject | None = None

    def project(self, question: Question, *, split: Split = "transpose") -> tuple[Tensor, Tensor, Tensor]:
        """Return the module's own queries, keys and values, split into heads."""
        assert self.inside is not None
        q, k, v = (x.to(question.dtype) for x in self.inside.project(question))  # a norm may widen them
        return self.split(q, k, v, split)


def intercept(
    subject: Subject, question: Question
) -> tuple[Answer, AttentionCall, list[LayerNumbers]] | None:
    """Run a module and return its answer, its one attention call, and the numbers of its layers.

    None if it fails, or if it makes another number of calls.
    """
    from regard.recorder.attention_call import AttentionCall

    runnable, replies = subject.runnable(question.dtype), list[Reply]()
    assert runnable is not None
    module = copy_module(runnable)
    choose_implementation(module)
    with _layer_numbers(module) as layers:
        try:
            heard = collect_calls(module, lambda: replies.append(subject.run(question, module=module)))
        except (RuntimeError, ValueError, TypeError, IndexError):
            return None
    answer = replies[0].answer if replies else None
    if answer is None or len(heard) != 1 or not isinstance(call := heard[0][1], AttentionCall):
        return None
    return answer, call, layers


def collect_calls(module: nn.Module, run: Callable[[], Any]) -> list[tuple[str, Call]]:
    """Run a module by `run` and return its attention calls, each with the name of the module that made it."""
    # Here, since code whose weights explain it needs no recorder, half a second of imports.
    from regard.recorder.call_receiver import CallReceiver
    from regard.recorder.observation import observed

    calls: list[tuple[str, Call]] = []

    class CallCollector(CallReceiver):
        """Keeps every attention call of one run."""

        def record(self, layer_id: LayerId, call: Call) -> Call:
            calls.append((layer_id.name, call))
            return call

    with torch.no_grad(), observed(module, CallCollector()):
        run()
    return calls


def find_inside(subject: Subject, cases: Cases) -> tuple[InsideSubject, InsideWiring] | None:
    """Find a module's queries, keys, values and merged heads among the numbers of its layers.

    None if its attention cannot be intercepted, or if one of them is nowhere in the order of its channels.
    """
    limit, crossed = cases.max_length or 64, subject.inputs != "x"
    lengths = [n for n in _LENGTHS if n <= limit] or [limit]
    # In float32, where code that widens or narrows its scores on the way does nothing.
    question = cases.plain(B=1, T=lengths[0], S=lengths[-1] if crossed else None, seed=90).to(torch.float32)
    if crossed and subject.run(question).answer is None:  # it wants equal lengths
        question = cases.plain(B=1, T=lengths[0], seed=90).to(torch.float32)
    if (intercepted := intercept(subject, question)) is None:
        return None
    answer, call, layers = intercepted
    places: dict[str, Place] = {}
    for role, tensor in zip((*_ROLES, "merged"), (call.q, call.k, call.v, call.output), strict=True):
        wanted = tensor.transpose(1, 2).flatten(2)[0].float()  # (T, width)
        if (place := _find(wanted, layers, role)) is not None:
            places[role] = place
        elif role != "merged" or not _same(*(x.nan_to_num() for x in (wanted, answer.output[0].float()))):
            return None
    inside = InsideSubject(**vars(subject), places=places)
    inside.sources = _find_sources(inside, question)
    H, G, width = call.q.shape[1], call.k.shape[1], question.q.shape[-1]
    return inside, InsideWiring(H, G, splits=True, width=width, inside=inside)


def _find(wanted: Tensor, layers: list[LayerNumbers], role: str) -> Place | None:
    """Return the last place of these numbers (T, width), channel by channel in their order.

    Queries and keys may have been multiplied by one factor on the way.
    """
    wanted, (T, width) = wanted.nan_to_num(), wanted.shape
    side, is_scaled = "given" if role == "merged" else "output", role in ("query", "key")
    for i, layer in reversed(list(enumerate(layers))):
        tensor = getattr(layer, side)
        sizes = tensor.shape
        axes = [(a, 1) for a in range(tensor.ndim) if sizes[a] == T]
        axes += [(a, 2) for a in range(1, tensor.ndim - 1) if sizes[a] * sizes[a + 1] == T]
        for first, count in axes:
            rows = _rows(tensor, first, count).float().nan_to_num()  # as of a row without a visible key
            if rows.shape[1] < width:
                continue
            a, b = (F.normalize(x, dim=0) if is_scaled else x for x in (wanted, rows))
            channels = torch.cdist(a.mT, b.mT).argmin(1)
            found = rows[:, channels]
            found = found * (wanted.norm() / found.norm()) if is_scaled else found
            if bool((channels.diff() > 0).all()) and _same(found, wanted):
                return Place(i, layer.path, side, first, count, tuple(channels.tolist()))
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-5 * b.abs().max())


def _find_sources(inside: InsideSubject, question: Question) -> tuple[int, int, int] | None:
    """Return which input queries, keys and values are made of; None if a role is not made of just one."""
    if question.k is question.q:
        return 0, 1, 2
    names = "qk" if question.k is question.v else "qkv"
    before = inside.project(question)
    sources: list[list[int]] = [[], [], []]  # for each role, the inputs that it changes with
    for i, name in enumerate(names):
        moved = getattr(question, name) + 1.0
        changed = replace(question, **{name: moved})
        changed = replace(changed, v=moved) if name == "k" and question.k is question.v else changed
        for role, (old, new) in enumerate(zip(before, inside.project(changed), strict=True)):
            sources[role] += [i] if not torch.allclose(old, new) else []
    if sources == [[0], [1], [len(names) - 1]]:
        return 0, 1, 2
    if any(len(inputs) != 1 for inputs in sources) or len(names) == 2:
        return None
    return sources[0][0], sources[1][0], sources[2][0]
