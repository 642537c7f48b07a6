"""The published results by name; runs one with its seed, versions and machine, and writes what it found."""

from __future__ import annotations

import platform
import time
import tomllib
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from regard.reproduce.chart import draw
from regard.reproduce.record import PublishedResult, ReproductionRecord, RunOptions
from regard.support.files import atomic_write, make_folder
from regard.version import __version__

RESULTS = {
    name: PublishedResult(**result)
    for name, result in tomllib.loads(
        Path(__file__).with_name("results.toml").read_text(encoding="utf-8")
    ).items()
}
"""In the order of the gallery. Each has a file of this package with `run(options, sizes)`."""
NAMES = tuple(RESULTS)


def load(name: str) -> ModuleType:
    """The file of a result: its `run(options, sizes)` returns `Findings`."""
    if name not in RESULTS:
        raise ValueError(f"name: expected one of {', '.join(RESULTS)}, got {name!r}")
    return import_module(f"regard.reproduce.{name}")


def reproduce(name: str, options: RunOptions) -> ReproductionRecord:
    """Run a result, and return what it found."""
    module, about = load(name), RESULTS[name]
    before = torch.get_rng_state()
    torch.manual_seed(options.seed)
    began = time.perf_counter()
    try:
        findings = module.run(options, about.quick if options.quick else about.full)
    finally:
        torch.set_rng_state(before)
    seconds = round(time.perf_counter() - began, 1)
    machine = describe_machine(options.device)
    return ReproductionRecord(name, options.quick, options.seed, findings, machine, seconds)


def save(record: ReproductionRecord, folder: Path) -> tuple[Path, Path]:
    """Write the record as NAME.json and its picture as NAME.png, and return both paths."""
    make_folder("folder", folder)
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
