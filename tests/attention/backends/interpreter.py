"""Triton's interpreter, made ready: its kernels then run on the CPU, as plain NumPy.

Import this before anything imports Triton: whether a kernel is interpreted is settled when it is defined.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import triton  # noqa: F401 (first: the interpreter is prepared only where Triton is imported)

from regard.checker.subject.kernel_recognition import prepare_interpreter

prepare_interpreter()
