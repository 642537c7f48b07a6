"""The published results by name; runs one with its seed, versions and machine, and writes what it found."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from regard.reproduce.chart import draw
from regard.reproduce.record import ReproductionRecord, RunOptions
from regard.support.files import atomic_write
from regard.version import __version__

NAMES = (
    "sinks",
    "induction",
    "eviction",
    "retrieval",
    "collapse",
    "rollout",
    "explanation",
    "dormant",
    "position",
    "packing",
)
"""In the order of the gallery. Each is a file of this package with `ABOUT` and `run(options)`."""


def load(name: str) -> ModuleType:
    """The file of a result: `ABOUT` is a `PublishedResult`, and `run(options)` returns `Findings`."""
    if name not in NAMES:
        raise ValueError(f"name: expected one of {', '.join(NAMES)}, got {name!r}")
    return import_module(f"regard.reproduce.{name}")


def reproduce(name: str, options: RunOptions) -> ReproductionRecord:
    """Run a result, and return what it found."""
    module = load(name)
    before = torch.get_rng_state()
    torch.manual_seed(options.seed)
    began = time.perf_counter()
    try:
        findings = module.run(options)
    finally:
        torch.set_rng_state(before)
    seconds = round(time.perf_counter() - began, 1)
    machine = describe_machine(options.device)
    return ReproductionRecord(name, options.quick, options.seed, findings, machine, seconds)


def save(record: ReproductionRecord, folder: Path) -> tuple[Path, Path]:
    """Write the record as NAME.json and its picture as NAME.png, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    json_file, picture = folder / f"{record.name}.json", folder / f"{record.name}.png"
    record.write(json_file)
    with atomic_write(picture) as temporary:
        draw(record.findings.charts).savefig(temporary, dpi=110, format="png")
    return json_file, picture


def describe_machine(device: str) -> dict[str, Any]:
    """The versions and the processor that a result depends on, without the name of the machine."""
    about: dict[str, Any] = {
        "regard": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    with suppress(PackageNotFoundError):
        about["transformers"] = version("transformers")
    if device.startswith("cuda"):
        about["gpu"] = torch.cuda.get_device_name(device)
    return about
