"""Signals: whatever ends `regard check`, and whenever it comes, no process and no temporary folder is left.

A draw starts processes of some kind under a supervisor, as `regard check` does, and sends a signal at some
moment; every eighth draw is the command itself, which takes seconds. Processes are found by a number in their
environment or their arguments. This needs /proc, so it runs on Linux.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import regard
from tests.attack.progress import counted
from tests.patience import HANGING

DRAWS = 800
COMMANDS = 8  # every so many draws, one is the command
SOURCE = Path(regard.__file__).parent.parent

PROGRAM = '''
import ctypes, os, signal, subprocess, sys, tempfile, time

def ready():
    open(f"{os.environ['ATTACK_FOLDER']}/ready-{os.getpid()}", "w").close()

def hang():
    """Never ends."""
    ready()
    while True:
        time.sleep(0.05)

def ignore():
    """Ignores every signal that can be ignored."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    hang()

def block():
    """Holds the GIL in C: no thread and no signal handler of this process runs."""
    ready()
    while True:
        ctypes.PyDLL(None).sleep(1000)

def spin():
    """Computes for ever in C."""
    ready()
    sum(range(10**15))

def children():
    """Has started programs."""
    for _ in range(3):
        subprocess.Popen(["sleep", os.environ["ATTACK_MARK"]])
    hang()

def sessions():
    """Has started programs in other sessions, without its environment."""
    for _ in range(3):
        subprocess.Popen(["sleep", os.environ["ATTACK_MARK"]], start_new_session=True, env={})
    hang()

def daemon():
    """Has left a daemon: another session, orphaned, without open files, ignoring signals."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 256)
            ignore()
        os._exit(0)
    os.wait()
    hang()

def chain():
    """Has left daemons, each of which was left by one that has ended."""
    for _ in range(6):
        if os.fork() == 0:
            os.setsid()
        else:
            time.sleep(0.01)
            if os.getpid() != START:
                os._exit(0)
            hang()
    hang()

def bomb():
    """Has forked itself into 32."""
    for _ in range(5):
        os.fork()
    hang()

def hare():
    """Is another process after every few milliseconds."""
    ready()
    while True:
        if os.fork():
            os._exit(0) if os.getpid() != START else hang()
        time.sleep(0.002)

def stop():
    """Is stopped."""
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    hang()

def litter():
    """Has temporary files that nobody may remove, and goes on writing them."""
    inner = os.path.join(tempfile.mkdtemp(), "inner")
    os.makedirs(os.path.join(inner, "most"))
    os.chmod(inner, 0)
    ready()
    while True:
        tempfile.mkdtemp()
        time.sleep(0.01)

def finish():
    """Ends by itself."""
    ready()

START = os.getpid()
if __name__ == "__main__":
    globals()[sys.argv[1]]()
'''
KINDS = [line[4:].partition("(")[0] for line in PROGRAM.splitlines() if line.startswith("def ")][1:]
CHECKED = """
import sys
sys.path.insert(0, {folder!r})
import program
if {importing}:
    program.{kind}()

def attention(q, k, v{group}):
    program.{kind}()
    return q
"""
PARENT = """
import pathlib, sys, time
from regard.support.supervision import Supervision

folder, program, kind, count, closes = sys.argv[1:]
with Supervision("attack") as processes:
    for _ in range(int(count)):
        processes.start([sys.executable, program, kind])
    while not any(processes.describe_end(index) for index in range(int(count))):
        time.sleep(0.005)
        if closes == "True" and list(pathlib.Path(folder).glob("ready-*")):
            break
