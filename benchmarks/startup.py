"""How long `import regard` and the command take to start: `python -m benchmarks.startup`.

Each round starts every program once, in turn, so that noise of the machine falls on all of them. The table
shows the median CPU time (user and system) of the rounds, and the median ratio to `import torch` of the same
round.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys

EVERY_NAME = "import regard; [getattr(regard, name) for name in regard.__all__]"
PROGRAMS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import regard": ["-c", "import regard"],
    "import torch, regard": ["-c", "import torch, regard"],
    "regard.attend": ["-c", "import regard; regard.attend"],
    "every public name": ["-c", EVERY_NAME],
    "regard --version": ["-m", "regard", "--version"],
    "regard --help": ["-m", "regard", "--help"],
    "regard": ["-m", "regard"],
    "regard inspect --help": ["-m", "regard", "inspect", "--help"],
    "regard train --help": ["-m", "regard", "train", "--help"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """CPU time of one Python process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(rounds: int) -> dict[str, list[float]]:
    """The CPU seconds of every program, round by round. One round before them fills the caches."""
    for arguments in PROGRAMS.values():
        cpu_seconds(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, arguments in PROGRAMS.items():
            seconds[name].append(cpu_seconds(arguments))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="How often each program is started.")
    seconds = measure(parser.parse_args().rounds)
    torch = seconds["import torch"]
    print("| program | CPU seconds | to import torch |\n|---|---:|---:|")
    for name, measured in seconds.items():
        ratio = statistics.median(x / base for x, base in zip(measured, torch, strict=True))
        print(f"| {name} | {statistics.median(measured):.2f} | {ratio:.2f}× |")


if __name__ == "__main__":
    main()
