"""The private names of PyTorch that Regard uses, each with its purpose and what to use if it is gone.

PyTorch promises nothing about them. They are named here and nowhere else, so that a version without one fails
at one line; `tests/support/test_torch_internals.py` then names every one that is missing. The
private attributes of its objects, which code reads where it has the object, are in `torch_attributes.toml`.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

import torch
from torch import nn, overrides
from torch.nn.modules import batchnorm
from torch.utils import _python_dispatch, _pytree

# Kernels of attention. The public function returns no row log-sum-exp (lse), and takes no window.

fused_sdp_choice = torch._fused_sdp_choice
"""The kernel that `scaled_dot_product_attention` would run. If gone: `can_use_flash_attention` and the other
questions of `torch.backends.cuda`, and on a CPU a call of the kernel that fails."""
flash_attention_for_cpu = torch._scaled_dot_product_flash_attention_for_cpu
"""The CPU's kernel, with its lse and a mask. If gone: the backend `tiled`."""
flash_attention = torch._scaled_dot_product_flash_attention
"""The flash kernel, with its lse. If gone: `torch.nn.attention.varlen.varlen_attn`, or the Triton kernels."""
efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
"""The memory-efficient kernel, with its lse. If gone: the backend `tiled`."""
cudnn_attention = torch._scaled_dot_product_cudnn_attention
"""cuDNN's kernel, with its lse. If gone: the flash kernel, which is slower once a cache stops growing."""
flash_attention_with_window = torch.ops.aten._flash_attention_forward.default
"""The flash kernel with a window. If gone: `torch.nn.attention.varlen.varlen_attn`, or the Triton kernels."""

# The state around a call. `attend` asks for most of these in every call, and the public questions are Python
# functions around them, which take longer.

flash_sdp_enabled = torch._C._get_flash_sdp_enabled
"""Whether the flash kernel is allowed. If gone: `torch.backends.cuda.flash_sdp_enabled`."""
efficient_sdp_enabled = torch._C._get_mem_efficient_sdp_enabled
"""Whether the memory-efficient kernel is. If gone: `torch.backends.cuda.mem_efficient_sdp_enabled`."""
cudnn_sdp_enabled = torch._C._get_cudnn_sdp_enabled
"""Whether cuDNN's kernel is. If gone: `torch.backends.cuda.cudnn_sdp_enabled`."""
sdp_priority_order = torch._C._get_sdp_priority_order
"""The order in which PyTorch tries kernels. If gone: leave it out; `sdpa_kernel(…, set_priority=True)` alone
changes it."""
any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Whether autocast is on for some kind of device. If gone: `torch.is_autocast_enabled` of each tensor's."""
deterministic_algorithms = torch._C._get_deterministic_algorithms
"""Whether algorithms have to be deterministic. If gone: `torch.are_deterministic_algorithms_enabled`."""
tracing_state = torch._C._get_tracing_state
"""The trace of `torch.jit.trace`, or None. If gone: `torch.jit.is_tracing`."""
function_mode_count = torch._C._len_torch_function_stack
"""The number of open function modes. If gone: the length of `function_modes()`."""
dispatch_mode_count = torch._C._len_torch_dispatch_stack
"""The number of open dispatch modes. If gone: the length of `dispatch_modes()`."""
current_transform = torch._C._functorch.peek_interpreter_stack
"""The transform of torch.func that runs, or None. If gone: `is_transformed_tensor` of the inputs."""
is_transformed_tensor = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether a tensor belongs to a transform of torch.func. If gone: the type that `repr` names."""
is_batched_tensor = torch._C._functorch.is_batchedtensor
"""Whether `torch.func.vmap` maps over a tensor. If gone: the `RuntimeError` of `tensor.item()` in a vmap."""
current_graph_task = torch._C._current_graph_task_id
"""-1 unless a backward pass runs on this thread, as it does when checkpointed blocks are computed again. If
gone: hooks on the gradients of the loss and of the inputs that note the pass."""

# Modes and hooks.

DisableTorchFunction = torch._C.DisableTorchFunction
"""A block without `__torch_function__`, that of modes too. If gone: a mode that passes calls on at once."""
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
"""A block without `__torch_function__` of subclasses. If gone: `tensor.as_subclass(torch.Tensor)`."""
function_modes = overrides._get_current_function_mode_stack
"""The open function modes. If gone: a list of our own modes in a context variable."""
current_function_mode = overrides._get_current_function_mode
"""The innermost function mode. If gone: the last of `function_modes()`."""
pop_function_mode = overrides._pop_mode_temporarily
"""A block without the innermost function mode. If gone: `DisableTorchFunction`, which stops others too."""
TorchDispatchMode = _python_dispatch.TorchDispatchMode
"""The base class of modes that see every operator, which PyTorch documents under this name. If gone: nothing
else sees the operators inside PyTorch's own functions."""
dispatch_modes = _python_dispatch._get_current_dispatch_mode_stack
"""The open dispatch modes. If gone: leave the modes where they are, which only costs time."""
pop_dispatch_mode = _python_dispatch._pop_mode
"""Takes the innermost dispatch mode off, since one that is off costs nothing. If gone: leave it there."""
push_dispatch_mode = _python_dispatch._push_mode
"""Puts it back. If gone: leave it there."""

# Small helpers.

tree_leaves = _pytree.tree_leaves
"""The leaves of nested lists, tuples and dicts. If gone: the package `optree`, or ten lines."""
BatchNorm = batchnorm._BatchNorm
"""The base class of batch norms. If gone: a tuple of `nn.BatchNorm1d`, `2d`, `3d` and `nn.SyncBatchNorm`."""
OpOverload = torch._ops.OpOverload
"""The class of operators with their overload. If gone: `type(torch.ops.aten.add.Tensor)`."""
foreach_lerp_ = torch._foreach_lerp_
"""One kernel for a list of tensors, as in torch.optim. If gone: a loop over `lerp_`, which is slower."""
foreach_mul_ = torch._foreach_mul_
"""The same for a product. If gone: a loop over `mul_`."""
foreach_add_ = torch._foreach_add_
"""The same for a sum. If gone: a loop over `add_`."""


def compiled_module_class() -> type[nn.Module] | None:
    """Return the class of compiled modules; None before anything is compiled, as importing it is slow.

    If gone: `type(torch.compile(nn.Identity()))`.
    """
    file = sys.modules.get("torch._dynamo.eval_frame")
    return None if file is None else file.OptimizedModule


def indexing_by_tensors() -> AbstractContextManager[None]:
    """A block in which `torch.vmap` can index a tensor by a tensor. Transformers uses it for masks as well.

    If gone: what Transformers' `masking_utils` uses then.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()


def set_generator_metaclass() -> None:
    """Give `torch.Generator` its metaclass, as importing `torch._prims` does; without it none can be made.

    If gone: there is no metaclass to give.
    """
    try:
        from torch._C import _set_generator_metaclass
        from torch._opaque_base import OpaqueBaseMeta
    except ImportError:  # before PyTorch 2.10 or so
        return
    _set_generator_metaclass(OpaqueBaseMeta)
