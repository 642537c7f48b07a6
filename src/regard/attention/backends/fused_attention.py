"""The "torch" backend: PyTorch's fused kernels, with the row log-sum-exp of those that return it.

PyTorch chooses which of its kernels is fastest for the tensors; this file asks for that choice, and rejects
only the calls that none of the kernels computes with the semantics of `attend`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad, scaled_dot_product_attention

from regard.attention.backends import tiled_attention
from regard.attention.backends.problem import AttentionProblem
from regard.attention.backends.row_blocks import RowBlock, find_row_blocks
from regard.attention.backends.triton import launch
from regard.attention.inputs import working_dtype
from regard.attention.masks.base import full
from regard.attention.masks.memo import memoize_on_mask
from regard.attention.masks.named_masks import causal
from regard.support.torch_internals import (
    cudnn_attention,
    efficient_attention,
    flash_attention,
    flash_attention_for_cpu,
    flash_attention_with_window,
    fused_sdp_choice,
)

SHORT = 2**32
"""The scores of a band times their width, up to which PyTorch's flash kernel is faster than Triton's."""
FEW = 128
"""The blocks of 128 queries up to which Triton's kernel, a program for each, leaves most of a GPU idle."""
SETTLED = 4096
"""Calls in a row with keys of one length, from which on PyTorch chooses; each layer of a model makes one a
step."""
FUSED = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def unsupported_reason(problem: AttentionProblem) -> str | None:
    """Why none of PyTorch's fused kernels can run a problem, in a phrase, or None if one can."""
    q, v = problem.q, problem.v
    if problem.softcap is not None:
        return "its kernels have no softcap"
    if problem.sinks is not None:
        return "its kernels have no sinks"
    if not problem.scale > 0:  # they multiply −inf by the scale, or take the greatest score before it
        return f"its kernels want a scale above 0, and this is {problem.scale:g}"
    if problem.dropout and q.device.type == "cpu":
        return "its CPU kernel has no dropout"
    if _flash_band(problem) is not None:
        return None if _flash_is_better(problem) else "Triton's kernel is better for this band"
    if not _known_mask(problem) and not _padded_only(problem) and not _row_blocks(problem):
        # Its own message: PyTorch aligns is_causal with the first key, and a cache needs the last (docs of
        # attend).
        if problem.mask is causal:
            return "its causal mask starts from the first key, and with a cache it should end at the last"
        return f"its kernels know no mask but causal, and this is {problem.mask}"
    if not _is_compiling() and kernel(problem) is None:
        if v.shape[-1] != q.shape[-1]:
            return f"its kernels want values as wide as keys, and these are {v.shape[-1]} and {q.shape[-1]}"
        return f"it has no fused kernel for {q.dtype} of these sizes on {q.device.type}"
    return None


def kernel(problem: AttentionProblem) -> SDPBackend | None:
    """The fused kernel that PyTorch would choose, or None if it would build the matrix."""
    p = problem
    chosen = fused_sdp_choice(
        p.q,
        p.k,
        p.v,
        dropout_p=p.dropout,
        is_causal=p.mask is causal,
        scale=p.scale,
        enable_gqa=p.group > 1,
    )
    name = SDPBackend(chosen)  # compared by ==: PyTorch creates a new object each time
    # cuDNN plans for every new length, which takes tens of milliseconds, and with a cache every step has one.
    if name == SDPBackend.CUDNN_ATTENTION and p.q.shape[2] != p.k.shape[2] and _flash_can(p):
        return SDPBackend.FLASH_ATTENTION
    return name if name in FUSED else None


def _is_compiling() -> bool:
    """Whether `torch.compile` is tracing: it cannot ask for the kernel, which PyTorch then chooses later."""
    return torch.compiler.is_compiling()


def _known_mask(p: AttentionProblem) -> bool:
    """Whether the kernels know the mask themselves: all keys, or as many as queries and causal."""
    return p.mask is full or (p.mask is causal and p.q.shape[2] == p.k.shape[2])


def _row_blocks(p: AttentionProblem) -> tuple[RowBlock, ...]:
    """The mask as blocks of queries with small dense masks, or none of them if the call cannot use them.

    The backward pass of PyTorch's CPU kernel loses digits of large scores, and its forward pass knows no
    forward-mode differentiation: the tiles serve such calls.
    """
    # forward_ad has no public question whether a dual level is open.
    if _is_compiling() or p.q.device.type != "cpu" or p.needs_grad or forward_ad._current_level >= 0:
        return ()
    return find_row_blocks(p.mask, p.matrix, p.q.dtype)


