"""Which modules of a model mix tokens, so that none that was not captured goes unnamed.

A module mixes tokens if what it gives for one position depends on others: attention of any kind, recurrent
layers, state-space models, linear attention, convolutions along the text. That is told from the names that
people give to such classes, from what their code calls, and from the blocks of a stack: where one block holds
attention, its siblings hold something in its place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch import nn

from regard.recorder.places import called_names

WORDS = re.compile(
    r"attention|attn|mamba|ssm|ssd|statespace|deltanet|deltarule|delta_net|recurrent|rglru|lstm|gru(?!n)|rnn"
    r"|retention|rwkv|hyena|shortconv|convolution|conv1d|conv2d|conv3d|convmodule|convblock|depthwise|dwconv"
    r"|lightning|linearattn|fourier|tokenmix|mixer|xlstm|kimidelta|longconv|s4",
    re.IGNORECASE,
)
"""What the names of classes that mix tokens have in them."""
HARMLESS = re.compile(
    r"mlp|ffn|feedforward|feed_forward|moe|expert|router|gate(?!d)|norm|dropout|droppath|linear|identity"
    r"|embedding|positional|rotary|relu|gelu|silu|swish|tanh|activation|intermediate|output|pooler|mask"
    r"|config|loss|head$",
    re.IGNORECASE,
)
"""What the names of classes that treat every token alone have in them."""
FUSED = (
    nn.MultiheadAttention,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
)  # leave their kernels if hooked
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}


def mixes_tokens(module: nn.Module) -> bool:
    """Whether a module mixes tokens by itself, as far as its class tells."""
    name = type(module).__name__
    if isinstance(module, CONVOLUTIONS):
        # A convolution whose steps are as long as its kernel cuts patches, and does not mix them.
        return any(size > step for size, step in zip(module.kernel_size, module.stride, strict=True))
    if isinstance(module, nn.RNNBase):
        return True
    if type(module).__module__.startswith("torch.") or name == "Conv1D":  # GPT-2's name for a linear layer
        return False
    if HARMLESS.search(name) and not re.search("attention|attn|mixer", name, re.IGNORECASE):
        return False
    return bool(WORDS.search(name)) or _multiplies_after_softmax(cast(Any, type(module)))


@functools.cache
def _multiplies_after_softmax(kind: Any) -> bool:
    """Whether the methods of a class call both a softmax and a product of two activations."""
    names = called_names(kind)
    return "softmax" in names and bool(PRODUCTS & names)


class TokenMixers:
    """The modules of a model that mix tokens, and which of them ran."""

    def __init__(self, model: nn.Module) -> None:
        self.kinds = {name: type(module).__name__ for name, module in model.named_modules()}
        self.modules = dict(model.named_modules())
        self.mixing = [name for name, module in self.modules.items() if name and mixes_tokens(module)]
        self.blocks = {
            name: [f"{name}.{child}" for child, _ in module.named_children()]
            for name, module in self.modules.items()
            if isinstance(module, nn.ModuleList) and len(module) > 1
        }
        self.ran: set[str] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, it is noted which of the modules run."""
        names = {*self.mixing, *(block for blocks in self.blocks.values() for block in blocks)}
        with ExitStack() as undo:
            for name in names:
                if not isinstance(self.modules[name], FUSED):
                    note = functools.partial(_note, self.ran, name)
                    undo.callback(self.modules[name].register_forward_pre_hook(note).remove)
            yield

    def missing(self, heard: Collection[str]) -> dict[str, str]:
        """The modules that ran, mix tokens and were not heard: each with its class."""
        found = [
            name
            for name in self.mixing
            if name in self.ran
            and not any(_related(name, x) for x in heard)
            and not (isinstance(self.modules[name], CONVOLUTIONS) and not self._beside_attention(name, heard))
        ]
        for blocks in self.blocks.values():
            attending = {self.kinds[block] for block in blocks if any(_inside(x, block) for x in heard)}
            alike = [block for block in blocks if self.kinds[block] in attending]
            found += [block for block in alike if self._unexplained(block, heard, found)]
        innermost = [name for name in found if not any(_inside(x, name) for x in found if x != name)]
        return {name: self.kinds[name] for name in self.modules if name in innermost}

    def _beside_attention(self, name: str, heard: Collection[str]) -> bool:
        """Whether a module stands in a stack of blocks in which attention was heard."""
        return any(
            _inside(name, stack) and any(_inside(x, stack) for x in heard) for stack in self.blocks if stack
        )

    def _unexplained(self, block: str, heard: Collection[str], found: Collection[str]) -> bool:
        """Whether a block ran that is not known to treat every token alone, and shows no mixer."""
        if block not in self.ran or any(_related(block, x) for x in (*heard, *found)):
            return False
        children = [type(child).__name__ for child in self.modules[block].children()]
        return not all(HARMLESS.search(kind) for kind in children) if children else False


def _note(ran: set[str], name: str, *_: Any) -> None:
    ran.add(name)


def _inside(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _related(name: str, other: str) -> bool:
    """Whether one of two modules is inside the other."""
    return _inside(name, other) or _inside(other, name)
