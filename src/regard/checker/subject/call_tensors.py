"""Tensors on their way into a call and out of it: copies, dtypes, arrays, grids, named arguments."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The arguments of F.scaled_dot_product_attention by their meaning, in their order.
SDPA = {"query": "query", "key": "key", "value": "value", "mask": "attn_mask", "dropout": "dropout_p"}
SDPA |= {"causal": "is_causal", "scale": "scale", "grouped": "enable_gqa"}


def rows_sum_to_one(t: Tensor) -> bool:
    # Weights in bfloat16 have steps of 8e-3.
    return bool(((t.detach().double().sum(-1) - 1).abs() < 1e-2).all())


def as_grid(T: int) -> tuple[int, int]:
    """Return the height and the width of an image of T pixels, the height as near the root as possible."""
    height = max(h for h in range(1, math.isqrt(T) + 1) if T % h == 0)
    return height, T // height


def as_sequence(t: Tensor, layout: str) -> Tensor | None:
    """Return a tensor of a layout of sequences as (B, T, C), or None if its dimensions do not fit."""
    if t.ndim != len(layout):
        return None
    return {
        "BTC": lambda: t,
        "TBC": lambda: t.transpose(0, 1),
        "TC": lambda: t[None],
        "BCT": lambda: t.transpose(1, 2),
        "BCHW": lambda: t.flatten(2).transpose(1, 2),
        "BHWC": lambda: t.flatten(1, 2),
    }[layout]()


def to_heads(t: Tensor, layout: str) -> Tensor:
    """Return a tensor of a layout of heads, one of `understand.HEAD_LAYOUTS`, as (B, H, T, D)."""
    return {
        "BHTD": lambda: t,
        "BTHD": lambda: t.transpose(1, 2),
        "BTD": lambda: t[:, None],
        "TD": lambda: t[None, None],
        "TBHD": lambda: t.permute(1, 2, 0, 3),
        "TBD": lambda: t.transpose(0, 1)[:, None],
    }[layout]()


def from_heads(t: Tensor, layout: str) -> Tensor:
    """Return a tensor (B, H, T, D) in a layout of heads; see `to_heads`."""
    return {
        "BHTD": lambda: t,
        "BTHD": lambda: t.transpose(1, 2),
        "BTD": lambda: t[:, 0],
        "TD": lambda: t[0, 0],
        "TBHD": lambda: t.permute(2, 0, 1, 3),
        "TBD": lambda: t[:, 0].transpose(0, 1),
    }[layout]()


def to_array(value: Any) -> Any:
    """Return a tensor as a NumPy array, and anything else as it is."""
    return value.detach().numpy() if isinstance(value, Tensor) else value


def from_arrays(result: Any) -> Any:
    """Return NumPy arrays, alone or in a tuple or list, as tensors."""
    if isinstance(result, list | tuple):
        return [from_arrays(part) for part in result]
    # By name, so that NumPy is not imported for code that does not use it.
    return (
        torch.from_numpy(result)
        if type(result).__module__ == "numpy" and hasattr(result, "shape")
        else result
    )


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a module's floating-point tensors; complex ones stay complex, which `.to(dtype)` would undo."""
    wide = torch.complex128 if dtype == torch.float64 else torch.complex64

    def convert(x: Tensor) -> Tensor:
        return x.to(wide) if x.is_complex() else x.to(dtype) if x.is_floating_point() else x

    # `.to()` is made of this, and converts no single kind of tensor.
    converted: nn.Module = module._apply(convert)  # type: ignore[no-untyped-call]
    return converted


def copy_module(module: nn.Module) -> nn.Module:
    """Copy a module, even one that keeps tensors of an earlier forward pass as attributes."""
    saved = [(part, dict(vars(part))) for part in module.modules()]
    try:
        for part, attributes in saved:
            part.__dict__.update({name: _detach(value) for name, value in attributes.items()})
        return copy.deepcopy(module)
    finally:
        for part, attributes in saved:
            part.__dict__.update(attributes)


def _detach(value: Any) -> Any:
    """Detach tensors from their graph: `deepcopy` refuses those that are not leaves."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return value.detach()
    # Not isinstance: a named tuple takes its fields one by one.
    if type(value) in (list, tuple):
        return type(value)(_detach(part) for part in value)
    return value


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (B, H, T, D) as Transformers does: channel i is paired with channel i + D/2."""
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-b, a], -1) * sin[:, None]


def tensors_in_result(result: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result: the result itself, or those in a tuple, list, dict or dataclass."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, dict):
        yield from (x for x in result.values() if isinstance(x, Tensor))
    elif isinstance(result, list | tuple):
        yield from (x for x in result if isinstance(x, Tensor))
    elif hasattr(result, "__dataclass_fields__"):
        yield from (x for x in vars(result).values() if isinstance(x, Tensor))


def describe_result(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {', '.join(type(x).__name__ for x in result) or 'nothing'}"
    return "nothing (None)" if result is None else f"a {type(result).__name__}"


def arguments_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, or of a module's forward pass."""
    # This function is written in C and has no signature.
    if target is F.scaled_dot_product_attention:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {"dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
        optional = {
            name: inspect.Parameter(name, kind, default=defaults.get(name))
            for name in list(SDPA.values())[3:]
        }
        return {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")} | optional
    function = target.forward if isinstance(target, nn.Module) else target
    function = getattr(function, "_init_fn", function)  # of an operator made by torch.library.custom_op
    try:
        parameters = dict(inspect.signature(function).parameters)
        if (
            any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
            or not parameters
        ):
            return parameters
        # A wrapper of (*args, **kwargs) says nothing; three tensors are likeliest.
        raise ValueError("it names no argument")
    except (TypeError, ValueError):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")}
