"""Interprets the arguments of an attention function in Transformers' style.

Such a function takes `(module, query, key, value, attention_mask, …)`. An argument that its signature names
and that is unknown here keeps its layer from being certified. Of the others, which it takes as `**kwargs`,
the certificate says whether it reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import Window, causal, rule
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.attention_call import AttentionCall, dropout_problem
from regard.recorder.certificates.output_comparison import is_certified
from regard.recorder.sources.mask_tensors import as_bias, read_mask
from regard.recorder.sources.sdpa import autocast
from regard.recorder.sources.sdpa_call import equal_heads, four_dimensions, leading_shape, read_written
from regard.recorder.sources.transformers_library.transformers_attention import IGNORED
from regard.recorder.sources.transformers_library.transformers_masks import RuleMask
from regard.recorder.tokens_of_maps.text_layout import documents_of_edges, documents_of_positions

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
    """The arguments that a function was given, without those that are None."""

    named: dict[str, Any]
    """Those that its signature names, which it reads."""
    collected: dict[str, Any]
    """Those that it takes together, as `**kwargs`: nothing shows beforehand which of them it reads."""

    @property
    def every(self) -> dict[str, Any]:
        """All of them."""
        return self.named | self.collected


def argument_use(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentUse:
    """Tell the arguments after the mask apart by a function's signature; built-in functions may have none."""
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError:
        parameters = []
    names = [x.name for x in parameters if x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)]
    takes_all = not parameters or any(x.kind in (x.VAR_KEYWORD, x.VAR_POSITIONAL) for x in parameters)
    given = {**dict(zip(names[len(FIRST) :], args, strict=False)), **kwargs}
    given = {name: x for name, x in given.items() if x is not None}
    others = {name: x for name, x in given.items() if name not in names} if takes_all else {}
    return ArgumentUse({name: x for name, x in given.items() if name in names}, others)


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
    use = argument_use(function, args, kwargs)
    q, k, v = autocast(query, key, value)
    lead = leading_shape(q, k)
    q, k, v = (four_dimensions(x, lead) for x in (q, k, v))
    k, v = equal_heads(k, v)
    shape = (*q.shape[:3], v.shape[-1])
    output = _output(result, shape)
    # The eager attention of gpt-oss reads `module.sinks`, and does not name `s_aux`, which it is passed.
    sinks = getattr(module, "sinks", None)
    if "s_aux" not in use.every and isinstance(sinks, Tensor) and sinks.numel() == q.shape[1]:
        use.collected["s_aux"] = sinks
    weights = own_weights(result, (*q.shape[:3], k.shape[2]))
    problem = _problem(function, use.named, output)
    softly_masked = _has_softly_masked_rows(attention_mask, q, k)
    # The first guess that can be certified; the likeliest one if none can.
    first: AttentionCall | None = None
    for used in (use.every, use.named) if INTERPRETED & use.collected.keys() else (use.named,):
        sinks = used.get("s_aux")
        for mask, keys in _candidate_masks(attention_mask, used, module, q.shape[2], k):
            call = AttentionCall(
                q,
                k[:, :, :keys],
                v[:, :, :keys],
                q.new_zeros(shape) if output is None else output,
                None,
                mask,
                float(used["scaling"]) if "scaling" in used else q.shape[-1] ** -0.5,
                softcap=used.get("softcap"),
                sinks=None if sinks is None else sinks.to(q.dtype).flatten(),
                weights=None if weights is None else weights[..., :keys],
                softly_masked_rows=softly_masked,
                problem=problem,
            ).with_lse()
            first = first or call
            if problem is not None or is_certified(call):
                return call
    assert first is not None
    # Where the numbers agree, an argument that was only taken along has changed nothing.
    return first._replace(problem=_problem(function, use.every, output))


def _has_softly_masked_rows(mask: Any, q: Tensor, k: Tensor) -> bool:
    """Whether a mask tensor masks every key of some query by finite numbers alone."""
    return type(mask) is Tensor and mask.ndim == 4 and read_mask(mask, q.shape[2], k.shape[2]).softly_masked


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
        read, keys, *_ = read_written(mask, k, T)
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
