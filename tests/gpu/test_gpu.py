"""The marked GPU suite; `python -m tests.gpu.run` runs the same without pytest."""

import pytest
import torch

if not torch.cuda.is_available():  # before the cases are made: one line says so, and not one for each of them
    pytest.skip("needs a CUDA device", allow_module_level=True)

from tests.gpu.cases import cases

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("check", [pytest.param(check, id=name) for name, check in cases()])
def test_gpu(check):
    check()
