"""Triton's interpreter, made ready: its kernels then run on the CPU, as plain NumPy.

Import this before anything imports Triton: whether a kernel is interpreted is settled when it is defined.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch_tensor_for_numpy(tensor, scope):
    """Triton 3.6 makes an int of a one-element array in a way that NumPy 2.4 no longer accepts."""
    _patch_tensor(tensor, scope)
    tensor.__index__ = lambda self: self.handle.data.item()


interpreter._patch_lang_tensor = _patch_tensor_for_numpy
