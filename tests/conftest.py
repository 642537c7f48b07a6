"""One thread for each worker, and what Hypothesis draws: the same every time, unless every case is run.

Tests run in a new order each time, and each leaves the process as it found it: `global_state` looks.
"""

import gc
import logging
import os
import signal
import sys

import hypothesis
import matplotlib
import pytest
import torch
from hypothesis.internal.conjecture import providers
from matplotlib import pyplot

from tests import built_site, global_state, sampling

# A shell that starts the tests in the background, or under nohup, has these ignored, and they are tested.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
matplotlib.use("Agg")  # tests draw to files, never to a window
sampling.choose_share()
torch.set_num_threads(1)  # workers of pytest-xdist would fight over the cores

hypothesis.settings.register_profile(
    "regard",
    deadline=None,
    derandomize=not os.environ.get("REGARD_ALL"),  # a commit that passes today passes tomorrow
    max_examples=200 if os.environ.get("REGARD_ALL") else 8,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("regard")
# Hypothesis also draws the constants of all modules that are imported by then. To parse them takes seconds in
# every worker, and the same test would draw other numbers in another order of the tests.
providers.is_local_module_file = lambda path: False


def pytest_report_header():
    return sampling.describe()


FORKING = {"forks", "ranks", "short_runs"}  # what a module imports whose tests fork


def shares_a_process(item):
    """Whether a test needs Chromium or the server that forks, which take ten seconds to start."""
    forks = FORKING & vars(item.module).keys() if isinstance(item, pytest.Function) else None
    return bool(forks) or "browser" in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config, items):
    """Leave out what is tested at length only, unless every case is run or a test is named.

    What shares a process comes first, in the half of one worker: the other starts none then.
    """
    items.sort(key=lambda item: not shares_a_process(item))
    if os.environ.get("REGARD_ALL") or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("at_length")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("at_length")]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """No garbage is looked for meanwhile, nor later among what was imported: it takes seconds, and stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


FROZEN_WITH = {"modules": 0}  # how many of them there were


def _freeze():
    """Look for no garbage in what tests have imported since: Transformers alone has a million objects."""
    if len(sys.modules) > FROZEN_WITH["modules"] + 100:
        gc.collect()
        gc.freeze()
        FROZEN_WITH["modules"] = len(sys.modules)


@pytest.fixture(autouse=True)
def _same_start(request):
    """Every test starts from the same random state, and may not change what the others start from."""
    # Not `torch.manual_seed`: without a GPU it notes the stack for every device that could still come, 3 ms.
    torch.default_generator.manual_seed(0)
    torch._C._set_mkldnn_enabled(True)  # which PyTorch itself leaves where a processor has no bfloat16
    before = global_state.state()
    yield
    pyplot.close("all")
    torch._C._set_mkldnn_enabled(True)
    _compare(before, request.node.nodeid)


@pytest.fixture(autouse=True, scope="module")
def _same_file_start(request):
    """Neither may what the tests of a file share."""
    before = global_state.state()
    yield
    _freeze()
    _compare(before, request.node.nodeid)


@pytest.fixture
def quiet_transformers():
    """Transformers says nothing about small models with random weights but its errors."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The documentation site, built once for all workers: the folder of its HTML."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    base = tmp_path_factory.getbasetemp()
    return built_site.build_once(base if alone else base.parent)


def _compare(before, name):
    if changed := global_state.changes(before):
        pytest.fail("\n".join([f"{name} left something behind:", *changed]), pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    """How to run in the same order again, below what failed."""
    yield
    seed = config.getoption("randomly_seed", None)
    if seed is not None and (terminalreporter.stats.keys() & {"failed", "error"}):
        terminalreporter.write_line(f"This order again: --randomly-seed={seed}")
