"""The same weights for two modules: which parameter of one is which of the other?

Parameters are matched by name, by the role that their names say (`q_proj` and `W_query`; a fused `qkv` has
three), or by order. Only names, and roles of layers of the same kind, show what the author means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.checker.subject import vocabulary
from regard.checker.subject.subject import Subject

Role = tuple[str, bool]  # "query", "key", …; and whether it is a bias


@dataclass(frozen=True)
class WeightMatch:
    """A way to copy the weights of one module into another.

    `certain` says whether the author's names show that the weights belong together; otherwise a different
    output proves nothing. `pairs` are the names of parameters that then hold the same values.
    """

    copies: list[tuple[Tensor, Tensor]]  # where to and where from
    certain: bool
    note: str = ""
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def apply(self, *subjects: Subject) -> None:
        """Copy the weights into the modules of these subjects."""
        with torch.no_grad():
            for target, source in self.copies:
                target.copy_(source)
        for subject in subjects:
            forget_copies(subject)


def forget_copies(subject: Subject) -> None:
    """Drop the copies of a module in other precisions, after its weights were changed."""
    subject._copies.clear()


def find_matches(module: nn.Module | None, source: nn.Module | None) -> Iterator[WeightMatch]:
    """Yield the ways to give `module` the weights of `source`, the most certain first."""
    own, theirs = _parameters(module), _parameters(source)
    if {name: p.shape for name, p in own.items()} == {name: p.shape for name, p in theirs.items()}:
        copies = [(p, theirs[name]) for name, p in own.items()]
        yield WeightMatch(copies, certain=True, pairs=[(name, name) for name in own])
        return
    yield from _match_roles(module, source)
    if [p.shape for p in own.values()] == [p.shape for p in theirs.values()]:
        pairs = list(zip(own, theirs, strict=True))
        shown = ", ".join(f"{a} = {b}" for a, b in pairs[:4]) + (", …" if len(pairs) > 4 else "")
        copies = list(zip(own.values(), theirs.values(), strict=True))
        yield WeightMatch(copies, certain=False, note=f"weights matched in order: {shown}", pairs=pairs)


def describe_mismatch(module: nn.Module | None, source: nn.Module | None) -> str:
    """Name the first parameters of two modules that have no partner of the same name and shape."""
    texts = []
    own, theirs = _parameters(module), _parameters(source)
    for these, others in ((own, theirs), (theirs, own)):
        alone = [n for n, p in these.items() if n not in others or others[n].shape != p.shape]
        shown = [f"{name} {tuple(these[name].shape)}" for name in alone[:3]]
        texts.append(", ".join(shown) + (", …" if len(alone) > 3 else "") if shown else "nothing")
    return f"one has {texts[0]} where the other has {texts[1]}"


def _parameters(module: nn.Module | None) -> dict[str, Tensor]:
    return {} if module is None else {name: p.detach() for name, p in module.named_parameters()}


def _match_roles(module: nn.Module | None, source: nn.Module | None) -> Iterator[WeightMatch]:
    """Yield the matches by role: as they are, and with matrices transposed (`x @ W` against nn.Linear)."""
    same_kind = _kinds(module) == _kinds(source)
    # Conv1D of GPT-2 and a plain `x @ W` store (in, out): their fused matrices are cut along the columns.
    for axis in (0, -1):  # along which a fused parameter is cut
        own, theirs = _by_role(module, 0), _by_role(source, axis)
        if not own or own.keys() != theirs.keys():
            return
        for transposed in (False, True):
            matrices = {role for role in own if transposed and theirs[role].ndim == 2}
            copies = [(own[role], theirs[role].mT if role in matrices else theirs[role]) for role in own]
            if all(target.shape == value.shape for target, value in copies):
                how = ", transposed" if transposed else ""
                certain = same_kind and not transposed and axis == 0
                yield WeightMatch(copies, certain, f"weights matched by the roles in their names{how}")


def _by_role(module: nn.Module | None, axis: int) -> dict[Role, Tensor]:
    """Return views of a module's parameters by their roles; {} unless each has a role of its own."""
    views: dict[Role, Tensor] = {}
    for name, parameter in _parameters(module).items():
        role, bias = vocabulary.projection(name), "bias" in name.rpartition(".")[2]
        parts = {"qkv": ("query", "key", "value"), "kv": ("key", "value")}.get(role or "", (role,))
        # chunk may return fewer parts than it was asked for; such a parameter holds no fused projections.
        for part, view in zip(parts, parameter.chunk(len(parts), axis), strict=False):
            if part is None or (part, bias) in views:
                return {}
            views[part, bias] = view
    return views


def _kinds(module: nn.Module | None) -> set[tuple[bool, bool]]:
    """Return the kinds of a module's parameters: whether they are fused, and whether nn.Linear's."""
    kinds = set()
    for name in _parameters(module):
        assert module is not None
        linear = isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear)
        kinds.add((vocabulary.projection(name) in ("qkv", "kv"), linear))
    return kinds
