"""Linear attention and state-space layers: reads the calls of those that capture can read.

Transformers calls the function of such a layer by its name in the model's file, whichever kernel or fallback
is behind it; so does code that uses the flash-linear-attention library. The model's own function runs with
its own arguments. What is read from them is compared with the function's result by the certificate. Lightning
attention (MiniMax) has its recurrence in its own code: its queries, keys and values are what its projection
returns, after its activation, and its output is what its norm receives.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.recorder.attention_call import AttentionCall, Call, Recurrence, UnreadableCall
from regard.recorder.sources import token_order
from regard.recorder.sources.call_listeners import listeners_to, notify, read_or_explain
from regard.recorder.sources.sdpa_call import repeats_heads
from regard.recorder.sources.structure_of_models.calling_modules import calling_module
from regard.recorder.sources.structure_of_models.model_parts import KnownModel
from regard.recorder.sources.structure_of_models.module_kinds import (
    GATED_DELTA_RULE,
    MAMBA2_SCAN,
    MAMBA2_STEP,
    MAMBA2_WHOLE,
    is_lightning,
)
from regard.support.override import MethodWrappers, Replacement

# What `l2norm` of Transformers and of flash-linear-attention adds to the sum of squares.
QK_NORM = 1e-6
Arguments = Mapping[str, Any]
Read = Callable[[Arguments, Tensor | None, Any], Call | None]
"""`read(arguments, state before, result)`: the call, or None if the function computed nothing."""


def replacements(model: KnownModel) -> Iterator[Replacement]:
    """Yield the functions of a model's linear layers, under their names in the model's files."""
    for file in {type(model.modules[name]).__module__ for name in model.parts.linear}:
        for name, read in READERS.items():
            if callable(getattr(sys.modules.get(file), name, None)):
                yield Replacement(sys.modules[file], name, functools.partial(_observed, read))


def _observed(read: Read, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the listeners of the calling module receive its calls."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        caller = calling_module()
        listeners = [x for x in listeners_to(caller) if not x.is_editor]
        arguments = _arguments(signature, args, kwargs) if listeners else {}
        state = arguments.get("state")
        # Mamba-2's step writes the new state into the same tensor (`state.copy_`).
        before = state.detach().clone() if isinstance(state, Tensor) else None
        # Chunks and padding inside of it look like tokens that are cut and shifted.
        with token_order.Pause():
            result = function(*args, **kwargs)
        if listeners:
            with torch.no_grad(), token_order.Pause():
                call = read_or_explain(read, arguments, before, result)
            if isinstance(call, AttentionCall) and call.recurrence is not None:
                recurrence = call.recurrence._replace(convolution=_convolution(caller))
                call = call._replace(recurrence=recurrence)
            if call is not None:
                notify(listeners, call)
        return result

    return observed


def _arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults and what the function takes as `**kwargs`."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    others = bound.arguments.pop("kwargs", {})
    return {**bound.arguments, **others}


def _first(arguments: Arguments, *names: str) -> Any:
    """Return the first of these arguments that is given; libraries name the same one differently."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _read_delta_rule(arguments: Arguments, before: Tensor | None, result: Any) -> Call:
    """Read a call of a gated delta rule."""
    # A state that begins again inside of a row is not in the formula of the map.
    if _first(arguments, "cu_seqlens", "cu_seq_lens_q") is not None:
        return UnreadableCall("it reads several packed texts at once")
    q, k, v = (_first(arguments, *names) for names in (("query", "q"), ("key", "k"), ("value", "v")))
    decay, beta = (arguments[name] for name in ("g", "beta"))
    output, final_state = result
    scale = _first(arguments, "scale")
    q, k = _without_repeats(*(x.detach().transpose(1, 2) for x in (q, k)))
    recurrence = Recurrence(
        # Transformers' fallback computes the recurrence in float32, whatever its inputs are.
        decay=decay.detach().transpose(1, 2).float(),
        beta=beta.detach().transpose(1, 2).float(),
        delta_rule=True,
        qk_norm=QK_NORM if arguments.get("use_qk_l2norm_in_kernel") else None,
        initial_state=_detached(arguments.get("initial_state")),
        final_state=_detached(final_state),
    )
    v, output = (x.detach().transpose(1, 2) for x in (v, output))
    return recurrence.call(q, k, v, output, scale=q.shape[-1] ** -0.5 if scale is None else float(scale))


