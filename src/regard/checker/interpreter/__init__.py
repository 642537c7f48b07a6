"""Kernels without a GPU: the interpreter of Triton, and the functions that are patched for it."""