"""
SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSEGV"]


@dataclass
class Draw:
    """What is started, and what is done to it."""

    random: Random
    command: bool
    kind: str = ""
    count: int = 1
    signals: list[str] = field(default_factory=list)
    moment: str = ""
    launcher: str = ""
    victim: str = "parent"

    def __post_init__(self) -> None:
        draw = self.random
        self.kind, self.count = draw.choice(KINDS), draw.choice([1, 1, 2])
        self.signals = [draw.choice(SIGNALS) for _ in range(draw.choice([1, 1, 2]))]
        moments = ["start", "running", "running"] + (["importing"] if self.command else ["closing"])
        self.moment = draw.choice(moments)
        self.launcher = draw.choice(["", "", "timeout"] + ["background"] * self.command)
        if self.kind == "finish" and self.moment == "importing":
            self.moment = "running"
        if self.moment == "running" and self.kind != "finish" and self.launcher != "timeout":
            self.victim = draw.choice(["parent", "parent", "parent", "supervisor", "worker"])
        if self.victim == "supervisor" and self.kind == "sessions":
            self.victim = "parent"  # nobody else can find what has neither its session nor its environment
        if self.victim != "parent":
            self.signals = ["SIGKILL"]

    def __str__(self) -> str:
        what = "regard check" if self.command else "a supervision"
        signals = " and ".join(self.signals)
        by = f", started by {self.launcher}" if self.launcher else ""
        return f"{signals} to the {self.victim} of {what} of {self.count} × {self.kind}, {self.moment}{by}"

    def words(self, folder: Path) -> list[str]:
        """The command to start."""
        program = folder / "program.py"
        program.write_text(PROGRAM)
        if self.command:
            group = ", group" if self.count > 1 else ""
            text = CHECKED.format(
                folder=str(folder), kind=self.kind, importing=self.moment == "importing", group=group
            )
            (folder / "checked.py").write_text(text)
            words = [sys.executable, "-m", "regard", "check", f"{folder}/checked.py:attention"]
            words += ["--processes", str(self.count)] if self.count > 1 else []
        else:
            words = [sys.executable, "-c", PARENT, str(folder), str(program), self.kind, str(self.count)]
            words.append(str(self.moment == "closing"))
        if self.launcher == "background":  # as a shell without job control starts what ends with &
            return ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *words]
        if self.launcher == "timeout":
            seconds = self.random.uniform(0.5, 8.0) if self.command else self.random.uniform(0.05, 0.4)
            self.signals = self.signals[:1]
            return ["timeout", "--signal", self.signals[0], f"{seconds:.2f}", *words]
        return words

    def may_end_with(self, status: int) -> bool:
        """Whether the exit status is a conventional one."""
        if self.victim != "parent":
            return status == (2 if self.command else 0)
        numbers = [signal.Signals[name].value for name in self.signals]
        statuses = {-number for number in numbers} | {128 + number for number in numbers}
        if self.launcher == "timeout":
            statuses |= {124}
        if self.kind == "finish" or self.moment == "closing":
            statuses |= {0, 1, 2, 3}  # it may have ended before
        if self.moment == "start" or self.launcher == "timeout":
            statuses |= {1}  # of Python, which is interrupted before it runs anything of ours
        return status in statuses


def attack(draws: int, seed: int) -> dict[str, int | float]:
    """Make the draws; raise AssertionError at the first that leaves something behind."""
    worst, most, commands = 0.0, 0, 0
    for number in counted(draws, "signals"):
        draw = Draw(Random(f"{seed}-{number}"), command=number % COMMANDS == 0)
        folder = Path(tempfile.mkdtemp(prefix="attack-"))
        try:
            seconds, count = strike(draw, folder)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"seed {seed}, draw {number}: {draw}: {error}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        worst, most, commands = max(worst, seconds), max(most, count), commands + draw.command
    return {
        "signals": draws,
        "of them to the command": commands,
        "most processes ended at once": most,
        "processes left": 0,
        "folders left": 0,
        "worst seconds until all were gone": worst,
    }


def strike(draw: Draw, folder: Path) -> tuple[float, int]:
    """Make one draw. Return the seconds until all was gone, and how many processes there had been."""
    mark, temporary = f"3600.{draw.random.randrange(10**12):012}", folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "ATTACK_MARK": mark, "ATTACK_FOLDER": str(folder), "TMPDIR": str(temporary)}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            draw.words(folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=prepare,
        )
    try:
        if draw.launcher != "timeout":
            wait_for_moment(draw, process, folder)
        count, start = len(marked(mark)), time.monotonic()
        for name in draw.signals if draw.launcher != "timeout" else []:
            send(signal.Signals[name], draw, process, mark)
            time.sleep(draw.random.choice([0, 0.001, 0.03]))
        if draw.launcher == "timeout" or draw.kind == "finish":
            process.wait(HANGING)
            start = time.monotonic()
        wait_until_gone(mark, temporary, besides={process.pid})
        seconds = time.monotonic() - start
        status = process.wait(HANGING)
        wait_until_gone(mark, temporary)
        left = marked(mark)
        said = (folder / "output").read_text(errors="replace")[-800:]
        assert not left, f"{len(left)} processes are left: {list(left.values())[:3]}"
        assert not list(temporary.iterdir()), f"left: {[x.name for x in temporary.iterdir()]}"
        assert draw.may_end_with(status), f"exit status {status}; it said {said!r}"
        if draw.command and draw.victim != "parent":
            assert ("SIGKILL" if draw.victim == "worker" else "from outside") in said, said
    finally:
        process.kill()
        process.wait()
        for number in marked(mark):
            os.kill(number, signal.SIGKILL)
    return seconds, count


def wait_until_gone(mark: str, temporary: Path, besides: Collection[int] = ()) -> None:
    """Wait until there is no process with the mark and no temporary file, or for as long as may be."""
    limit = time.monotonic() + HANGING
    while marked(mark).keys() - besides or any(temporary.iterdir()):
        if time.monotonic() > limit:
            return
        time.sleep(0.002)


def wait_for_moment(draw: Draw, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the moment at which the signal is sent."""
    if draw.moment == "start":
        time.sleep(draw.random.uniform(0, 6.0 if draw.command else 0.2))
        return
    limit = time.monotonic() + HANGING
    needed = 1 if draw.kind == "finish" or draw.moment == "importing" else draw.count
    while len(list(folder.glob("ready-*"))) < needed and process.poll() is None:
        assert time.monotonic() < limit, "it did not start"
        time.sleep(0.005)
    time.sleep(draw.random.choice([0, 0.005, 0.05, 0.3]))


def send(number: signal.Signals, draw: Draw, process: subprocess.Popen[bytes], mark: str) -> None:
    """Send a signal to the parent, its supervisor, or the first process under that."""
    victim = process.pid
    if draw.victim != "parent":
        victim = next(child for child, parent in parents(mark).items() if parent == victim)
    if draw.victim == "worker":
        victim = next(child for child, parent in parents(mark).items() if parent == victim)
    if victim != process.pid or process.poll() is None:
        os.kill(victim, number)


def prepare() -> None:
    """Have crashes leave no file, and no signal ignored, as those of a job in the background are."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in SIGNALS:
        if name != "SIGKILL":
            signal.signal(signal.Signals[name], signal.SIG_DFL)


def marked(mark: str) -> dict[int, str]:
    """The command of every living process with the mark in its environment or its arguments, by number."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes()
            if mark.encode() in arguments or mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = arguments.replace(b"\0", b" ").decode(errors="replace")[:120]
        except OSError:
            continue  # it has ended, or belongs to someone else
    return found


def parents(mark: str) -> dict[int, int]:
    """The parent of every process with the mark, by number, in the order in which they started."""
    found = {}
    for number in sorted(marked(mark)):
        try:
            text = Path(f"/proc/{number}/stat").read_text(errors="replace")
            found[number] = int(text.rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found