def _read_scan(arguments: Arguments, before: Tensor | None, result: Any) -> Call:
    """Read a call of Mamba-2's recurrence over a text."""
    if _first(arguments, "cu_seqlens", "seq_idx") is not None:
        return UnreadableCall("it reads several packed texts at once")
    x = _first(arguments, "hidden_states", "x")  # (B, T, H, E)
    output, final_state = result if isinstance(result, tuple) else (result, None)
    dt = _time_steps(arguments["dt"], arguments)  # (B, T, H)
    low, high = arguments.get("dt_limit") or (0.0, torch.inf)
    dt = dt.clamp(low, high).float().transpose(1, 2)
    initial_state = arguments.get("initial_states")
    tensors = (arguments["C"], arguments["B"], x, output)
    recurrence = Recurrence(
        decay=arguments["A"].detach().float()[:, None] * dt,
        beta=dt,
        skip=_detached(arguments.get("D")),
        initial_state=None if initial_state is None else initial_state.detach().mT,
        final_state=None if final_state is None else final_state.detach().mT,
        gate=_gate(arguments.get("z")),
    )
    return recurrence.call(*(tensor.detach().transpose(1, 2) for tensor in tensors))


def _read_step(arguments: Arguments, before: Tensor | None, result: Any) -> Call:
    """Read a call of Mamba-2's recurrence for one token: all its tensors are repeated along the channels."""
    x, A, D = arguments["hidden_states"], arguments["A"], arguments.get("D")
    # Mamba-2 hands over a decay for each head, expanded with stride 0; Mamba-1 has one for each channel.
    if before is None or x.ndim != 3 or A.stride()[1:] != (0, 0):
        return UnreadableCall("every channel decays on its own")
    dt = _time_steps(arguments["dt"], arguments)[..., :1].float()  # (B, H, 1)
    tensors = (arguments["C"], arguments["B"], x, result)
    recurrence = Recurrence(
        decay=A[:, 0, :1].detach().float() * dt,
        beta=dt,
        skip=None if D is None else D[:, 0].detach(),
        initial_state=before.mT,
        # The next step writes to this tensor.
        final_state=arguments["state"].detach().mT.clone(),
        gate=_gate(arguments.get("z")),
    )
    return recurrence.call(*(tensor.detach().unsqueeze(2) for tensor in tensors))


def _read_whole(arguments: Arguments, before: Tensor | None, result: Any) -> Call | None:
    """Explain why a layer in one kernel cannot be read; None comes back if there is no such kernel."""
    return (
        # Transformers calls this name without a kernel, too, and then goes on with `mamba2_chunk_scan`.
        None if result is None else UnreadableCall("its kernel computes the whole layer: run it in eval mode")
    )


READERS: dict[str, Read] = {
    **dict.fromkeys(GATED_DELTA_RULE, _read_delta_rule),
    **dict.fromkeys(MAMBA2_SCAN, _read_scan),
    **dict.fromkeys(MAMBA2_STEP, _read_step),
    **dict.fromkeys(MAMBA2_WHOLE, _read_whole),
}


def _time_steps(dt: Tensor, arguments: Arguments) -> Tensor:
    """Return the time steps as the model computes them, in the dtype that it computes them in."""
    dt, bias = dt.detach(), arguments.get("dt_bias")
    if bias is not None:
        # In half precision the sum is rounded, as the model's is.
        dt = dt + bias.detach().to(dt.dtype)
    return F.softplus(dt) if arguments.get("dt_softplus") else dt


def _gate(z: Tensor | None) -> Tensor | None:
    """Return silu(z) as (B, H, T, E), from z (B, T, H, E) or, for one token, (B, H, E)."""
    if z is None:
        return None
    return F.silu(z.detach().transpose(1, 2) if z.ndim == 4 else z.detach().unsqueeze(2))


