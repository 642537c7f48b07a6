"""The attentions inside a larger module: a model or a block is not checked as a whole."""

from __future__ import annotations

import re

from torch import nn

_ATTENTION = re.compile(r"attention|attn", re.I)
# Karpathy's lecture builds its attention of a list of `Head`.
_HEAD = re.compile(r"head(?!s)$|single", re.I)


def attention_parts(module: nn.Module) -> list[str]:
    """Return the paths of the outermost submodules called attention; the heads of a list do not count."""
    found: list[str] = []
    for path, part in module.named_modules():
        name = type(part).__name__
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and not inside and _ATTENTION.search(name) and not _HEAD.search(name):
            found.append(path)
    return found


def model_sentence(parts: list[str]) -> str:
    """Return what to do with a model that holds these attentions."""
    shown = re.sub(r"\.(\d+)", r"[\1]", parts[0])
    return f"this is a model: hand over `.{shown}`, or use regard.capture to see its attention"
