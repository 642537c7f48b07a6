"""What a test planted is gone when it is over."""

import pytest

from tests.checker import planting


@pytest.fixture(autouse=True)
def _uprooted():
    yield
    planting.uproot()