def _without_repeats(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return q and k (B, H, T, D) with heads that are the same for a whole group of heads stored once."""
    H, T = q.shape[1:3]
    # Most tensors differ at a few tokens already, which costs little to see.
    some = slice(None, None, max(1, T // 16))
    for group in (n for n in range(H, 1, -1) if H % n == 0):
        if all(repeats_heads(y, group) for x in (q, k) for y in (x[:, :, some], x)):
            return q[:, ::group].contiguous(), k[:, ::group].contiguous()
    return q, k


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else None


def _convolution(module: nn.Module) -> int | None:
    """Return the number of tokens over which a layer's short convolution runs before the recurrence."""
    sizes = [int(x.kernel_size[0]) for x in module.children() if isinstance(x, nn.Conv1d)]
    return max(sizes, default=None)


Take = Callable[[nn.Module, AttentionCall], object]


def watch_lightning(model: KnownModel, take: Take, wrappers: MethodWrappers) -> None:
    """Add wrappers by which `take` receives the calls of a model's modules of lightning attention."""
    for module in filter(is_lightning, (model.modules[name] for name in model.parts.linear)):
        heard: dict[str, Tensor] = {}
        parts: Any = module
        wrappers.add(parts.qkv_proj, "forward", functools.partial(_note_projection, heard))
        wrappers.add(parts.norm, "forward", functools.partial(_note_output, heard))
        wrappers.add(module, "forward", functools.partial(_run_lightning, module, heard, take))


def _note_projection(heard: dict[str, Tensor], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the projection and note what it returns."""
    heard["projected"] = forward(*args, **kwargs)
    return heard["projected"]


def _note_output(heard: dict[str, Tensor], forward: Callable[..., Any], x: Tensor, *args: Any) -> Any:
    """Note what the norm receives and run it."""
    heard["output"] = x.detach()
    return forward(x, *args)


def _run_lightning(
    module: Any, heard: dict[str, Tensor], take: Take, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a module and pass on what was heard. MiniMax passes its mask and its cache by name."""
    cache, layer = kwargs.get("past_key_values"), getattr(module, "layer_idx", None)
    # The cache gets the new state from the module, and the old one is gone then.
    before = _state(cache, layer)
    result = forward(*args, **kwargs)
    # Compiled code is traced and not run.
    if not torch.compiler.is_compiling() and len(heard) == 2:
        mask, after = kwargs.get("attention_mask"), _state(cache, layer)
        with torch.no_grad():
            take(module, _lightning_call(module, heard["projected"], heard["output"], mask, before, after))
    heard.clear()
    return result


def _lightning_call(
    module: Any,
    projected: Tensor,
    output: Tensor,
    mask: Tensor | None,
    before: Tensor | None,
    after: Tensor | None,
) -> AttentionCall:
    """Return the call of a module whose projection and whose output before the norm are known."""
    B, T, _ = projected.shape
    heads, width = module.num_attention_heads, module.head_dim
    qkv = module.act_fn(projected.detach())
    # MiniMax sets padding to zero after the activation (`apply_mask_to_padding_states`).
    if mask is not None:
        qkv = (qkv * mask[:, :, None]).to(qkv.dtype)
    # MiniMax has q, k and v of a head next to one another, not those of all heads.
    q, k, v = qkv.view(B, T, heads, 3 * width).transpose(1, 2).split(width, -1)
    slope = module.slope_rate.detach().float().view(1, heads, 1)
    recurrence = Recurrence(-slope.expand(B, heads, T), initial_state=before, final_state=after)
    return recurrence.call(q, k, v, output.view(B, T, heads, width).transpose(1, 2))


def _state(cache: Any, layer: int | None) -> Tensor | None:
    """Return a copy of the state that a cache holds for a layer, or None if it holds none."""
    # Only MiniMax's own cache has it; others hold no state.
    if cache is None or not hasattr(cache, "get_linear_cache"):
        return None
    state = cache.get_linear_cache(layer)
    return state.detach().clone() if isinstance(state, Tensor) else None
