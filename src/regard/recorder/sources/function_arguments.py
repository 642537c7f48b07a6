"""What the arguments of an attention function in Transformers' style say of its weights.

Such a function takes `(module, query, key, value, attention_mask, …)`. Which of the other arguments it reads
is told from its code: what a function does not read changes nothing, and what it reads and nobody here knows
keeps a layer from being certified.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named import Padding, Window, causal, rule
from regard.maps import AttentionMap
from regard.recorder.attention_call import AttentionCall, dropout_problem
from regard.recorder.certificate import examine
from regard.recorder.sources.mask_recognition import as_bias, read_mask
from regard.recorder.sources.sdpa import autocast, equal_heads, four_dimensions, leading_shape, written_keys
from regard.recorder.sources.transformers_attention import IGNORED
from regard.recorder.sources.transformers_masks import RuleMask

FIRST = ("module", "query", "key", "value", "attention_mask")
UNDERSTOOD = frozenset(
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


class Reads(NamedTuple):
    """Which arguments a function's code reads, by name."""

    names: frozenset[str]
    everything: bool
    """Whether it hands all further keyword arguments on."""
    attributes: frozenset[str]
    """The names of attributes and globals in its code."""

    def reads(self, name: str) -> bool:
        return self.everything or name in self.names


@functools.cache
def reads_of(function: Callable[..., Any]) -> Reads:
    """Which arguments a function reads, told from its code; all of them where it has none to look at."""
    plain: Any = inspect.unwrap(function)
    plain = getattr(plain, "func", plain)
    code = getattr(plain, "__code__", None)
    if code is None:
        return Reads(frozenset(), True, frozenset())
    kinds = inspect.signature(plain).parameters.values()
    names = {x.name for x in kinds if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)}
    collected = next((x.name for x in kinds if x.kind is x.VAR_KEYWORD), None)
    everything = any(x.kind is x.VAR_POSITIONAL for x in kinds)
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PUSH_NULL")]
    for step, after, key in zip(steps, steps[1:], steps[2:], strict=False):
        loaded = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if collected is None or collected not in loaded:
            continue
        if after.argval in ("get", "pop") and isinstance(key.argval, str):
            names.add(key.argval)  # kwargs.get("softcap")
        else:
            everything = True
    return Reads(frozenset(names), everything, frozenset(code.co_names))