def _padded_only(p: AttentionProblem) -> bool:
    """Whether the mask hides padding only, which PyTorch's CPU kernel supports, and no whole sequence."""
    if not p.mask.is_padding or p.q.device.type != "cpu" or _is_compiling():
        return False
    return memoize_on_mask(p.mask, "no empty row", lambda: bool(_key_padding(p).any(-1).all()))


def _key_padding(p: AttentionProblem) -> Tensor:
    """Which keys are tokens, (B, S), under a mask that hides padding only."""
    is_token = p.mask.key_padding(p.k.shape[2])
    assert is_token is not None
    return is_token.to(p.q.device)


def _padding_bias(p: AttentionProblem) -> Tensor:
    """0 for tokens and −inf for padding, (B, 1, 1, S) expanded to (B, H, T, S)."""

    def compute() -> Tensor:
        is_token = _key_padding(p)  # (B, S)
        bias = p.q.new_zeros(len(is_token), 1, 1, p.k.shape[2])
        return bias.masked_fill_(~is_token[:, None, None], -torch.inf).expand(p.matrix)

    return memoize_on_mask(p.mask, (p.matrix, p.q.dtype), compute)  # every layer of a model asks for the same


def _flash_can(p: AttentionProblem) -> bool:
    """Whether PyTorch's flash kernel takes these tensors, whatever the mask."""
    params = torch.backends.cuda.SDPAParams(p.q, p.k, p.v, None, p.dropout, False, p.group > 1)
    return torch.backends.cuda.can_use_flash_attention(params)


class _FlashBand(NamedTuple):
    """A band as PyTorch's flash kernel takes it: −1 is no limit, and the last query is at the last key."""

    first: int  # the keys before it are seen by no query
    behind: int
    ahead: int


def _flash_band(p: AttentionProblem) -> _FlashBand | None:
    """The mask as a band for PyTorch's flash kernel, or None if that cannot run the call.

    The kernel gives +inf as the lse of a query that sees no key, so every query has to see its own.
    """
    T, S = p.matrix[2:]
    if not p.q.is_cuda or T > S or _is_compiling() or _known_mask(p):
        return None
    band = p.mask.band(T, S)
    # Widths: the kernel pads others itself, in scaled_dot_product_attention only, not in this operator.
    if band is None or not band.holds(0) or p.q.shape[-1] % 8 or not _flash_can(p):
        return None
    first = 0 if band.behind is None else max(0, S - T - band.behind)
    if T == 1:  # which sees all keys from the first on
        return _FlashBand(first, -1, -1)
    behind, ahead = (-1 if limit is None else limit for limit in band)
    return _FlashBand(first, behind, ahead)


