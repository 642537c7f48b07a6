"""Listening to PyTorch's `scaled_dot_product_attention`.

While a capture is open, the function is replaced by `listened_to`, which computes the same bits: it runs the
same kernel, through the operator that also returns the row log-sum-exp where there is one, and hands the call
to whoever listens in the current context. Code outside of that context notices nothing.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack as _modes

from regard.attention.attend import attend
from regard.attention.backends import fused_attention
from regard.attention.backends.problem import prepare
from regard.attention.masks.base import Mask
from regard.attention.masks.named import causal
from regard.override import SharedOverride
from regard.recorder.attention_call import AttentionCall, Unreadable, dropout_problem
from regard.recorder.sources.mask_recognition import hidden, read_mask

aten = torch.ops.aten
original = functional.scaled_dot_product_attention

Hear = Callable[[AttentionCall | Unreadable], None]
_listeners: ContextVar[tuple[Hear, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(*listeners: Hear) -> Iterator[None]:
    """Inside the block, these and no others hear the calls that this context makes."""
    before = _listeners.get()
    _listeners.set(listeners)
    try:
        yield
    finally:
        _listeners.set(before)


def current_listeners() -> tuple[Hear, ...]:
    return _listeners.get()


_computing: ContextVar[bool] = ContextVar("computing", default=False)  # inside `listened_to`
_cover = SharedOverride()


@contextmanager
def replaced(model: nn.Module) -> Iterator[None]:
    """While any such block is open, the function is listened to, by every name in the model's code."""
    with _cover.opened(), ExitStack() as undo:
        for file in (functional, *_files(model)):
            replace_in(file)
        # PyTorch's own modules leave their fused kernels where such a mode is on.
        fused = any(
            isinstance(x, nn.MultiheadAttention | nn.TransformerEncoderLayer) for x in model.modules()
        )
        if not fused and not any(isinstance(mode, ByAnyName) for mode in _modes()):  # type: ignore[no-untyped-call]
            undo.enter_context(ByAnyName())
        yield


class ByAnyName(TorchFunctionMode):
    """Hears the function also where its caller holds it in an attribute, a default argument or a table."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is original and not _computing.get():
            return listened_to(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def replace_in(file: ModuleType) -> None:
    """Listen to the function by the names that it has in a file, too, while a block is open."""
    for name in [name for name, value in vars(file).items() if value is original]:
        _cover.replace(file, name, lambda _: listened_to)


def _files(model: nn.Module) -> Iterator[ModuleType]:
    """The files in which the model's code stands, and the functions that it calls."""
    names = {type(module).__module__ for module in model.modules()}
    for name in list(names):
        values = vars(sys.modules[name]).values() if name in sys.modules else ()
        names |= {value.__module__ for value in values if isinstance(value, FunctionType)}
    for name in names:
        if name in sys.modules and not name.startswith(("torch.", "regard.")):
            yield sys.modules[name]


