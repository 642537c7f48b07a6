"""Model types surveyed in processes of their own, so that a crash or a hang ends one of them only."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

MEMORY = 8 << 30  # bytes of address space of a worker


def each(names, work, workers, seconds):
    """`work(name)` for each name in forked processes, in the order in which they end; failures as "error"."""
    waiting = list(reversed(names))
    running = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < workers:
                name = waiting.pop()
                path = Path(folder, name.replace("/", "_"))
                running[_fork(work, name, path)] = (name, time.monotonic(), path)
            time.sleep(0.02)
            for pid, (name, started, path) in list(running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended and time.monotonic() - started > seconds:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    ended = pid
                    path.write_text(json.dumps({"error": "time limit", "message": f"over {seconds:.0f} s"}))
                if ended:
                    del running[pid]
                    yield name, _result(path, status) | {"seconds": round(time.monotonic() - started, 1)}


def _result(path, status):
    if path.exists():
        return json.loads(path.read_text())
    return {"error": "process ended", "message": f"wait status {status}"}


def _fork(work, name, path):
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            result = work(name)
    except BaseException as error:
        last = traceback.format_exc().strip().splitlines()[-6:]
        result = {"error": type(error).__name__, "message": " | ".join(line.strip() for line in last)}
    path.write_text(json.dumps(result))
    os._exit(0)
