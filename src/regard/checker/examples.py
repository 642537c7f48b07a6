"""Correct implementations, written the usual way, into which a mistake of the catalogue can be planted.

They are source text, so that `regard explain-mistake` can show the program that it runs.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

from regard.checker.distributed_examples import DISTRIBUTED_NAMES, DISTRIBUTED_TEMPLATES
from regard.checker.kernel_examples import KERNEL_NAMES, KERNEL_TEMPLATES
from regard.checker.mistakes.mistake import Mistake, Swap

FUNCTION = """\
import math
import torch
import torch.nn.functional as F


def attention(q, k, v, mask=None, is_causal=False, window=None, softcap=None):
    # window: how many keys a query sees, its own included
    T, S, D = q.shape[-2], k.shape[-2], q.shape[-1]
    if q.ndim == 4 and k.shape[1] < q.shape[1]:  # grouped heads
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    at, keys = torch.arange(S - T, S)[:, None], torch.arange(S)
    allowed = torch.ones(T, S, dtype=torch.bool)
    if is_causal:
        allowed = keys <= at
    if window is not None:
        allowed = allowed & (keys > at - window)
    bias = 0.0
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        bias = mask
    unseen = ~allowed.any(-2).unsqueeze(-1)
    k, v = k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0)
    scores = q @ k.transpose(-2, -1)
    scores = scores / math.sqrt(D)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + bias
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return weights @ v
"""

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F


class CausalHead(nn.Module):
    def __init__(self, d_model, head_size, max_len, dropout=0.0):
        super().__init__()
        self.query = nn.Linear(d_model, head_size)
        self.key = nn.Linear(d_model, head_size)
        self.value = nn.Linear(d_model, head_size)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(max_len, max_len, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        if T > len(self.mask):
            raise ValueError(f"x: expected at most {len(self.mask)} tokens, got {T}")
        q, k, v = self.query(x), self.key(x), self.value(x)
        D = q.shape[-1]
        scores = q @ k.transpose(-2, -1)
        scores = scores / D**0.5
        allowed = self.mask[:T, :T]
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        out = weights @ v
        return out
"""

LAYER = """\
import torch
from torch import nn
import torch.nn.functional as F


class CausalAttention(nn.Module):
    def __init__(self, d_model, num_heads, max_len, num_kv_heads=None, dropout=0.0):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, self.num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(d_model, self.num_kv_heads * self.head_dim)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(max_len, max_len, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        H, G, D = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.view(B, T, H, D).transpose(1, 2)
        k = k.view(B, T, G, D).transpose(1, 2)
        v = v.view(B, T, G, D).transpose(1, 2)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache, S = (k, v), k.shape[2]
        if S > len(self.mask):
            raise ValueError(f"x: expected at most {len(self.mask)} tokens, got {S}")
        k, v = k.repeat_interleave(H // G, dim=1), v.repeat_interleave(H // G, dim=1)
        scores = q @ k.transpose(-2, -1)
        scores = scores / D**0.5
        allowed = self.mask[S - T : S, :S]
        scores = scores.masked_fill(~allowed, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)
        out = weights @ v
        out = out.transpose(1, 2).reshape(B, T, C)
        out = self.out_proj(out)
        return out, cache
"""

ROTARY = """\
import torch
from torch import nn
import torch.nn.functional as F


def rotate(x, start):
    T, D = x.shape[-2:]
    frequencies = 10000.0 ** (-torch.arange(0, D, 2, device=x.device).double() / D)
    angles = torch.arange(start, start + T, device=x.device)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class CausalRotaryAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        start = 0 if cache is None else cache[0].shape[2]
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, start), rotate(k, start)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache, S = (k, v), k.shape[2]
        allowed = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out_proj(out.transpose(1, 2).reshape(B, T, C)), cache
"""

ALIBI = """\
import torch
from torch import nn
import torch.nn.functional as F


class CausalAlibiAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads)])
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1)
        scores = scores / self.head_dim**0.5
        positions = torch.arange(T, device=x.device)
        distance = positions[:, None] - positions
        scores = scores - self.slopes[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out = weights @ v
        return self.out_proj(out.transpose(1, 2).reshape(B, T, C))
"""

TEMPLATES = {"function": FUNCTION, "head": HEAD, "layer": LAYER, "rotary": ROTARY, "alibi": ALIBI}
TEMPLATES |= KERNEL_TEMPLATES
NAMES = {
    "function": "attention",
    "head": "CausalHead",
    "layer": "CausalAttention",
    "rotary": "CausalRotaryAttention",
    "alibi": "CausalAlibiAttention",
}
NAMES |= KERNEL_NAMES


# Those that run on several processes, too.
ALL_TEMPLATES = TEMPLATES | DISTRIBUTED_TEMPLATES
ALL_NAMES = NAMES | DISTRIBUTED_NAMES


def plant_mistake(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` with a mistake in it."""
    return _swapped(mistake, kind, mistake.plants[kind])


def mended_program(mistake: Mistake, kind: str) -> str:
    """Return the source of the template `kind` without the mistake: mostly the template itself."""
    return _swapped(mistake, kind, mistake.mended.get(kind, ()))


def _swapped(mistake: Mistake, kind: str, swaps: tuple[Swap, ...]) -> str:
    text = ALL_TEMPLATES[kind]
    for old, new in swaps:
        if old not in text:
            raise ValueError(f"{mistake.name}: the {kind} template has no {old!r}")
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def loaded_program(source: str, name: str) -> Iterator[Any]:
    """Yield the function or class `name` of a program, whose source can be read as if it were a file."""
    file = f"<regard example {name}>"
    module = types.ModuleType(file)
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[file] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
        yield getattr(module, name)
    finally:
        del sys.modules[file], linecache.cache[file]


def example_program(mistake: Mistake) -> str:
    """Return a program that contains the mistake and prints the report of `regard.check`."""
    kind = next(iter(mistake.plants))
    name, source = ALL_NAMES[kind], plant_mistake(mistake, kind)
    if kind not in DISTRIBUTED_TEMPLATES:
        return f"{source}\n\nfrom regard import check\n\nprint(check({name}))\n"
    call = f"    from regard import check\n\n    print(check({name}, processes=2))\n"
    return f'{source}\n\nif __name__ == "__main__":  # every process imports this file\n{call}'
