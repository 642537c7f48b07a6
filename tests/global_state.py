"""What a test must leave as it found it: the state that all tests of a process share, and how to compare it.

Taking it costs some hundred microseconds, so every test is looked at. Random states are not here (each test
sets its own), nor is what Python only learns: modules that were imported, caches that were filled.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as modules

from tests.patience import HANGING

ENDING = ("threads", "processes")
HOOKS = [name for name in vars(modules) if name.startswith("_global_") and name.endswith("_hooks")]
LEARNED = (
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
)  # pytest sets one, and importing PyTorch another
WARNINGS = "__warningregistry__"  # Python adds it to a module that warns for the first time
# What torch.compile and Transformers put there for good when they are first used.
TAGGED = (
    *("__init__", "__setstate__", "smart_apply"),
    "__annotations_cache__",  # Python 3.14, when the annotations of a class are first read
    *("___needs_generation_tag_patch", "___has_generation_tag_patch"),  # until PyTorch 2.14, and since
)
# Started once, used until the end: what forks for multiprocessing, the browser's driver, a watch on bars, and
# the event loop of Jupyter's client.
LASTING = (
    *("multiprocessing.forkserver", "multiprocessing.resource_tracker", "playwright", "tqdm_monitor"),
    "MainThread - runner",
)


def state():
    """The shared state by name. A mapping in it is compared key by key, by identity or equality."""
    found = {
        "working directory": os.getcwd(),
        "os.environ": {key: value for key, value in os.environ.items() if key not in LEARNED},
        "sys.path": [path for path in sys.path if "setuptools" not in path],
        "sys.modules": sys.modules.copy(),
        "signals": {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)},
        "threads": {f"{x.name} ({x.ident})": x for x in threading.enumerate() if x.name not in LASTING},
        "processes": children(),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collector": gc.isenabled(),
        "logging": (logging.root.level, logging.root.manager.disable),
        "NumPy's errors": np.geterr(),
        "NumPy's printing": np.get_printoptions(),
        "Matplotlib's settings": dict(dict.items(matplotlib.rcParams)),
        "PyTorch's printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "PyTorch's flags": flags(),
        "torch.nn.functional": {key: x for key, x in vars(nn.functional).items() if key != WARNINGS},
        "torch.nn.Module": {key: value for key, value in vars(nn.Module).items() if key not in TAGGED},
        "torch.nn.MultiheadAttention": dict(vars(nn.MultiheadAttention)),
        "hooks on every module": {name: len(getattr(modules, name)) for name in HOOKS},
    }
    found["sys.modules"].pop("transformers", None)  # it replaces itself when its models are first used
    if (models := imported("transformers.modeling_utils")) is not None:
        found["AttentionInterface"] = dict(vars(models.AttentionInterface))
        found["Transformers' attentions"] = models.AttentionInterface._global_mapping.copy()
        found["Transformers' own attentions"] = models.ALL_ATTENTION_FUNCTIONS._local_mapping.copy()
        found["Transformers' logging"] = logging.getLogger("transformers").level
        # Regard adds its own to these once `modeling_utils` is imported, and not before.
        if (masks := imported("transformers.masking_utils")) is not None:
            found["Transformers' masks"] = masks.AttentionMaskInterface._global_mapping.copy()
    return found


def imported(name):
    """A module that was imported, to its end."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def flags():
    """What decides how PyTorch computes."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "products of float32": torch.get_float32_matmul_precision(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory-efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "cuDNN, deterministic": torch.backends.cudnn.deterministic,
        "cuDNN, benchmark": torch.backends.cudnn.benchmark,
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "flags frozen": torch.backends.flags_frozen(),
    }


def children():
    """The command of every child process by its number, but for those that are started once and kept."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return {}  # no children, and no need to look further; or no way to look
    found = {}
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a process that has just ended
            for number in task.read_text().split():
                command = Path("/proc", number, "cmdline").read_text().replace("\0", " ").strip()
                if not any(word in command for word in LASTING):
                    found[number] = command or "ended, and nobody waited for it"
    return found


def changes(before):
    """What differs from an earlier `state()`, a line each; what is about to end is waited for."""
    after, limit = state(), time.monotonic() + HANGING
    while any(after[name].keys() - before[name] for name in ENDING) and time.monotonic() < limit:
        time.sleep(0.01)
        after = state()
    return [
        line for name in before if name in after for line in _differences(name, before[name], after[name])
    ]


def _differences(name, before, after):
    if before == after:
        return []
    if not isinstance(before, Mapping):
        return [f"{name}: {before!r} became {after!r}"]
    added = [key for key in after if key not in before]
    if name == "sys.modules":
        added = [key for key in added if _is_temporary(after[key])]
    gone = [key for key in before if key not in after and name not in ENDING]
    both = [key for key in before if key in after and before[key] is not after[key]]
    changed = [key for key in both if before[key] != after[key]]
    said = {"was added": added, "is gone": gone, "changed": changed}
    return [f"{name}: {key} {what}" for what, keys in said.items() for key in keys]


def _is_temporary(module):
    """Whether a module's file is gone when the test is over, so that another test must not find it."""
    file = str(getattr(module, "__file__", ""))
    return file.startswith("<") or "pytest-of-" in file
