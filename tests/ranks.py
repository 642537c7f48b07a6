"""Starts one process for each rank of a group, which meet through a file, and reaps them all."""

import os
import runpy
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from tests import forks

WAITING = 600.0  # seconds that a rank waits for another; nothing in these tests takes a tenth of it
LIMIT = 900.0  # seconds for a program; one that takes longer is killed


class Rank:
    """A process that runs `module` as its main program, with the interface of `subprocess.Popen`."""

    def __init__(self, module, number, count, folder, said):
        self.said = (said / f"out-{number}", said / f"err-{number}")
        words = [module, str(number), str(count), str(folder)]
        self.process = forks.context().Process(target=_run, args=(words, *self.said))
        self.process.start()

    @property
    def returncode(self):
        return self.process.exitcode

    def communicate(self, timeout=None):
        """Wait for its end, and return what it has written to its output and to its errors."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.process.name), timeout or 0.0)
        out, errors = (path.read_text() if path.exists() else "" for path in self.said)
        return out, errors

    def kill(self):
        self.process.kill()
        self.process.join()


@contextmanager
def started(module, count, folder):
    """Run `python -m module RANK COUNT FOLDER` for each rank; on leaving, those that still run are killed."""
    with tempfile.TemporaryDirectory() as said:
        processes = [Rank(module, rank, count, folder, Path(said)) for rank in range(count)]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def _run(words, out, errors):
    """Be the main program of a rank."""
    for number, path in ((1, out), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    if os.path.exists("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    sys.argv = [*words]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def join_group(waiting=WAITING):
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
