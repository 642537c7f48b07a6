"""A hybrid of linear and softmax attention: captured, certified and pooled, against its plain forward pass.

    PYTHONPATH=src python -m benchmarks.hybrid                                    32 layers, 131,072 tokens
    PYTHONPATH=src python -m benchmarks.hybrid --layers 4 --tokens 512 --device cpu --small

It needs PyTorch alone: three of four layers compute a gated delta rule, under the name by which libraries
call it, and the fourth is causal attention. With `--row` it times one row of 65,536 tokens on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from benchmarks.measure import machine

CHUNK = 64


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, use_qk_l2norm_in_kernel: bool = True
) -> tuple[Tensor, None]:
    """The gated delta rule in chunks, for q, k, v (B, T, H, D) and g, beta (B, T, H): the output."""
    B, T, H, D = q.shape
    dtype, padding = q.dtype, -T % CHUNK
    q, k, v = (F.pad(x.transpose(1, 2).float(), (0, 0, 0, padding)) for x in (q, k, v))
    g, beta = (F.pad(x.transpose(1, 2).float(), (0, padding)) for x in (g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    q, k, v = (x.reshape(B, H, -1, CHUNK, x.shape[-1]) for x in (q * D**-0.5, k, v))
    g, beta = (x.reshape(B, H, -1, CHUNK) for x in (g, beta))
    total = g.cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, -torch.inf).exp()
    system = (k * beta.unsqueeze(-1)) @ k.mT * decay
    written = torch.cat([v, k * total.exp().unsqueeze(-1)], -1) * beta.unsqueeze(-1)
    written = torch.linalg.solve_triangular(system, written, upper=False, unitriangular=True)
    new, read = written.split([v.shape[-1], D], -1)
    attention = q @ k.mT * decay
    q, end = q * total.exp().unsqueeze(-1), k * (total[..., -1:] - total).exp().unsqueeze(-1)
    state, output = q.new_zeros(B, H, D, v.shape[-1]), torch.empty_like(v)
    for c in range(q.shape[2]):
        fresh = new[:, :, c] - read[:, :, c] @ state
        output[:, :, c] = q[:, :, c] @ state + attention[:, :, c] @ fresh
        state = state * total[:, :, c, -1].exp()[..., None, None] + end[:, :, c].mT @ fresh
    return output.flatten(2, 3)[:, :, :T].transpose(1, 2).to(dtype), None


class DeltaNet(nn.Module):
    """A layer that computes a gated delta rule."""

    def __init__(self, width: int, key_heads: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.key_heads, self.heads, self.head_width = key_heads, heads, head_width
        self.qk = nn.Linear(width, 2 * key_heads * head_width, bias=False)
        self.v = nn.Linear(width, heads * head_width, bias=False)
        self.gates = nn.Linear(width, 2 * heads, bias=False)
        self.out = nn.Linear(heads * head_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k = (y.view(B, T, self.key_heads, -1) for y in self.qk(x).chunk(2, -1))
        group = self.heads // self.key_heads
        q, k = (y.repeat_interleave(group, 2) for y in (q, k))
        a, b = self.gates(x).float().chunk(2, -1)
        output, _ = chunk_gated_delta_rule(
            q, k, self.v(x).view(B, T, self.heads, -1), -0.1 * F.softplus(a), b.sigmoid()
        )
        return self.out(output.flatten(2))


class Attention(nn.Module):
    """A layer of causal attention with grouped heads."""

    def __init__(self, width: int, kv_heads: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.kv_heads, self.heads, self.head_width = kv_heads, heads, head_width
        self.q = nn.Linear(width, heads * head_width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.heads, -1).transpose(1, 2)
        k, v = (y.view(B, T, self.kv_heads, -1).transpose(1, 2) for y in self.kv(x).chunk(2, -1))
        output = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(output.transpose(1, 2).flatten(2))


class Hybrid(nn.Module):
    """Blocks of a mixer and an MLP; every fourth mixer is attention."""

    def __init__(self, layers: int, width: int, kv_heads: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.layers = nn.ModuleList()
        for number in range(layers):
            kind: type[nn.Module] = Attention if number % 4 == 3 else DeltaNet
            mlp = nn.Sequential(
                nn.Linear(width, 2 * width, bias=False), nn.SiLU(), nn.Linear(2 * width, width, bias=False)
            )
            mixer = kind(width, kv_heads, heads, head_width)
            self.layers.append(nn.ModuleDict({"mixer": mixer, "mlp": mlp, "norm": nn.RMSNorm(width)}))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer["mixer"](layer["norm"](x))
            x = x + layer["mlp"](layer["norm"](x))
        return x


def seconds(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """How long a call takes, and what it returns."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


@torch.no_grad()
def run(layers: int, tokens: int, device: str, small: bool) -> dict[str, Any]:
    """Run the hybrid plainly, captured, and with overviews of every layer."""
    torch.manual_seed(0)
    sizes = (64, 2, 4, 16) if small else (2048, 16, 32, 128)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Hybrid(layers, *sizes).to(device, dtype).eval()
    ids = torch.randint(0, 1000, (1, tokens), device=device)
    model(ids[:, : min(tokens, 1024)])
    plain, output = seconds(lambda: model(ids), device)
    captured, seen = seconds(lambda: regard.capture(model, inputs=(ids,)), device)
    with regard.capture(model) as again:
        same = bool(torch.equal(model(ids[:, :256]), model(ids[:, :256]))) and len(again) == layers
    count = min(256, tokens)
    pooled, _ = seconds(lambda: [m.pool(count, count) for m in seen.maps], device)
    row, _ = seconds(lambda: seen.maps[0][0, 0, tokens - 1], device)
    return {
        **machine(device),
        "layers": layers,
        "tokens": tokens,
        "plain_s": plain,
        "capture_s": captured,
        "capture_ratio": captured / plain,
        "overviews_s": pooled,
        "overviews_ratio": pooled / plain,
        "row_ms": row * 1e3,
        "certified": sum(x.certified for x in seen.certificate),
        "worst": max(x.tolerance_used for x in seen.certificate),
        "stored_gib": seen.nbytes / 2**30,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None,
        "finite": bool(output.isfinite().all()),
        "same": same,
    }


@torch.no_grad()
def row(tokens: int) -> dict[str, Any]:
    """Time one row of the map of a gated delta rule, of Mamba-2's kind and of KDA, on one core."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    D, times = 128, {}
    kinds: dict[str, dict[str, Any]] = {
        "gated delta rule": {"delta_rule": True, "qk_norm": 1e-6},
        "Mamba-2": {},
        "KDA": {"delta_rule": True, "qk_norm": 1e-6},
    }
    for name, options in kinds.items():
        shape = (1, 1, tokens, D) if name == "KDA" else (1, 1, tokens)
        m = regard.maps.linear_attention_map(
            torch.randn(1, 1, tokens, D),
            torch.randn(1, 1, tokens, D),
            decay=-0.01 * torch.rand(shape),
            beta=torch.rand(1, 1, tokens),
            **options,
        )
        times[name] = min(seconds(lambda m=m: m[0, 0, tokens - 1], "cpu")[0] for _ in range(5)) * 1e3
    return {**machine("cpu"), "tokens": tokens, "width": D, "row_ms": times}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="small widths")
    parser.add_argument("--row", action="store_true", help="time one row of 65,536 tokens on one core")
    options = parser.parse_args()
    result = (
        row(65_536) if options.row else run(options.layers, options.tokens, options.device, options.small)
    )
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