def described(
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
    """A call of a function, and what it gave, as an `AttentionCall`."""
    reads = reads_of(function)
    given = _named(function, args, kwargs)
    used = {name: x for name, x in given.items() if x is not None and reads.reads(name)}
    q, k, v = autocast(query.detach(), key.detach(), value.detach())
    lead = leading_shape(q, k)
    q, k, v = (four_dimensions(x, lead) for x in (q, k, v))
    k, v = equal_heads(k, v)
    shape = (*q.shape[:3], v.shape[-1])
    output = _output(result, shape)
    settings: dict[str, Any]
    if isinstance(result, tuple) and isinstance(result[-1], AttentionMap) and output is not None:
        m = result[-1]  # Regard's own attention, which knows what it computed
        settings = {"scale": m.scale, "softcap": m.softcap, "sinks": m.sinks}
        problem = dropout_problem(used.get("dropout", 0.0))
        near_v = v[:, :, : m.matrix[3]]
        return AttentionCall(
            m.q, m.k, near_v, output, m.lse, m.mask, **settings, own_lse=True, problem=problem
        )
    sinks = used.get("s_aux")
    if sinks is None and "sinks" in reads.attributes:
        sinks = getattr(module, "sinks", None)
    settings = {
        "scale": float(used["scaling"]) if "scaling" in used else q.shape[-1] ** -0.5,
        "softcap": used.get("softcap"),
        "sinks": None if sinks is None else sinks.detach().to(q.dtype).flatten(),
    }
    weights = own_weights(result, (*q.shape[:3], k.shape[2]))
    problem = _problem(function, used, output)
    if output is None:
        output = q.new_zeros(shape)
    best: AttentionCall | None = None
    for mask, keys in _masks(attention_mask, used, module, q.shape[2], k):
        near_k, near_v = k[:, :, :keys], v[:, :, :keys]
        lse = attend(q, near_k, near_k, mask=mask, **settings, return_lse=True)[1]
        near = None if weights is None else weights[..., :keys]
        soft = isinstance(attention_mask, Tensor) and attention_mask.ndim == 4 and _soft(attention_mask, q, k)
        call = AttentionCall(
            q, near_k, near_v, output, lse, mask, **settings, weights=near, soft_blind=soft, problem=problem
        )
        best = best or call
        m = AttentionMap(q=q, k=near_k, lse=lse, mask=mask, **settings)
        if problem is not None or examine(m, near_v, output, weights=near).certified:
            return call
    assert best is not None
    return best


def _soft(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Whether finite numbers alone hide everything from some query."""
    return type(mask) is Tensor and read_mask(mask, q.shape[2], k.shape[2]).finite


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments after the mask, by name."""
    if not args:
        return kwargs
    parameters = list(inspect.signature(function).parameters)[len(FIRST) :]
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def _problem(function: Callable[..., Any], used: dict[str, Any], output: Tensor | None) -> str | None:
    unknown = sorted(used.keys() - UNDERSTOOD - IGNORED)
    name = getattr(function, "__name__", type(function).__name__)
    if unknown:
        return f"its function {name} was given {', '.join(unknown)}, and what that means is not known here"
    if used.get("dropout"):
        return dropout_problem(used["dropout"])
    return None if output is not None else f"its function {name} gives no output (B, T, H, E) to compare with"


def _output(result: Any, shape: tuple[int, int, int, int]) -> Tensor | None:
    """What a function gave, as (B, H, T, E)."""
    given = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(given, Tensor):
        return None
    B, H, T, E = shape
    given = given.detach()
    if given.shape == (B, T, H, E) or (given.numel() == B * H * T * E and given.shape[-1] == H * E):
        return given.reshape(B, T, H, E).transpose(1, 2)
    return None


def own_weights(result: Any, shape: tuple[int, ...]) -> Tensor | None:
    """The weights that a function gave beside its output, if it did."""
    given = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    return given.detach() if isinstance(given, Tensor) and given.shape == shape else None


def _masks(mask: Any, used: dict[str, Any], module: nn.Module, T: int, k: Tensor) -> list[tuple[Mask, int]]:
    """What a function's mask may mean, the likeliest first, and how many of the keys there are to see."""
    keys = S = k.shape[2]
    if mask is None:
        found: Mask = full
    elif isinstance(mask, RuleMask):
        found, keys = mask.rule, mask.keys
    elif isinstance(mask, Tensor) and mask.ndim == 2:
        found = Padding(mask[:, -S:].bool())
    elif isinstance(mask, Tensor):
        found, keys = read_mask(mask, T, S)[:2]
        if (reach := written_keys(mask, k)) < keys:
            found, keys = read_mask(mask[..., :reach], T, reach)[:2]
    elif hasattr(mask, "mask_mod"):  # FlexAttention's BlockMask counts queries from 0
        says = mask.mask_mod
        found = rule(lambda b, h, q, k: says(b, h, q - (S - T), k))
    else:
        raise ValueError(f"attention_mask: expected a tensor, a BlockMask or None, got {type(mask).__name__}")
    if "position_bias" in used:
        bias = as_bias(used["position_bias"].detach()[..., :keys])
        found = _both(found, bias)
    candidates = [found]
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
        # Kernels that take no mask tensor have flags for the order and the window.
        ordered = found if T == 1 else _both(causal, found)
        window = used.get("sliding_window")
        near = ordered if window is None else _both(ordered, Window(int(window)))
        flag = used.get("is_causal", getattr(module, "is_causal", None))
        candidates = [near, ordered, found] if flag and "is_causal" in used else [found, near, ordered]
        candidates.append(causal.top_left if found is full else causal.top_left & found)
    return [(x, keys) for x in {id(x): x for x in candidates}.values()]


def _both(one: Mask, other: Mask) -> Mask:
    return other if one is full else one if other is full else one & other
