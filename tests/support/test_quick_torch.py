"""PyTorch without its kernels for the device meta, and with them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
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
def test_the_kernels_for_shapes_are_imported_later() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False False", "True True (1, 1, 4, 8)"]
