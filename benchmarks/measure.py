"""The time and peak memory of a call, on a CPU or a GPU, and a description of the machine.

Other load makes single times unreliable: compare calls that were measured in turn, in one run.
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
    """A description of this machine, without its host name."""
    about: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        import triton

        about |= {
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }
        return about
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return about | {"cpu": names[0] if names else platform.processor() or platform.machine()}


def together(calls: dict[str, Callable[[], Any]], device: str, rounds: int = 3) -> dict[str, float]:
    """The milliseconds of each call: the median of several rounds in which all are measured in turn."""
    for call in calls.values():
        call()
    if device == "cuda":
        from triton.testing import do_bench

        return {
            name: float(do_bench(call, warmup=10, rep=60, return_mode="median"))
            for name, call in calls.items()
        }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(rounds_of) for name, rounds_of in times.items()}


def peak_mib(call: Callable[[], Any], device: str) -> float:
    """The peak memory of a call in MiB above that before it, its result included."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    return next(int(line.split()[1]) for line in _lines("/proc/self/status") if line.startswith(name))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
