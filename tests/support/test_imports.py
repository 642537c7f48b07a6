"""What is imported where: nothing that only POSIX has, and PyTorch without its kernels for shapes."""

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


def test_no_file_imports_at_its_top_what_only_posix_has():
    """Unless it is in a `try` or an `if`, or in a function."""
    for path, tree in trees().items():
        found = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
        found |= {str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert not found & set(HIDDEN_MODULES), path


@pytest.mark.at_length("test_no_file_imports_at_its_top_what_only_posix_has")
def test_every_module_is_imported_without_what_only_posix_has():
    program = PROGRAM.replace("HIDDEN_MODULES", repr(HIDDEN_MODULES))
    program = program.replace("OS_NAMES", repr(OS_NAMES)).replace("SIGNALS", repr(SIGNALS))
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANGING
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) > 500


QUICK = """
import sys
from regard.support.quick_torch import complete_torch, import_torch_quickly

import_torch_quickly()
import torch

x = torch.randn(2, 3, requires_grad=True)
torch.softmax(x @ x.mT, dim=-1).sum().backward()
x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
print("torch._meta_registrations" in sys.modules, "torch._prims" in sys.modules)
complete_torch()
shapes = torch.nn.functional.scaled_dot_product_attention(*torch.empty(3, 1, 1, 4, 8, device="meta"))
torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
print("torch._prims" in sys.modules, torch._meta_registrations.__file__ is not None, tuple(shapes.shape))
"""


@pytest.mark.at_length(
    "test_every_public_name_needs_only_torch_numpy_and_safetensors_and_a_model_no_compiler"
)
def test_the_kernels_for_shapes_are_imported_later():
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "True True (1, 1, 4, 8)"]
