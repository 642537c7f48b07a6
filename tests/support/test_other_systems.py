"""Windows and macOS: no module of Regard needs, when it is imported, what only Linux or only POSIX has."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.patience import HANGING
from tests.source_trees import trees

PROGRAM = """
import importlib, os, pkgutil, signal, sys
import regard

def import_everything():
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        # The first runs when it is imported, and the second needs vLLM or Triton, which are for Linux.
        if not module.name.endswith("__main__") and not {"vllm", "triton"} & set(module.name.split(".")):
            importlib.import_module(module.name)

import_everything()  # for the libraries, which know where they run and may import what they like
own = [name for name in sys.modules if name.partition(".")[0] == "regard"]
for name in own:
    del sys.modules[name]
for name in HIDDEN_MODULES:
    sys.modules[name] = None  # so that importing it raises ImportError
for module, names in ((os, OS_NAMES), (signal, SIGNALS)):
    for name in names:
        delattr(module, name) if hasattr(module, name) else None
sys.platform = "win32"
import regard

import_everything()
print("imported", len([name for name in sys.modules if name.partition(".")[0] == "regard"]))
"""
HIDDEN_MODULES = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "curses", "readline", "syslog")
OS_NAMES = (
    *("fork", "forkpty", "register_at_fork", "killpg", "getpgid", "setsid", "setpgid", "getuid", "geteuid"),
    *(
        "waitid",
        "mkfifo",
        "sched_getaffinity",
        "sched_setaffinity",
        "O_NOFOLLOW",
        "O_DIRECTORY",
        "O_NONBLOCK",
    ),
    *("getppid", "nice", "uname", "sysconf", "pread", "pwrite", "statvfs", "P_ALL", "WEXITED", "WNOHANG"),
)
SIGNALS = (
    *("SIGKILL", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGSTOP", "SIGCONT"),
    *("setitimer", "alarm", "pthread_sigmask", "sigwait", "siginterrupt", "SIGQUIT", "SIGTSTP"),
)


def test_no_file_imports_at_its_top_what_only_posix_has() -> None:
    """Unless it is in a `try` or an `if`, or in a function."""
    for path, tree in trees().items():
        found = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
        found |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert not found & set(HIDDEN_MODULES), path


@pytest.mark.at_length("test_no_file_imports_at_its_top_what_only_posix_has")
def test_every_module_is_imported_without_what_only_posix_has() -> None:
    program = PROGRAM.replace("HIDDEN_MODULES", repr(HIDDEN_MODULES))
    program = program.replace("OS_NAMES", repr(OS_NAMES)).replace("SIGNALS", repr(SIGNALS))
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANGING
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) > 500
