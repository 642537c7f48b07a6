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


def together(calls: dict[str, Callable[[], Any]], device: str, rounds: int = 5) -> dict[str, float]:
    """The milliseconds of each call: the median of several rounds in which all are measured in turn."""
    return {name: statistics.median(times) for name, times in in_rounds(calls, device, rounds).items()}


def in_rounds(calls: dict[str, Callable[[], Any]], device: str, rounds: int = 5) -> dict[str, list[float]]:
    """The milliseconds of each call in each of several rounds in which all are measured in turn.

    A short call is repeated for 20 ms in a round.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()  # compile and allocate
        counts[name] = max(1, int(20 / _milliseconds(call, 1, device)))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_milliseconds(call, counts[name], device))
    return times


def _milliseconds(call: Callable[[], Any], count: int, device: str) -> float:
    """The milliseconds of a call that is made `count` times; on a GPU, from the first of them on."""
    if device != "cuda":
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) * 1e3 / count
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / count


def spread(times: list[float]) -> float:
    """How far the slowest round is from the fastest, as a share of the median."""
    return (max(times) - min(times)) / statistics.median(times)


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
