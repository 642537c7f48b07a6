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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import gelu, layer_norm, linear, relu

from regard.attention import torch_path
from regard.attention.attend import attend
from regard.attention.masks import Padding, causal
from regard.attention.problem import pose
from regard.attention.rules import Mask, full
from regard.recorder.certificate import sampled_rows
from regard.recorder.covering import covered
from regard.recorder.dense_masks import as_rule
from regard.recorder.recording import Place, Recording


class Sight(NamedTuple):
    """One attention as it ran: q (B, H, T, D), k and v (B, H, S, ·), output (B, H, T, E), lse (B, H, T)."""

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    lse: Tensor
    mask: Mask
    scale: float
    problem: str | None = None


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
    problem = _dropped(dropout) or _difference(result[0].detach(), again)
    for sight in sights:
        _tell(watchers, sight._replace(problem=problem))
    return result


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The fast path of an attention on its own: query, key and value are one tensor (B, T, width)."""
    run, watchers = _original("_native_multi_head_attention"), _told.get()
    weights = qkv_weight, qkv_bias, proj_weight, proj_bias
    asked = need_weights, average_attn_weights, mask_type
    result: tuple[Tensor, Tensor] = run(query, key, value, embed_dim, num_head, *weights, mask, *asked)
    if watchers:
        x, lengths = _opened(query)
        sight, rows, real = _beside(x, lengths, num_head, qkv_weight, qkv_bias, _kernel_rule(mask, mask_type))
        mixed = linear(_merged(sight.output, rows), proj_weight, proj_bias)
        _tell(watchers, sight._replace(problem=_difference(_rows(result[0], rows, real), mixed * real)))
    return result


def _fused_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """The fast path of a whole encoder layer."""
    run, watchers = _original("_transformer_encoder_layer_fwd"), _told.get()
    weights = [qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps]
    weights += [norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2]
    weights += [ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2]
    result: Tensor = run(src, embed_dim, num_heads, *weights, mask, mask_type)
    if not watchers:
        return result

    def norm_1(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: Tensor) -> Tensor:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(gelu(inner) if use_gelu else relu(inner), ffn_weight_2, ffn_bias_2)

    x, lengths = _opened(src)
    rule = _kernel_rule(mask, mask_type)
    sight, rows, real = _beside(
        norm_1(x) if norm_first else x, lengths, num_heads, qkv_weight, qkv_bias, rule
    )
    x = x[:, rows] + linear(_merged(sight.output, rows), proj_weight, proj_bias)
    x = x + feed_forward(norm_2(x)) if norm_first else norm_2((y := norm_1(x)) + feed_forward(y))
    _tell(watchers, sight._replace(problem=_difference(_rows(result, rows, real), x * real)))
    return result


class Beside(NamedTuple):
    sight: Sight
    rows: Tensor  # those to be compared
    real: Tensor  # (B, rows, 1), 0 for those that are padding in a nested tensor


def _opened(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A nested tensor as a plain one (B, T, width), and the lengths of its sequences."""
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), torch.tensor([len(row) for row in x.unbind()], device=x.device)


def _kernel_rule(mask: Tensor | None, mask_type: int | None) -> Mask:
    """What the fused kernels make of a mask: (T, S) is type 0, padding (B, S) type 1, (B, H, T, S) type 2.

    Every number in it that is not 0 hides, also one that was to be added to a score.
    """
    if mask is None:
        return full
    allowed = mask == 0
    return as_rule(allowed[:, None, None] if mask_type == 1 else allowed)


def _beside(
    x: Tensor, lengths: Tensor | None, heads: int, weight: Tensor, bias: Tensor, rule: Mask
) -> Beside:
    """The attention of x (B, T, width), computed in the open beside the fused kernel."""
    B, T, width = x.shape
    projected = linear(x, weight, bias).chunk(3, -1)
    q, k, v = (part.view(B, T, heads, width // heads).transpose(1, 2) for part in projected)
    rows, real = sampled_rows(T).to(x.device), x.new_ones(B, 1, 1)
    if lengths is not None:
        rule = Padding(lengths) if rule is full else rule & Padding(lengths)
        real = (rows < lengths[:, None]).to(x.dtype)[..., None]
    output, lse = attend(q, k, v, mask=rule, return_lse=True)
    return Beside(Sight(q, k, v, output, lse, rule, (width // heads) ** -0.5), rows, real)


def _merged(output: Tensor, rows: Tensor) -> Tensor:
    """Some rows of (B, H, T, E) as (B, rows, H · E)."""
    return output[:, :, rows].transpose(1, 2).flatten(2)


def _rows(result: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """Some rows of a result (B, T, width), with 0 for padding."""
    padded = result.to_padded_tensor(0.0) if result.is_nested else result
    return padded[:, rows] * real


def _difference(used: Tensor, again: Tensor) -> str | None:
    """What is wrong if the model's own result and the one computed beside it differ by more than rounding."""
    if not used.numel():
        return None
    worst, size = float((used - again).abs().max()), float(again.abs().max())
    eps = torch.finfo(used.dtype).eps
    if worst <= (256 if eps < 1e-5 else 8) * eps * size:
        return None
    if worst != worst:
        return "the model's own output is not a number, as PyTorch gives for rows that may look at nothing"
    return f"the model's own output differs by {worst:.1e} from that of the attention shown"
