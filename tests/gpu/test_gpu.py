"""The marked GPU suite; `python -m tests.gpu.run` runs the same without pytest."""

import pytest
import torch

from tests.gpu.cases import cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in cases()])
def test_gpu(check):
    check()
