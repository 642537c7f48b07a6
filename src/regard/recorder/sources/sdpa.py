"""Intercepts PyTorch's `scaled_dot_product_attention`. Every source that hears this function uses this file.

While a capture is open, `observed_attention` stands in for the function, and returns the same bits: it
runs the same kernel, through the operator that also returns the row log-sum-exp if there is one, and passes
the call to the listeners of the current context. Code outside of that context is not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

# PyTorch has no public way to see which modes are on, or to leave one for a block.
from torch.overrides import TorchFunctionMode

from regard.attention.backends import fused_attention
from regard.attention.backends.problem import AttentionProblem, prepare
from regard.attention.backends.triton import launch
from regard.attention.context_parallel.ring import ring_attend, ring_listeners
from regard.attention.masks.named_masks import causal
from regard.maps.tile_passes import kept_overview
from regard.maps.tile_passes.kept_overview import KeptOverview
from regard.recorder.attention_call import AttentionCall, Call, UnreadableCall, dropout_problem
from regard.recorder.rank_group import is_dtensor
from regard.recorder.sources import token_order
from regard.recorder.sources.call_listeners import (
    CallListener,
    Listening,
    current_listeners,
    is_nested,
    is_reading,
    notify,
    read_or_explain,
    reading_mode,
    wants_overview,
)
from regard.recorder.sources.sdpa_call import attention_call, given_scale
from regard.recorder.sources.structure_of_models.calling_modules import calling_module, is_running
from regard.recorder.sources.structure_of_models.code_names import function_name
from regard.recorder.sources.structure_of_models.head_order import (
    HeadOrderError,
    LeadingAxes,
    are_packed,
    head_counts,
    leading_axes,
    note_axes,
    unpack,
)
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.sources.structure_of_models.module_kinds import FUSED_OPERATORS
from regard.support.override import Replacement
from regard.support.torch_internals import (
    any_autocast_enabled,
    current_function_mode,
    current_transform,
    flash_attention_for_cpu,
    function_modes,
    fused_sdp_choice,
    pop_function_mode,
)

aten = torch.ops.aten
original = functional.scaled_dot_product_attention
FUNCTIONS = (original, aten.scaled_dot_product_attention, aten.scaled_dot_product_attention.default)
"""The function, and the operator that stands for it in exported graphs."""
FLASH: int = SDPBackend.FLASH_ATTENTION.value
"""A number, since comparing PyTorch's enumeration takes longer than choosing the kernel."""
LEAVING = {"numpy", "__array__", "tolist", "__dlpack__"}
"""Functions by which a tensor leaves PyTorch."""


def replacements(model: KnownModel) -> Iterator[Replacement]:
    """Yield the function under its public name.

    Transformers' and PyTorch's own code call it by that name, and run without the mode: it would cost each
    operation 10 µs, and PyTorch's modules would leave their fused kernels. All other code runs in the mode.
    """
    # PyTorch's context parallelism puts a function of its own there, which has to run.
    if functional.scaled_dot_product_attention is original:
        yield Replacement(functional, original.__name__, lambda _: observed_attention)


