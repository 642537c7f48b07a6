"""Time and peak memory of a call, on a CPU or a GPU, and what machine this is.

These machines are noisy: what counts are ratios of calls measured in one run, in turn.
"""

from __future__ import annotations

import gc
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def machine(device: str) -> dict[str, Any]:
    """What was measured on, in words that name no host."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        import triton

        found |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }
        return found
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return found | {"cpu": names[0] if names else platform.processor() or platform.machine()}


def together(calls: dict[str, Callable[[], Any]], device: str, rounds: int = 3) -> dict[str, float]:
    """Milliseconds of each call: the median of several rounds in which all are measured in turn."""
    for call in calls.values():
        call()
    if device == "cuda":
        from triton.testing import do_bench

        return {
            name: float(do_bench(call, warmup=10, rep=60, return_mode="median"))
            for name, call in calls.items()
        }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def peak_mib(call: Callable[[], Any], device: str) -> float:
    """How far memory rises above what was there before the call, its result included."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    return next(int(line.split()[1]) for line in _lines("/proc/self/status") if line.startswith(name))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