def _flash_is_better(p: AttentionProblem) -> bool:
    """Whether PyTorch's flash kernel is to run a band, and not Triton's.

    It is launched in a third of the time, and where few queries have many keys it splits these. Triton's
    gradients are the same bits every time and keep the digits of large scores, but it has no dropout.
    """
    B, H, T, S = p.matrix
    behind, ahead = p.mask.band(T, S) or (None, None)
    seen = S if behind is None or ahead is None else min(S, max(128, behind + 1 + ahead))
    short = B * H * T * seen * p.q.shape[-1] <= SHORT or B * H * -(-T // 128) <= FEW
    return (short and not p.needs_grad) or launch.unsupported_reason(p) is not None


def _by_flash(
    q: Tensor, k: Tensor, v: Tensor, band: _FlashBand, dropout: float, scale: float
) -> tuple[Tensor, Tensor]:
    """The output and the lse of a band by PyTorch's flash kernel, whose tensors are (B, length, heads, D)."""
    first, behind, ahead = band
    if first:
        k, v = k[:, :, first:], v[:, :, first:]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    output, lse, *_ = flash_attention_with_window(
        q, k, v, None, None, q.shape[1], k.shape[1], dropout, False, False,
        scale=scale, window_size_left=behind, window_size_right=ahead,
    )  # fmt: skip
    return output.transpose(1, 2), lse


def _on_cpu(p: AttentionProblem, return_lse: bool) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU kernel. In half precision its lse is off by 5e-5, so it is computed again in float32."""
    if p.mask.is_padding:
        output, lse = flash_attention_for_cpu(
            p.q, p.k, p.v, p.dropout, False, attn_mask=_padding_bias(p), scale=p.scale
        )
    elif _known_mask(p):
        output, lse = flash_attention_for_cpu(p.q, p.k, p.v, p.dropout, p.mask is causal, scale=p.scale)
    else:
        output, lse = _by_row_blocks(p.q, p.k, p.v, p.scale, _row_blocks(p))
    if return_lse and p.q.dtype in (torch.float16, torch.bfloat16):
        q, k = p.q.detach().float(), p.k.detach().float()
        # v=k, since the values are not needed and k has the right shape.
        lse = _on_cpu(p._replace(q=q, k=k, v=k, dropout=0.0), return_lse)[1]
    return output, lse


def _by_row_blocks(
    q: Tensor, k: Tensor, v: Tensor, scale: float, blocks: tuple[RowBlock, ...]
) -> tuple[Tensor, Tensor]:
    """The output and lse of each row block by PyTorch's CPU kernel, joined."""
    results = []
    for rows, keys, bias in blocks:
        # A slice of everything would still make a new view, at every call.
        whole = keys.stop - keys.start == k.shape[2]
        rows_k, rows_v = (k, v) if whole else (k[:, :, keys], v[:, :, keys])
        rows_q = q if len(blocks) == 1 else q[:, :, rows]
        results.append(
            flash_attention_for_cpu(rows_q, rows_k, rows_v, 0.0, False, attn_mask=bias, scale=scale)
        )
    if len(blocks) == 1:
        return results[0]
    output, lse = (torch.cat(parts, 2) for parts in zip(*results, strict=True))
    return output, lse


def _is_finite(output: Tensor) -> bool:
    """Whether no hidden key has reached the output: 0 · NaN is NaN in PyTorch's CPU kernel."""
    # The sum in the working dtype: half precision overflows at 65,504, and that would look like NaN.
    return math.isfinite(output.detach().sum(dtype=working_dtype(output.dtype)))


def _folds(p: AttentionProblem) -> bool:
    """Whether to fold grouped query heads into the T axis: one query over a cache, on a CPU.

    PyTorch's CPU kernel would read the keys once for each head; its kernels for a GPU fold them themselves.
    """
    return p.q.is_cpu and p.q.shape[2] == 1 and p.group > 1 and p.mask is full


def _fold(q: Tensor, kv_heads: int) -> Tensor:
    """One query (B, H, 1, D) as (B, G, H / G, D)."""
    B, H, _, D = q.shape
    return q.reshape(B, kv_heads, H // kv_heads, D)


class SettledLength:
    """Attention of q on k and v, all of whose keys are visible, without dropout and gradients, on a GPU.

    Few queries on many keys run on PyTorch's flash kernel, or by its own choice once their number has
    settled. It mostly chooses cuDNN's kernel, which is the faster one, but plans for every new length, and
    that takes as long as thousands of calls of the flash kernel. A cache that grows has a new length at every
    step, and never calls it. A cache of a fixed size, or a rolling one that is full, calls it after so many
    calls of one length that they have cost as much as the planning does (the rule of the ski rental: never
    more than twice the least cost).

    Every call has the same shapes and strides but for the number of keys. It counts the calls in a row whose
    keys are alike. `attention` computes the same by the kernel that PyTorch chooses.
    """

    def __init__(self, scale: float, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self.scale, self.attention = scale, attention
        self.sizes: tuple[object, ...] = ()  # of the keys, and the strides of keys and values
        self.calls = 0  # in a row with these sizes
        self.settled = False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes = k.shape, k.stride(), v.stride()
        if sizes != self.sizes:
            self.sizes, self.calls, self.settled = sizes, 0, False
        elif not self.settled:
            self.calls += 1
            # Planning is no part of a CUDA graph that is being captured.
            self.settled = self.calls >= SETTLED and not torch.cuda.is_current_stream_capturing()
        return self.attention(q, k, v) if self.settled else flash_attention(q, k, v, scale=self.scale)[0]


def bind(problem: AttentionProblem) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """The function of q, k and v that computes problems like this one, if PyTorch's kernel needs no more."""
    p = problem
    # Exactly equal, so that PyTorch's own default is used only where it is the same number.
    is_causal, default_scale = p.mask is causal, p.scale == 1 / math.sqrt(p.q.shape[-1])
    if (band := _flash_band(p)) is not None:
        dropout, scale = p.dropout, p.scale
        return lambda q, k, v: _by_flash(q, k, v, band, dropout, scale)[0]
    if not _known_mask(p):
        return _bind_row_blocks(p) if p.mask.positional else None
    options: dict[str, Any] = {  # PyTorch takes half a microsecond to read each
        **({"dropout_p": p.dropout} if p.dropout else {}),
        **({"is_causal": True} if is_causal else {}),
        **({} if default_scale else {"scale": p.scale}),
        **({"enable_gqa": True} if p.group > 1 and not _folds(p) else {}),
    }
    attention: Callable[..., Tensor] = functools.partial(scaled_dot_product_attention, **options)
    if _folds(p):
        G, shape = p.k.shape[1], (*p.q.shape[:3], p.v.shape[-1])
        return lambda q, k, v: attention(_fold(q, G), k, v).reshape(shape)
    if p.q.is_cpu or kernel(p) != SDPBackend.FLASH_ATTENTION:
        return attention
    if p.q.shape[-1] % 8 or p.v.shape[-1] % 8:
        return None  # they have to be padded
    # PyTorch counts cuDNN's kernel as not deterministic, and SettledLength has no gradients.
    if p.mask is full and not (p.dropout or p.needs_grad or torch.are_deterministic_algorithms_enabled()):
        return SettledLength(p.scale, attention)
    dropout, scale, flash = p.dropout, p.scale, flash_attention
    return lambda q, k, v: flash(q, k, v, dropout, is_causal, False, scale=scale)[0]


def _bind_row_blocks(p: AttentionProblem) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    mask, scale, shape, dtype = p.mask, p.scale, p.matrix, p.q.dtype

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, _ = _by_row_blocks(q, k, v, scale, find_row_blocks(mask, shape, dtype))
        if _is_finite(output):
            return output
        return tiled_attention.run(AttentionProblem(q, k, v, mask, scale, None, None, 0.0))[0]

    return call


def run(
    problem: AttentionProblem, return_lse: bool = True, chosen: SDPBackend | None = None
) -> tuple[Tensor, Tensor | None]:
    """Output (B, H, T, E), and lse (B, H, T) if `return_lse`, by the kernel `chosen` or PyTorch's choice."""
    p = problem
    q, k, v, is_causal = p.q, p.k, p.v, p.mask is causal
    if (band := _flash_band(p)) is not None:
        output, lse = _by_flash(q, k, v, band, p.dropout, p.scale)
        return output, lse.detach()[:, :, : q.shape[2]] if return_lse else None
    if not _known_mask(p):
        output, lse = _on_cpu(p, return_lse)
        if not _is_finite(output):
            output, lse = tiled_attention.run(p)  # which leaves hidden keys out
        return output, lse.detach() if return_lse else None
    if _folds(p):
        folded, folded_lse = run(p._replace(q=_fold(q, k.shape[1])), return_lse, chosen)
        output = folded.reshape(*q.shape[:3], v.shape[-1])
        return output, None if folded_lse is None else folded_lse.reshape(q.shape[:3])
    on_cpu = q.device.type == "cpu"  # which has one kernel
    # While a graph is traced, PyTorch chooses when it runs, unless the lse needs an operator by name.
    if chosen is None and not on_cpu and (return_lse or not _is_compiling()):
        chosen = kernel(p)
    if not return_lse and chosen != SDPBackend.FLASH_ATTENTION:
        output = scaled_dot_product_attention(
            q, k, v, dropout_p=p.dropout, is_causal=is_causal, scale=p.scale, enable_gqa=p.group > 1
        )
        return output, None
    if on_cpu:
        output, lse = _on_cpu(p, return_lse)
    elif chosen == SDPBackend.CUDNN_ATTENTION:
        output, lse, *_ = cudnn_attention(q, k, v, None, True, p.dropout, is_causal, False, scale=p.scale)
    elif chosen == SDPBackend.FLASH_ATTENTION:
        missing = -q.shape[-1] % 8  # this kernel needs widths that are multiples of 8
        q8, k8, v8 = (pad(x, (0, missing)) if missing else x for x in (q, k, v))
        output, lse, *_ = flash_attention(q8, k8, v8, p.dropout, is_causal, False, scale=p.scale)
        output = output[..., : v.shape[-1]]
    else:
        output, lse, *_ = efficient_attention(q, k, v, None, True, p.dropout, is_causal, scale=p.scale)
    # Some kernels pad the rows of lse, or keep a last dimension of one.
    B, H, T = q.shape[:3]
    return output, lse.detach().reshape(B, H, -1)[:, :, :T] if return_lse else None
