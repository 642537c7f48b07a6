"""How long tests wait: for as long as it takes on a machine that is busy with everything else."""

import time
from pathlib import Path

HANGING = 300.0
"""Seconds after which something that takes moments on an idle machine counts as hanging."""


def wait_until(happens):
    """Wait until something is true."""
    limit = time.monotonic() + HANGING
    while not happens():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.01)


def has_ended(pid):
    """Whether a process has ended; a zombie, which nobody has asked about, has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
