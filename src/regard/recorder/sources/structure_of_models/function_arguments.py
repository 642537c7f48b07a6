"""Interprets the arguments of an attention function in Transformers' style.

Such a function takes `(module, query, key, value, attention_mask, …)`. Which of the other arguments it reads
is determined from its bytecode: an argument that it does not read changes nothing, and one that it reads and
that is unknown here keeps its layer from being certified.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import causal, rule
from regard.attention.masks.position_masks import Window
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.maps import AttentionMap
from regard.recorder.attention_call import AttentionCall, dropout_problem
from regard.recorder.certificates.examination import examine
from regard.recorder.sources.sdpa import autocast
from regard.recorder.sources.sdpa_call import equal_heads, four_dimensions, leading_shape, written_keys
from regard.recorder.sources.transformers_library.mask_recognition import as_bias, read_mask
from regard.recorder.sources.transformers_library.transformers_attention import IGNORED
from regard.recorder.sources.transformers_library.transformers_masks import RuleMask
from regard.recorder.tokens_of_maps.packed_documents import documents_of_edges, documents_of_positions

FIRST = ("module", "query", "key", "value", "attention_mask")
INTERPRETED = frozenset(
    (
        *FIRST,
        "dropout",
        "scaling",
        "is_causal",
        "softcap",
        "s_aux",
        "position_bias",
        "sliding_window",
        "training",
    )
)


class ArgumentUse(NamedTuple):
    """The arguments that a function's code reads."""

    names: frozenset[str]
    everything: bool
    """Whether it may read every argument, because it passes its keyword arguments on."""
    attributes: frozenset[str]
    """The names of attributes and globals in its code."""

    def reads(self, name: str) -> bool:
        """Whether the function may read an argument of this name."""
        return self.everything or name in self.names


@functools.cache
def argument_use(function: Callable[..., Any]) -> ArgumentUse:
    """Determine from its bytecode which arguments a function reads; all of them if it has no bytecode."""
    plain: Any = inspect.unwrap(function)
    # A `functools.partial` has no code of its own.
    plain = getattr(plain, "func", plain)
    code = getattr(plain, "__code__", None)
    if code is None:
        return ArgumentUse(frozenset(), True, frozenset())
    parameters = inspect.signature(plain).parameters.values()
    names = {x.name for x in parameters if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)}
    collected = next((x.name for x in parameters if x.kind is x.VAR_KEYWORD), None)
    everything = any(x.kind is x.VAR_POSITIONAL for x in parameters)
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PUSH_NULL")]
    for step, after, key in zip(steps, steps[1:], steps[2:], strict=False):
        # Python 3.13 loads two variables by one instruction, whose argument is a pair.
        loaded = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if collected is None or collected not in loaded:
            continue
        if after.argval in ("get", "pop") and isinstance(key.argval, str):
            names.add(key.argval)  # kwargs.get("softcap")
        else:
            everything = True
    return ArgumentUse(frozenset(names), everything, frozenset(code.co_names))


def attention_call(
    function: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    *args: Any,
    result: Any,
    **kwargs: Any,
) -> AttentionCall:
    """Return a call of an attention function, which returned `result`, as an `AttentionCall`."""
    use = argument_use(function)
    named = _named_arguments(function, args, kwargs)
    used = {name: x for name, x in named.items() if x is not None and use.reads(name)}
    q, k, v = autocast(query, key, value)
    lead = leading_shape(q, k)
    q, k, v = (four_dimensions(x, lead) for x in (q, k, v))
    k, v = equal_heads(k, v)
    shape = (*q.shape[:3], v.shape[-1])
    output = _output(result, shape)
    settings: dict[str, Any]
    if isinstance(result, tuple) and isinstance(result[-1], AttentionMap) and output is not None:
        m = result[-1]  # Regard's own attention returns the map itself
        sinks = m.sinks if m.sinks is None else used["s_aux"].to(q.dtype).flatten()
        settings = {"scale": m.scale, "softcap": m.softcap, "sinks": sinks}
        problem = dropout_problem(used.get("dropout", 0.0))
        S = m.matrix[3]
        # The map's own q and k have no gradients, and are copies if the model may write to them.
        q, k = (q, k[:, :, :S]) if q.requires_grad or k.requires_grad else (m.q, m.k)
        return AttentionCall(
            q, k, v[:, :, :S], output, m.lse, m.mask, **settings, own_lse=True, problem=problem, kept=m.kept
        )
    sinks = used.get("s_aux")
    # The eager attention of gpt-oss reads `module.sinks`, although it is also passed `s_aux`.
    if sinks is None and "sinks" in use.attributes:
        sinks = getattr(module, "sinks", None)
    settings = {
        "scale": float(used["scaling"]) if "scaling" in used else q.shape[-1] ** -0.5,
        "softcap": used.get("softcap"),
        "sinks": None if sinks is None else sinks.to(q.dtype).flatten(),
    }
    weights = own_weights(result, (*q.shape[:3], k.shape[2]))
    problem = _problem(function, used, output)
    if output is None:
        output = q.new_zeros(shape)
    softly_masked = _has_softly_masked_rows(attention_mask, q, k)
    # The first candidate mask that can be certified; the likeliest one if none can.
    first: AttentionCall | None = None
    for mask, keys in _candidate_masks(attention_mask, used, module, q.shape[2], k):
        written_k, written_v = k[:, :, :keys], v[:, :, :keys]
        written_weights = None if weights is None else weights[..., :keys]
        call = AttentionCall(
            q,
            written_k,
            written_v,
            output,
            None,
            mask,
            **settings,
            weights=written_weights,
            softly_masked_rows=softly_masked,
            problem=problem,
        ).with_lse()
        first = first or call
        if problem is not None or is_certified(call):
            return call
    assert first is not None
    return first


