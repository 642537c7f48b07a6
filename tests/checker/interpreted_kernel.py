"""The small Triton kernel, interpreted on the CPU. Run by test_triton_kernel.py in a process of its own."""

import pytest

import regard
from tests.attention.backends import interpreter  # noqa: F401 (first: it settles how kernels are defined)
from tests.checker.triton_kernel import kernel
from tests.sampling import share

pytestmark = pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning"
)


def test_right():
    report = regard.check(kernel())
    assert report.verdict == "right", str(report)
    assert not report.diagnoses
    [skipped] = [check for check in report.skipped if check.name == "gradients"]
    assert "it has no backward pass" in skipped.detail


# The others are planted on CUDA, where they run faster: tests/gpu.
PLANTED = ["window-off-by-one", "grouped-heads-tiled", "stale-keys", "sink-of-another-head"]


@pytest.mark.parametrize("mistake", share(PLANTED, 4))
def test_planted(mistake):
    report = regard.check(kernel(mistake))
    assert report.verdict == "wrong", str(report)
    assert report.diagnoses[0].name == mistake, str(report)
