"""PyTorch's own attention as a source: `nn.MultiheadAttention`, and the encoders and decoders built of it.

The model's computation is left alone, kernels and all. Where it goes through `scaled_dot_product_attention`,
what goes in and comes out there is what is recorded. In two cases nothing can be seen from outside: when
weights are asked for, PyTorch multiplies matrices inside one function, and in inference whole layers run in
one fused kernel ("fast path"). Then the attention is computed once more beside it, from the same inputs and
weights, and carried on to where the model's own result can be compared, on sampled rows; a difference is the
layer's problem in its certificate.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import torch_path
from regard.attention.attend import attend
from regard.attention.masks import causal
from regard.attention.problem import pose
from regard.attention.rules import full
from regard.covering import covered
from regard.recorder import torch_fused
from regard.recorder.dense_masks import as_rule
from regard.recorder.recording import Place, Recording
from regard.recorder.torch_fused import Sight, difference

See = Callable[[Sight], None]
_watchers: dict[nn.MultiheadAttention, list[See]] = {}
"""Who wants to know of which attention, while captures are open."""
_told: ContextVar[tuple[See, ...]] = ContextVar("told", default=())
"""Those of them that are told of what runs now."""


def fits(model: nn.Module) -> bool:
    """Whether the model has PyTorch's attention inside."""
    return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())


def places(model: nn.Module) -> dict[nn.MultiheadAttention, Place]:
    """The attentions of a model and where they stand."""
    stacks: dict[nn.Module, str] = {}
    for module in model.modules():
        if isinstance(module, nn.TransformerDecoderLayer):
            stacks |= {module.self_attn: "decoder", module.multihead_attn: "cross"}
    both = bool(stacks)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            stacks[module.self_attn] = "encoder" if both else ""
    counts, found = Counter[str](), {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            stack = stacks.get(module, "")
            found[module] = Place(counts[stack], name, stack)
            counts[stack] += 1
    return found


@contextmanager
def attach(model: nn.Module, recording: Recording) -> Iterator[None]:
    """Record a model's `MultiheadAttention`s; on leaving, everything is as it was."""
    known = places(model)
    recording.expect(known.values())
    with ExitStack() as undo:
        undo.enter_context(_listening())
        for attention, place in known.items():
            see = _taking(recording, place)
            _watchers.setdefault(attention, []).append(see)
            undo.callback(_unwatched, attention, see)
        for module in model.modules():
            # The fused kernel of an encoder layer does not call its attention.
            inner = module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module
            if isinstance(inner, nn.MultiheadAttention):
                # Covered, not hooked: PyTorch leaves its fast path where it finds a hook.
                undo.enter_context(covered(module, "forward", _telling(module.forward, inner)))
        yield


def _taking(recording: Recording, place: Place) -> See:
    def take(seen: Sight) -> None:
        q, k, v, output, *_ = seen
        recording.take(
            place, q, k, v, output, lse=seen.lse, mask=seen.mask, scale=seen.scale, problem=seen.problem
        )

    return take


def _unwatched(attention: nn.MultiheadAttention, see: See) -> None:
    _watchers[attention].remove(see)
    if not _watchers[attention]:
        del _watchers[attention]


def _telling(forward: Callable[..., Any], attention: nn.MultiheadAttention) -> Callable[..., Any]:
    """A module's `forward`, during which those who watch its attention are told of it."""

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with _telling_only(*_watchers.get(attention, ())):
            return forward(*args, **kwargs)

    return watched


@contextmanager
def _telling_only(*watchers: See) -> Iterator[None]:
    token = _told.set(watchers)
    try:
        yield
    finally:
        _told.reset(token)


def _tell(watchers: tuple[See, ...], sight: Sight) -> None:
    for see in watchers:
        see(sight)


_lock, _listeners, _originals = threading.Lock(), 0, dict[str, Callable[..., Any]]()


@contextmanager
def _listening() -> Iterator[None]:
    """While any capture is open, the four functions that PyTorch's attention runs through are covered.

    The covers tell whoever watches the module that runs, in its own thread, and otherwise do nothing.
    """
    global _listeners
    covers = {
        (functional, "scaled_dot_product_attention"): _dot_product,
        (functional, "multi_head_attention_forward"): _with_weights,
        (torch, "_native_multi_head_attention"): _fused_attention,
        (torch, "_transformer_encoder_layer_fwd"): _fused_layer,
    }
    with _lock:
        if not _listeners:
            for (where, name), cover in covers.items():
                _originals[name] = getattr(where, name)
                setattr(where, name, cover)
        _listeners += 1
    try:
        yield
    finally:
        with _lock:
            _listeners -= 1
            if not _listeners:
                for where, name in covers:
                    setattr(where, name, _originals.pop(name))


def _original(name: str) -> Callable[..., Any]:
    where = torch if name.startswith("_") else functional
    return _originals.get(name) or getattr(where, name)


def _dot_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    run = functools.partial(
        _original("scaled_dot_product_attention"),
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    watchers = _told.get()
    if not watchers or query.ndim != 4:
        output: Tensor = run()
        return output
    order = causal if query.shape[2] == key.shape[2] else causal.top_left
    mask = order if is_causal else full if attn_mask is None else as_rule(attn_mask.detach())
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])  # as PyTorch has it: in float64 not the same as D ** -0.5
    problem = pose(query, key, value, mask=mask, scale=scale)
    if attn_mask is None and not dropout_p and torch_path.refuses(problem) is None:
        output, lse = torch_path.run(problem)  # the same kernel, which has lse to give
    else:
        output, lse = run(), None
    if lse is None:
        with torch.no_grad():
            lse = attend(query, key, key, mask=mask, scale=scale, return_lse=True)[1]
    _tell(watchers, Sight(query, key, value, output, lse, mask, scale, _dropped(dropout_p)))
    return output


def _dropped(p: float) -> str | None:
    return f"dropout {p} was on, which no map shows" if p else None


_arguments = inspect.signature(functional.multi_head_attention_forward)


def _with_weights(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """All of an attention from its inputs to its output, and its weights if they are asked for."""
    run, watchers = _original("multi_head_attention_forward"), _told.get()
    given = _arguments.bind(*args, **kwargs)
    given.apply_defaults()
    if not watchers or not given.arguments["need_weights"]:
        return run(*args, **kwargs)  # type: ignore[no-any-return]
    dropout = given.arguments["dropout_p"] if given.arguments["training"] else 0.0
    with _telling_only():
        result: tuple[Tensor, Tensor] = run(*args, **kwargs)
    # Once more, through `_dot_product`. The hint is taken for the mask only where no weights are asked for.
    sights: list[Sight] = []
    given.arguments |= {"need_weights": False, "is_causal": False, "training": False}
    with _telling_only(sights.append), torch.no_grad():
        again: Tensor = run(*given.args, **given.kwargs)[0]
    problem = _dropped(dropout) or difference(result[0].detach(), again)
    for sight in sights:
        _tell(watchers, sight._replace(problem=problem))
    return result


def _fused_attention(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The fast path of an attention on its own."""
    watchers = _told.get()
    result: tuple[Tensor, Tensor] = _original("_native_multi_head_attention")(*args, **kwargs)
    if watchers:
        _tell(watchers, torch_fused.attention(result[0], *args, **kwargs))
    return result


def _fused_layer(*args: Any, **kwargs: Any) -> Tensor:
    """The fast path of a whole encoder layer."""
    watchers = _told.get()
    result: Tensor = _original("_transformer_encoder_layer_fwd")(*args, **kwargs)
    if watchers:
        _tell(watchers, torch_fused.encoder_layer(result, *args, **kwargs))
    return result
