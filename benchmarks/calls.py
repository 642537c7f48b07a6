"""Short calls of `attend` beside PyTorch's own: a few tokens, one step of decoding, grouped heads, windows.

Such calls take as long as the host needs to make them. Each time is therefore that of many calls in a row,
and each ratio the median over rounds in which all are measured in turn, with the least and the greatest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from benchmarks.measure import peak_mib, spread
from regard.attention.backends.fused_attention import SETTLED

Call = Callable[[], Any]
ROUNDS = 9
SECONDS = 0.05  # that one call is repeated for in a round


def call_cases(device: str) -> list[Callable[[], list[dict[str, Any]]]]:
    """The cases for a device; each returns its rows."""
    sizes = [(64, 8, 8, 64), (1024, 32, 32, 128), (4096, 32, 32, 128), (4096, 32, 8, 128)]
    if device == "cpu":
        return [
            lambda: short_calls(device, *sizes[0]),
            lambda: decoding(device, 4096),
            lambda: window_against_dense_mask(1024),
            lambda: window_against_dense_mask(4096),
        ]
    cases = [lambda size=size: short_calls(device, *size) for size in sizes]
    return [*cases, lambda: decoding(device, 4096), lambda: decoding(device, 65536)]


def short_calls(device: str, T: int, heads: int, kv_heads: int, D: int) -> list[dict[str, Any]]:
    """Causal attention and a window of a quarter of the tokens, beside PyTorch's causal attention."""
    q, k, v = _tensors(device, heads, kv_heads, T, T, D)
    window = regard.causal & regard.window(T // 4)
    calls: dict[str, Call] = {
        "sdpa": lambda: sdpa(q, k, v, is_causal=True, enable_gqa=heads != kv_heads),
        "attend": lambda: regard.attend(q, k, v, mask=regard.causal),
        f"attend, window({T // 4})": lambda: regard.attend(q, k, v, mask=window),
    }
    return _measure(calls, q, k, device, "causal")


def decoding(device: str, keys: int) -> list[dict[str, Any]]:
    """One query over a cache, 32 heads on 8: a full one, whose length has settled, and one that grows."""
    q, k, v = _tensors(device, 32, 8, 1, keys + 4096, 128)
    lengths = iter(range(keys, keys + 4096))

    def grow(attend: Callable[[Tensor, Tensor], Tensor]) -> Call:
        def step() -> Tensor:
            nonlocal lengths
            length = next(lengths, None)
            if length is None:
                lengths = iter(range(keys, keys + 4096))
                length = next(lengths)
            return attend(k[:, :, :length], v[:, :, :length])

        return step

    full_k, full_v = k[:, :, :keys].contiguous(), v[:, :, :keys].contiguous()
    full_calls: dict[str, Call] = {
        "sdpa": lambda: sdpa(q, full_k, full_v, enable_gqa=True),
        "attend": lambda: regard.attend(q, full_k, full_v, mask=regard.causal),
    }
    growing: dict[str, Call] = {
        "sdpa, a key more each step": grow(lambda k, v: sdpa(q, k, v, enable_gqa=True)),
        "attend, a key more each step": grow(lambda k, v: regard.attend(q, k, v, mask=regard.causal)),
    }
    if device == "cpu":
        return _measure(full_calls | growing, q, full_k, device, "one query")
    # In turn with a cache that grows, no length settles.
    calls = {"sdpa": full_calls["sdpa"], "attend, first calls of a length": full_calls["attend"], **growing}
    rows = _measure(calls, q, full_k, device, "one query")
    for _ in range(SETTLED + 1):
        full_calls["attend"]()
    return rows + _measure(full_calls, q, full_k, device, "one query, settled length")


def window_against_dense_mask(T: int) -> list[dict[str, Any]]:
    """A window of 256 on a CPU, beside PyTorch's kernel with the same mask as a matrix."""
    q, k, v = _tensors("cpu", 12, 12, T, T, 64)
    mask = regard.causal & regard.window(256)
    dense = mask.to_dense(T)
    calls: dict[str, Call] = {
        "sdpa, dense mask": lambda: sdpa(q, k, v, attn_mask=dense),
        "attend": lambda: regard.attend(q, k, v, mask=mask),
    }
    return _measure(calls, q, k, "cpu", "window(256)")


def _tensors(device: str, heads: int, kv_heads: int, T: int, S: int, D: int) -> list[Tensor]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    sizes = (heads, T), (kv_heads, S), (kv_heads, S)
    return [torch.randn(1, H, n, D, dtype=dtype, device=device) for H, n in sizes]


@torch.no_grad()
def _measure(calls: dict[str, Call], q: Tensor, k: Tensor, device: str, mask: str) -> list[dict[str, Any]]:
    """A row for each call: its time, its ratio to the first call, and the spread of that ratio."""
    repeats = {name: max(1, int(SECONDS / _seconds(call, 3, device))) for name, call in calls.items()}
    rounds: list[list[float]] = [
        [_seconds(call, repeats[name], device) for name, call in calls.items()] for _ in range(ROUNDS)
    ]
    case = {"mask": mask, "T": q.shape[2], "S": k.shape[2], "D": q.shape[3], "heads": q.shape[1]}
    case |= {"kv_heads": k.shape[1], "dtype": str(q.dtype).removeprefix("torch."), "pass": "call"}
    rows = []
    for i, (name, call) in enumerate(calls.items()):
        ratios = [times[i] / times[0] for times in rounds]
        rows.append(
            case
            | {
                "who": name,
                "ms": statistics.median(times[i] for times in rounds) * 1e3,
                "to_fused": statistics.median(ratios),
                "spread": spread(ratios),
                "least and greatest ratio": [min(ratios), max(ratios)],
                "peak_mib": peak_mib(call, device),
            }
        )
    return rows


def _seconds(call: Call, repeats: int, device: str) -> float:
    """The seconds of one call, of several in a row."""
    call()
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _wait(device)
    return (time.perf_counter() - start) / repeats


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