def listened_to(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention`, heard by those who listen in this context."""
    token = _computing.set(True)
    try:
        return _heard(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    finally:
        _computing.reset(token)


def _heard(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    run = functools.partial(
        original,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    listeners = _listeners.get()
    if not listeners or torch.compiler.is_compiling():
        return run(query, key, value)
    if query.is_nested:
        for hear in listeners:
            hear(Unreadable("its queries are a nested tensor"))
        return run(query, key, value)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        for hear in listeners:
            hear(Unreadable("it runs inside a transform of torch.func, which hides its numbers"))
        return run(query, key, value)
    query, key, value = autocast(query, key, value)
    try:
        output, lse = _run_with_lse(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except (RuntimeError, NotImplementedError, TypeError):  # tensors that only the function itself takes
        output, lse = None, None
    if output is None:
        output = run(query, key, value)
    with torch.no_grad(), listening():
        call = readable(described, query, key, value, output, attn_mask, is_causal, scale, lse)
        if isinstance(call, AttentionCall):
            call = call._replace(problem=dropout_problem(dropout_p))
        for hear in listeners:
            hear(call)
    return output


def readable(read: Callable[..., AttentionCall], *args: Any, **kwargs: Any) -> AttentionCall | Unreadable:
    """What a call says, or why it cannot be read: that is no reason for the model to stop."""
    try:
        return read(*args, **kwargs)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, RuntimeError) as error:
        return Unreadable(f"{type(error).__name__}: {error}")


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """q, k and v as PyTorch's own attention takes them where autocast is on."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def _run_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Output and lse from the operator that PyTorch would choose, or nothing where it gives no lse."""
    if q.ndim != 4 or k.ndim != 4 or dropout or len(q) != len(k) or 0 in (*q.shape, *k.shape):
        return None, None
    choice = SDPBackend(
        torch._fused_sdp_choice(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
    )
    if q.device.type == "cpu":
        if choice != SDPBackend.FLASH_ATTENTION:  # compared by ==: PyTorch makes these anew each time
            return None, None
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
        output, lse = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
        )
        return output, lse.detach()
    if mask is not None or choice not in fused_attention.FUSED or (is_causal and q.shape[2] != k.shape[2]):
        return None, None
    problem = prepare(q, k, v, mask=causal if is_causal else None, scale=_scale(q, scale))
    return fused_attention.run(problem, chosen=choice)


def _scale(q: Tensor, scale: float | None) -> float:
    # As PyTorch has it: in float64 this is not the same as D ** -0.5.
    return 1.0 / math.sqrt(max(q.shape[-1], 1)) if scale is None else float(scale)


def described(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    lse: Tensor | None = None,
) -> AttentionCall:
    """A call of the function as an `AttentionCall`, whatever its rank; lse is computed unless it is given."""
    q, k, v, out = query.detach(), key.detach(), value.detach(), output.detach()
    lead = leading_shape(q, k)
    q, k, v, out = (four_dimensions(x, lead) for x in (q, k, v, out))
    k, v = equal_heads(k, v)
    T, S = q.shape[2], k.shape[2]
    mask: Mask | None = None
    keys, blind, finite = S, None, False
    if attn_mask is not None:
        mask, keys, blind, finite = read_mask(whole := _mask_of(attn_mask, query.ndim, lead), T, S)
        if (reach := written_keys(whole, k)) < keys:
            mask, keys, blind, finite = read_mask(whole[..., :reach], T, reach)
        k, v = k[:, :, :keys], v[:, :, :keys]
    if is_causal:
        order = causal if k.shape[2] == T else causal.top_left
        mask = order if mask is None else mask & order
    settings: dict[str, Any] = {"mask": mask, "scale": _scale(query, scale)}
    own_lse = lse is not None
    if lse is None:
        lse = attend(q, k, k, **settings, return_lse=True)[1]
    elif blind is not None:  # PyTorch's kernels give 0 there
        lse = lse.masked_fill(blind, -torch.inf)
    rule = prepare(q, k, k, **settings).mask if mask is None else mask
    return AttentionCall(q, k, v, out, lse, rule, settings["scale"], own_lse=own_lse, soft_blind=finite)


def leading_shape(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """What stands before (H, T, D) in q and k, with broadcasting."""
    if min(q.ndim, k.ndim) < 4:
        return tuple(q.shape[:-3])
    return tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3]))  # type: ignore[no-untyped-call]


def four_dimensions(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(T, D), (B, T, D) of one head, or (…, H, T, D) as (B, H, T, D)."""
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        return x[:, None]
    return (
        x.expand(*lead, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
        if x.ndim > 4
        else x.expand(*lead, -1, -1, -1)
    )


def equal_heads(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with equally many heads, where one of them is shared by more queries."""
    heads = max(k.shape[1], v.shape[1])
    k = k.repeat_interleave(heads // k.shape[1], 1) if k.shape[1] < heads else k
    return k, v.repeat_interleave(heads // v.shape[1], 1) if v.shape[1] < heads else v


def written_keys(mask: Tensor, k: Tensor) -> int:
    """How many of the keys have been written: a static cache holds zeros after them, which nobody may see."""
    S = k.shape[2]
    if mask.shape[-1] != S or bool(k[:, :, -1:].any()):
        return S
    seen = (~hidden(mask)).flatten(0, -2).any(0).nonzero()
    reach = int(seen[-1]) + 1 if len(seen) else S
    return S if bool(k[:, :, reach:].any()) else reach


def _mask_of(mask: Tensor, ndim: int, lead: tuple[int, ...]) -> Tensor:
    """A mask that broadcasts to (…, T, S) as one that broadcasts to (B, H, T, S)."""
    if ndim == 3 and mask.ndim == 3:
        return mask[:, None]
    if mask.ndim <= 4:
        return mask
    return mask.expand(*lead, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])
