"""Starts one process for each rank of a group, which meet through a file, and reaps them all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from torch import distributed

WAITING = 600.0  # seconds that a rank waits for another; nothing in these tests takes a tenth of it
LIMIT = 900.0  # seconds for a program; one that takes longer is killed


@contextmanager
def started(module: str, count: int, folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Run `python -m module RANK COUNT FOLDER` for each rank; on leaving, those that still run are killed."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if os.path.exists("/sys/class/net/lo"):
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(rank), str(count), str(folder)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def join_group(waiting: float = WAITING) -> tuple[int, Path]:
    """Inside a rank: join the group, whose ranks wait so long for each other; return rank and folder."""
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=waiting),
    )
    return rank, folder
