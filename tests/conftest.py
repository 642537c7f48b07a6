"""One thread for each worker, and Hypothesis profiles: drawn anew at home, the same every time in CI."""

import os

import hypothesis
import matplotlib
import pytest
import torch

matplotlib.use("Agg")  # tests draw to files, never to a window
torch.set_num_threads(1)  # workers of pytest-xdist would fight over the cores

hypothesis.settings.register_profile(
    "home",
    deadline=None,
    max_examples=60,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("home"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture(autouse=True)
def _same_start():
    """Every test starts from the same random state and leaves no figure open."""
    torch.manual_seed(0)
    yield
    from matplotlib import pyplot

    pyplot.close("all")