def run_in_mode(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward` with an `AttentionMode`. The modes of a thread are a stack: one is enough."""
    if any(isinstance(mode, AttentionMode) for mode in function_modes()):  # type: ignore[no-untyped-call]
        return forward(*args, **kwargs)
    with AttentionMode():
        return forward(*args, **kwargs)


def run_without_mode(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward` without the mode around it."""
    with without_mode():
        return forward(*args, **kwargs)


def without_mode() -> AbstractContextManager[Any]:
    """Return a block whose operations do not go through the `AttentionMode`, which costs each 10 µs."""
    is_on = isinstance(current_function_mode(), AttentionMode)  # type: ignore[no-untyped-call]
    return pop_function_mode() if is_on else nullcontext()


class AttentionMode(TorchFunctionMode):
    """Intercepts the function where its caller holds it under a name of its own, in an attribute or a table.

    `EagerTrace` follows the other functions, too.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Dynamo warns of cached functions.
        if torch.compiler.is_compiling() or is_reading():
            return func(*args, **kwargs)
        if func in FUNCTIONS:
            return observed_attention(*args, **kwargs)
        if _is_noted(func):
            if (name := function_name(func)) in LEAVING:
                token_order.note_departure(args[0], name)
            elif FUSED_OPERATORS.search(name):
                _report_operator(name)
        output = self.follow(func, args, kwargs)
        note_axes(func, args, output)
        if (unused := _unused.get()) and _goes_on(func, output):
            unused.keep_unless((*args, *kwargs.values()))
        return output

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a function that is not intercepted."""
        return func(*args, **kwargs)


@functools.cache
def _is_noted(func: Any) -> bool:
    """Whether a torch function takes a tensor out of PyTorch, or is an operator that cannot be heard."""
    name = function_name(func)
    return name in LEAVING or bool(FUSED_OPERATORS.search(name))


class UnusedOutputs:
    """The outputs of the attention calls of a running module that no function has taken yet."""

    def __init__(self) -> None:
        self._outputs: list[tuple[Tensor, Sequence[Callable[[], None]]]] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, output: Tensor, if_unused: Sequence[Callable[[], None]]) -> None:
        """Add an output, and what to call if it turns out to be unused."""
        self._outputs.append((output, if_unused))

    def keep_unless(self, values: Iterable[Any]) -> None:
        """Take out the outputs that are among some values, or in a list or tuple among them."""
        # By identity, since `in` would compare the entries of tensors.
        used = {id(x) for value in values for x in (value if isinstance(value, list | tuple) else (value,))}
        self._outputs = [entry for entry in self._outputs if id(entry[0]) not in used]

    def disown(self) -> None:
        """Tell the listeners of the outputs that are left that nothing used them."""
        for _, if_unused in self._outputs:
            for disown in if_unused:
                disown()


_unused: ContextVar[UnusedOutputs | None] = ContextVar("unused_outputs", default=None)


def run_and_disown(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a module's `forward`; attention whose output it neither returns nor works on is disowned.

    Only a mode, which must be on, sees which functions take an output.
    """
    unused = UnusedOutputs()
    token = _unused.set(unused)
    try:
        output = forward(*args, **kwargs)
    finally:
        _unused.reset(token)
    if unused:
        unused.keep_unless([output, *(output.values() if isinstance(output, dict) else ())])
    unused.disown()
    return output


def _goes_on(func: Any, output: Any) -> bool:
    """Whether a function passes on what it was given, and does not just look at it, as `allclose` does."""
    if isinstance(output, Tensor):
        return output.is_floating_point() or output.is_complex()
    is_attribute = getattr(func, "__name__", "") == "__get__"  # x.shape, x._base
    return not is_attribute and not isinstance(output, bool | int | float | torch.Size)


def _report_operator(name: str) -> None:
    """Tell the listeners of this context that a module calls an operator which cannot be heard.

    Those who listen instead hear the function around it, and so do those who listen to Regard's own layers
    or to a ring.
    """
    if ring_listeners.get() and is_running(ring_attend.__code__):
        return
    if not is_nested() and not type(calling_module()).__module__.startswith("regard."):
        notify(
            current_listeners(), UnreadableCall(f"it calls PyTorch's operator {name}, which cannot be heard")
        )


def observed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `scaled_dot_product_attention` and pass the call to the listeners of this context."""
    options: dict[str, Any] = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal}
    run: functools.partial[Tensor] = functools.partial(
        original, **options, scale=scale, enable_gqa=enable_gqa
    )
    # Dynamo traces this call and does not run it, so that there are no numbers to read.
    if torch.compiler.is_compiling():
        return run(query, key, value)
    listeners, has_own_axes = current_listeners(), not is_nested()
    # The operations of the comparison are not the model's: with the mode around them a small Llama under
    # `generate` cost 7.1 to 7.9 times the plain run, and 4.1 to 4.2 without.
    with Listening(), without_mode():
        if not listeners:
            return run(query, key, value)
        return _observed(run, query, key, value, listeners, has_own_axes)


def _observed(
    run: functools.partial[Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    listeners: tuple[CallListener, ...],
    has_own_axes: bool,
) -> Tensor:
    """Compute an attention by `run`, which has the options of the function, or with its lse.

    `has_own_axes` says that its tensors are as the model's code has them, whose first axes may be any.
    """
    mask, dropout, is_causal, scale, _ = run.keywords.values()
    # A nested tensor has no shape (B, H, T, D) to make a map of.
    if query.is_nested:
        notify(listeners, UnreadableCall("its queries are a nested tensor"))
        return run(query, key, value)
    if is_dtensor(query):  # as under PyTorch's context_parallel: each rank has some rows
        result = run(query, key, value)
        own = tuple(x.detach().to_local() for x in cast(Any, (query, key, value, result)))
        with reading_mode(listeners):
            notify(listeners, read_or_explain(attention_call, *own, mask, is_causal, scale))
        return result
    if current_transform() is not None:
        reason = "it runs inside a transform of torch.func, which hides its numbers"
        notify(listeners, UnreadableCall(reason))
        return run(query, key, value)
    independent = token_order.why_independent(query, key)
    # Nested listeners (Transformers' interface) already get (B, H, T, D).
    axes = leading_axes(query, value, key) if has_own_axes else None
    counts = [] if axes is None else head_counts(calling_module())
    is_packed = any(are_packed(x.query_shape, query, key) for x in listeners)
    overview = wants_overview(listeners) and not is_packed
    # Autocast lowers the function itself, but not the operators under it that return the lse.
    query, key, value = autocast(query, key, value)
    kept: KeptOverview | None = None
    try:
        output, lse, kept = _run_with_lse(run, query, key, value, overview)
    except (RuntimeError, NotImplementedError, TypeError):  # tensors that only the function itself takes
        output, lse = None, None
    if output is None:
        output = run(query, key, value)
    with reading_mode(listeners):
        tensors: tuple[Tensor, ...] = (query, key, value, output)
        call: Call
        try:
            if axes is not None:
                tensors, mask = _with_heads(axes, counts, tensors, mask)
            if is_packed:
                tensors, mask, lse = unpack(tensors, mask, lse)
            call = read_or_explain(attention_call, *tensors, mask, is_causal, scale, lse)
        except HeadOrderError as error:
            call = UnreadableCall(str(error))
        if isinstance(call, AttentionCall) and (dropout or kept is not None or independent is not None):
            unplaced = call.unplaced or independent
            call = call._replace(problem=dropout_problem(dropout), kept=kept, unplaced=unplaced)
        call = notify(listeners, call)
    if call.edited is not None:
        output = call.edited.reshape(output.shape)
    if (unused := _unused.get()) is not None and isinstance(call, AttentionCall):
        unused.add(output, call.if_unused)
    return output


def _with_heads(
    axes: LeadingAxes, counts: list[int], tensors: tuple[Tensor, ...], mask: Tensor | None
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """Return q, k, v, the output and the mask as (B, H, …) where (B · H, …) was passed.

    A `HeadOrderError` says that heads cannot be told from texts.
    """
    if tensors[0].ndim == 4:
        axes.check(counts)
        return tensors, mask
    shape, count = axes.split(counts), len(tensors[0])
    if shape is None or any(len(x) != count for x in tensors):
        return tensors, mask
    if mask is not None and mask.ndim == 3 and len(mask) == count:
        mask = mask.reshape(*shape, *mask.shape[1:])
    return tuple(x.reshape(*shape, *x.shape[1:]) for x in tensors), mask


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast q, k and v as PyTorch's own attention does while autocast is on."""
    # Most calls run without autocast, and to ask for a tensor's device takes longer than this question.
    if not any_autocast_enabled() or not torch.is_autocast_enabled(device := tensors[0].device.type):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)


