"""What a test planted is gone when it is over."""

import planting
import pytest


@pytest.fixture(autouse=True)
def _uprooted():
    yield
    planting.uproot()
