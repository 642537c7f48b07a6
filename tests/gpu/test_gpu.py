"""The marked GPU suite; `python tests/gpu/run.py` runs the same without pytest."""

import pytest
import torch
from cases import cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in cases()])
def test_gpu(check):
    check()
