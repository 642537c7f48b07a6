"""Notes which modules that mix tokens have run, so that those which were not captured are reported.

A module mixes tokens if its output at one position depends on other positions: attention of any kind,
recurrent layers, state-space models, linear attention, convolutions along the text. Such modules are found by
the names of their classes, by what their code calls, and by the blocks of a stack: where one block holds
attention, its siblings hold something in its place.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import nn

from regard.recorder.sources.structure_of_models.code_names import called_names, module_names
from regard.recorder.sources.structure_of_models.model_parts import KnownModel, is_inside
from regard.recorder.sources.structure_of_models.module_kinds import (
    ATTENTION_FUNCTIONS,
    ATTENTION_KINDS,
    CONVOLUTIONS,
    FUSED,
    MIXERS,
    OTHER_MIXERS,
    PRODUCTS,
    SCANS,
    SUMS,
    TOKENWISE,
    computes_attention,
    has_softmax,
    kind_of,
)
from regard.support.override import MethodWrappers


class TokenMixers:
    """The modules of a model that mix tokens, and which of them have run."""

    def __init__(self, model: KnownModel) -> None:
        self.model, self.modules = model, model.modules
        self.prefixes, self.mixing, self.blocks, self.hidden, self.known = model.parts.mixing
        self.ran: set[str] = set()
        self.ran_elsewhere: set[str] = set()  # in threads or contexts that this capture does not hear
        self.other_users: set[int] = set()  # threads that run the whole model for themselves

    def watch(self, wrappers: MethodWrappers) -> None:
        """Add wrappers that note which of the modules run."""
        names = {*self.mixing, *(block for blocks in self.blocks.values() for block in blocks)}
        for name in ("", *names):
            if not isinstance(self.modules[name], (*FUSED, torch.jit.ScriptModule)):
                note = functools.partial(_note, self.ran, name)
                elsewhere = functools.partial(self._note_elsewhere, name)
                wrappers.add(self.modules[name], "forward", note, elsewhere)

    def _note_elsewhere(self, name: str) -> None:
        """Note that a module, or the whole model, ran where this capture does not hear it."""
        thread = threading.get_ident()
        if not name:
            self.other_users.add(thread)
        elif thread not in self.other_users:
            self.ran_elsewhere.add(name)

    @property
    def ran_only_elsewhere(self) -> bool:
        """Whether the model ran in other threads or contexts, and nothing of it in this one."""
        return not self.ran and bool(self.ran_elsewhere or self.other_users)

    def unheard(self, heard: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the modules that ran, mix tokens and are not in `heard`: the class of each, by its name.

        The first are attention, or may be; the second mix tokens in other ways, as convolutions do.
        """
        key = (frozenset(self.ran), frozenset(self.ran_elsewhere), frozenset(heard))
        attention, others = self.known.get(key, lambda: self._unheard(heard))
        return dict(attention), dict(others)

    def _unheard(self, heard: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
        missing = [
            name
            for name in self.mixing
            if name in self.ran | self.hidden | self.ran_elsewhere
            and not any(
                is_inside(x, name) or (is_inside(name, x) and not self._mixes_beside(name)) for x in heard
            )
            and not (isinstance(self.modules[name], CONVOLUTIONS) and not self._beside_attention(name, heard))
        ]
        for blocks in self.blocks.values():
            if any(is_inside(x, block) for block in blocks for x in heard):
                missing += [block for block in blocks if self._unexplained(block, heard, missing)]
        others = [name for name in missing if self._is_other(name)]
        attention = _innermost([name for name in missing if name not in others])
        # Mamba's short convolution is a part of it.
        others = [
            x for x in _innermost(missing) if x in others and not any(is_inside(x, y) for y in attention)
        ]
        described = ({x: self._describe(x) for x in self.modules if x in y} for y in (attention, others))
        missing_attention, other_mixers = described
        return missing_attention, other_mixers

    def _is_other(self, name: str) -> bool:
        """Whether a module that mixes tokens is certainly not attention."""
        module = self.modules[name]
        if isinstance(module, (*CONVOLUTIONS, nn.RNNBase)):
            return True
        kind = kind_of(module).removeprefix(self.prefixes.get(type(module).__module__, ""))
        if isinstance(module, torch.jit.ScriptModule) or not OTHER_MIXERS.search(kind):
            return False
        names = module_names(module)
        computes = bool(ATTENTION_FUNCTIONS & names) or has_softmax(names)
        return not ATTENTION_KINDS.search(kind) and not computes

    def _describe(self, name: str) -> str:
        """Return the class of a module, and whether it ran only where this capture does not hear it."""
        elsewhere = name in self.ran_elsewhere and name not in self.ran
        return kind_of(self.modules[name]) + (", which ran in another thread" if elsewhere else "")

    def _mixes_beside(self, name: str) -> bool:
        """Whether a module inside one that was heard mixes tokens beside the attention that was heard."""
        module = self.modules[name]
        match = MIXERS.search(kind_of(module).removeprefix(self.prefixes.get(type(module).__module__, "")))
        if isinstance(module, nn.RNNBase) or match is None:
            return isinstance(module, nn.RNNBase)
        return not match[0].lower().startswith("att") or computes_attention(module_names(module))

    def _beside_attention(self, name: str, heard: Collection[str]) -> bool:
        """Whether a module is in a stack of blocks in which attention was heard."""
        return any(
            is_inside(name, stack) and any(is_inside(x, stack) for x in heard)
            for stack in self.blocks
            if stack
        )

    def _unexplained(self, block: str, heard: Collection[str], missing: Collection[str]) -> bool:
        """Whether a block ran that may mix tokens although no mixer was found in it."""
        module = self.modules[block]
        if {self.modules[x] for x in heard if x in self.modules} & set(module.modules()):
            return False  # it shares its attention with another block
        if block not in self.ran or any(_related(block, x) for x in (*heard, *missing)):
            return False
        if TOKENWISE.search(kind_of(module)) or type(module).__module__.startswith("torch."):
            return False
        # It hides, as by compiled code, what another module of its class was heard to do.
        if any(type(self.modules[x]) is type(module) for x in heard if x in self.modules):
            return True
        tokenwise = all(TOKENWISE.search(kind_of(child)) for child in module.children())
        names = called_names(cast(Any, type(module)))
        return not tokenwise or has_softmax(names) or bool((SCANS | PRODUCTS | SUMS) & names)


def _note(ran: set[str], name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward` and note that it ran."""
    ran.add(name)
    return forward(*args, **kwargs)


def _innermost(names: Collection[str]) -> list[str]:
    """Return the modules that have no other one of them inside."""
    return [name for name in names if not any(is_inside(x, name) for x in names if x != name)]


def _related(name: str, other: str) -> bool:
    """Whether one of two modules is inside the other."""
    return is_inside(name, other) or is_inside(other, name)