def _run_with_lse(
    run: functools.partial[Tensor], q: Tensor, k: Tensor, v: Tensor, overview: bool
) -> tuple[Tensor | None, Tensor | None, KeptOverview | None]:
    """Return output and lse from the operator that PyTorch would choose; None for both if it has no lse.

    With `overview` Regard's kernel computes them and an overview instead, if it can.
    """
    mask, dropout, is_causal, scale, enable_gqa = run.keywords.values()
    # The operators under the function take four dimensions, no broadcast batch and no empty tensor. With
    # dropout a call is not certified, so that the lse is of no use.
    if q.ndim != 4 or k.ndim != 4 or dropout or q.shape[0] != k.shape[0] or not (q.numel() and k.numel()):
        return None, None, None
    problem, is_cpu = None, q.device.type == "cpu"
    # PyTorch's `is_causal` aligns queries with the first keys and `causal` with the last: they agree if there
    # are as many of both.
    if (overview or not is_cpu) and mask is None and (not is_causal or q.shape[2] == k.shape[2]):
        problem = prepare(q, k, v, mask=causal if is_causal else None, scale=given_scale(q, scale))
        if overview and (results := attend_with_overview(problem)) is not None:
            return results
    # The function itself asks this; the model's output would have other bits on another kernel.
    choice = fused_sdp_choice(
        q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    if is_cpu:
        if choice != FLASH:
            return None, None, None
        # The operator adds its mask; the function turns booleans into numbers like these before it calls it.
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
        output, lse = flash_attention_for_cpu(q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale)
        return output, lse.detach(), None
    if problem is None or (backend := SDPBackend(choice)) not in fused_attention.FUSED:
        return None, None, None
    return *fused_attention.run(problem, chosen=backend), None


def attend_with_overview(problem: AttentionProblem) -> tuple[Tensor, Tensor, KeptOverview] | None:
    """Return output, lse and an overview of an attention from one kernel; None if it is not suited.

    A short text is not: its overviews take no time.
    """
    _, _, T, S = problem.matrix
    if T < kept_overview.MIN_QUERIES or not launch.pools_in_forward(problem):
        return None
    with Listening():
        output, lse, cells = launch.run_with_cells(problem, kept_overview.cell_size(T, S))
    return output, lse, KeptOverview(*cells)