@torch.no_grad()
def is_certified(call: AttentionCall) -> bool:
    """Whether a call's weights times its values are its output."""
    v, output = call.v.detach(), call.output.detach()
    soft = call.softly_masked_rows
    return examine(call.attention_map(), v, output, weights=call.weights, softly_masked_rows=soft).certified


def _has_softly_masked_rows(mask: Any, q: Tensor, k: Tensor) -> bool:
    """Whether a mask tensor masks every key of some query by finite numbers alone."""
    return type(mask) is Tensor and mask.ndim == 4 and read_mask(mask, q.shape[2], k.shape[2]).softly_masked


def _named_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments after the mask by name."""
    if not args:
        return kwargs
    parameters = list(inspect.signature(function).parameters)[len(FIRST) :]
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def _problem(function: Callable[..., Any], used: dict[str, Any], output: Tensor | None) -> str | None:
    """Return why a call cannot be certified whatever its numbers are, or None."""
    unknown = sorted(used.keys() - INTERPRETED - IGNORED)
    name = getattr(function, "__name__", type(function).__name__)
    if unknown:
        return f"its function {name} received {', '.join(unknown)}, whose meaning is not known here"
    if used.get("dropout"):
        return dropout_problem(used["dropout"])
    return (
        None if output is not None else f"its function {name} returns no output (B, T, H, E) to compare with"
    )


def _output(result: Any, shape: tuple[int, int, int, int]) -> Tensor | None:
    """Return the output in a function's result as (B, H, T, E), or None if there is none of that size."""
    output = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(output, Tensor):
        return None
    B, H, T, E = shape
    # Some functions merge their heads before they return.
    if output.shape == (B, T, H, E) or (output.numel() == B * H * T * E and output.shape[-1] == H * E):
        return output.reshape(B, T, H, E).transpose(1, 2)
    return None


def own_weights(result: Any, shape: tuple[int, ...]) -> Tensor | None:
    """Return the weights of this shape that a function returned beside its output, or None."""
    weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    return weights.detach() if isinstance(weights, Tensor) and weights.shape == shape else None


def _candidate_masks(
    mask: Any, used: dict[str, Any], module: nn.Module, T: int, k: Tensor
) -> list[tuple[Mask, int]]:
    """Return what a function's mask may mean, the likeliest first, each with the number of written keys."""
    keys = S = k.shape[2]
    if mask is None:
        read: Mask = full
    elif isinstance(mask, RuleMask):
        read, keys = mask.rule, mask.keys
    elif isinstance(mask, Tensor) and mask.ndim == 2:
        read = Padding(mask[:, -S:].bool())
    elif isinstance(mask, Tensor):
        read, keys = read_mask(mask, T, S)[:2]
        if (reach := written_keys(mask, k, T)) < keys:
            read, keys = read_mask(mask[..., :reach], T, reach)[:2]
    elif hasattr(mask, "mask_mod"):  # FlexAttention's BlockMask counts queries from 0
        predicate = mask.mask_mod
        read = rule(lambda b, h, q, k: predicate(b, h, q - (S - T), k))
    else:
        raise ValueError(f"attention_mask: expected a tensor, a BlockMask or None, got {type(mask).__name__}")
    if "position_bias" in used:
        bias = as_bias(used["position_bias"][..., :keys])
        read = _both(read, bias)
    candidates = [read]
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
        # Kernels without a mask tensor have flags for causal order and for the window.
        ordered = read if T == 1 else _both(causal, read)
        window = used.get("sliding_window")
        near = ordered if window is None else _both(ordered, Window(int(window)))
        flag = used.get("is_causal", getattr(module, "is_causal", None))
        candidates = [near, ordered, read] if flag and "is_causal" in used else [read, near, ordered]
        candidates.append(causal.top_left if read is full else causal.top_left & read)
        # FlashAttention packs documents: by their edges, or where positions begin again.
        if T == S and (packed := _packed_documents(used, T)) is not None:
            candidates = [*(_both(x, packed) for x in candidates), *candidates]
    elif isinstance(mask, Tensor) and T == S == keys:
        candidates += [causal, full]  # a function may ignore the mask that it is given, as users' do
    return [(x, keys) for x in {id(x): x for x in candidates}.values()]


def _packed_documents(used: dict[str, Any], T: int) -> Mask | None:
    """Return the documents of T tokens as an implementation of FlashAttention is told them; None if not."""
    edges, positions = used.get("cu_seq_lens_q"), used.get("position_ids")
    if isinstance(edges, Tensor) and edges.ndim == 1 and int(edges[-1]) == T:
        return Documents(documents_of_edges(edges, T)[None])
    if isinstance(positions, Tensor) and positions.ndim == 2 and positions.shape[1] == T:
        documents = documents_of_positions(positions)
        return Documents(documents) if bool(documents.any()) else None
    return None


def _both(left: Mask, right: Mask) -> Mask:
    return right if left is full else left if right is full else left & right
