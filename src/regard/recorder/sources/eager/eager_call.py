"""Makes an attention call of what an `EagerTrace` has followed.

If the queries and keys are known, the call has them, and the masks and biases that were added to their
product. If that does not reproduce the model's weights, or something else was done to the scores, the call
keeps the weights themselves: as a bias of T×S numbers, beside queries of zeros, up to `DENSE_LIMIT` bytes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask, conjunction
from regard.attention.masks.tensor_masks import TensorMask
from regard.recorder.attention_call import AttentionCall
from regard.recorder.certificates.output_comparison import is_certified
from regard.recorder.map_preparation import write_count
from regard.recorder.sources.eager.eager_scores import CHANGED, LOW, EagerAttention, Scores
from regard.recorder.sources.mask_tensors import read_mask
from regard.recorder.sources.sdpa import autocast
from regard.recorder.sources.sdpa_call import equal_heads
from regard.recorder.sources.structure_of_models.head_order import HEADS_FIRST, HeadOrderError, head_counts

DENSE_LIMIT = 1 << 28  # bytes of weights, or of a bias, that a call keeps


def attention_call(attention: EagerAttention, module: nn.Module) -> AttentionCall:
    """Return an attention that a module computed as an `AttentionCall`; a ValueError says why it is none."""
    whole, v, output = attention.unchanged, attention.v, attention.output
    # Nyström attention multiplies weights on landmarks with weights of landmarks: neither are weights on the
    # text.
    if attention.is_composed:
        raise ValueError("its values are themselves a product with attention weights")
    if whole is None:
        raise ValueError(CHANGED)
    T, S = whole.shape[-2:]
    lead = output.shape[:-2]
    # LongT5's encoder attends from blocks of tokens to these and the blocks next to them.
    if len([n for n in lead if n > 1]) > 2 and T != S:
        raise ValueError(f"it attends in blocks of {T} queries and {S} keys, which are no map of the text")
    # `torch.cat(heads, 0)` puts heads in front of texts, which nothing but the number of tensors shows later.
    if attention.stacked in head_counts(module) and len(lead) == 1 and lead[0] > attention.stacked > 1:
        raise HeadOrderError(HEADS_FIRST)
    if (axes := attention.leading_axes) is not None and math.prod(axes.sizes) == math.prod(lead):
        # Called for its error alone: heads in front of the texts.
        axes.split(head_counts(module))
    if not _sums_to_one(whole):
        raise ValueError("its weights do not sum to 1 over the keys that they are multiplied with")
    problem = attention.weights.problem
    if problem is None and not _is_unchanged(attention):
        problem = CHANGED
    scores = _aligned(attention, whole)
    shape = _batch_and_heads(scores, lead, module)
    v, output = (_four(x, lead, shape) for x in (v, output))
    weights = _four(whole, lead, shape)
    known: AttentionCall | None = None
    if scores is not None and not _too_large(scores.terms):
        known = _known_call(scores, shape, v, output, weights, problem)
        # With a problem the call is not certified in any form, and this one takes the least memory.
        if problem is not None or is_certified(known):
            return known
    if weights.nbytes > DENSE_LIMIT:
        if known is not None:
            return known
        raise ValueError(
            f"its weights take {weights.nbytes / 2**20:.0f} MiB, more than the {DENSE_LIMIT >> 20} MiB that "
            "are kept where the queries and keys of an attention in a module's own code cannot be heard"
        )
    if problem is None and _is_nan_beside_empty_rows(weights, None if known is None else known.mask):
        problem = "its weights are NaN"
    log_weights = _log_weights(weights)
    dense = _dense_call(weights, *log_weights, v, output, problem)
    if known is None:
        return dense
    # With its own keys a call continues others of a generation, which may be understood, as GPT-Neo's.
    with_keys = _with_residual(known, *log_weights)._replace(problem=problem)
    return next((call for call in (with_keys, dense) if is_certified(call)), known)


def _is_unchanged(attention: EagerAttention) -> bool:
    """Whether the weights that were multiplied are those that the softmax returned."""
    weights, used, unchanged = attention.weights, attention.used.detach(), attention.unchanged
    if unchanged is None or write_count(weights.whole) != weights.count:
        return False
    # Rows without a visible key are NaN in both.
    return torch.equal(used.nan_to_num(), unchanged.detach().to(used.dtype).nan_to_num())


def _sums_to_one(weights: Tensor) -> bool:
    """Whether every row of weights (…, T, S) sums to 1, or is empty."""
    sums = weights.detach().nan_to_num().float().sum(-1)
    # Weights in half precision are rounded one by one, and their errors add up as the root of their number.
    tolerance = 1e-3 + 2 * math.sqrt(weights.shape[-1]) * torch.finfo(weights.dtype).eps
    return bool((((sums - 1.0).abs() <= tolerance) | (sums == 0)).all())


def _aligned(attention: EagerAttention, unchanged: Tensor) -> Scores | None:
    """Return the scores if they are known and in the order of the weights (…, T, S)."""
    scores = attention.weights.scores
    if not scores.is_known:
        return None
    ordered = attention.weights.whole.permute(scores.axes)  # (…, T, S)
    if ordered.shape[-2:] != unchanged.shape[-2:] or ordered.numel() != unchanged.numel():
        return None
    # Rows without a visible key are NaN in both.
    if not torch.equal(ordered.reshape(unchanged.shape).nan_to_num(), unchanged.nan_to_num()):
        return None
    return scores


def _batch_and_heads(scores: Scores | None, lead: torch.Size, module: nn.Module) -> tuple[int, int]:
    """Return the number of texts and of heads, whose product is the number of matrices."""
    own = () if scores is None else _lead_of(scores)
    shape = next((x for x in (tuple(lead), own) if len(x) >= 2), None)
    if shape is not None:
        return math.prod(shape[:-1]), shape[-1]
    count = math.prod(lead)
    heads = next((heads for heads in head_counts(module) if count % heads == 0), 1)
    return count // heads, heads


def _lead_of(scores: Scores) -> tuple[int, ...]:
    """Return the lengths of the axes before the queries and keys."""
    pairs = zip(scores.left.shape[:-2], scores.right.shape[:-2], strict=True)
    return tuple(max(pair) for pair in pairs)


def _four(x: Tensor, lead: torch.Size, shape: tuple[int, int]) -> Tensor:
    """Return a tensor (…, rows, columns) as (B, H, rows, columns)."""
    return x.expand(*lead, *x.shape[-2:]).reshape(*shape, *x.shape[-2:])


def _too_large(terms: tuple[Tensor, ...]) -> bool:
    """Whether a bias has more bytes than a call keeps."""
    return any(term.nbytes > DENSE_LIMIT for term in terms if term.is_floating_point())


def _known_call(
    scores: Scores,
    shape: tuple[int, int],
    v: Tensor,
    output: Tensor,
    weights: Tensor,
    problem: str | None,
) -> AttentionCall:
    """Return a call with the queries and keys of known scores."""
    own = torch.Size(_lead_of(scores))
    q, k = autocast(scores.left, scores.right)
    q, k = (_four(x, own, shape) for x in (q, k))
    # A map needs q, k and v of one dtype.
    k, v = equal_heads(k, v.to(q.dtype) if v.dtype != q.dtype else v)
    T, S = q.shape[2], k.shape[2]
    masks: list[Mask] = []
    for term in scores.terms:
        wide = term[(None,) * (len(scores.axes) - term.ndim)].permute(scores.axes)
        masks.append(read_mask(_four_term(_readable(wide), own, shape), T, S).rule)
    softcap = scores.softcap
    return AttentionCall(
        q,
        k,
        v,
        output,
        None,
        # Masks such as `causal` are one object each, and may be in several terms.
        conjunction({id(part): part for mask in masks for part in mask.conjuncts()}.values()),
        # `tanh` was taken of scale · q k, and a soft cap is cap · tanh(scale · q k / cap).
        scores.scale if softcap is None else scores.scale * softcap,
        softcap=softcap,
        weights=weights.detach(),
        # Terms that are added may hide every key of a row by finite numbers, as −10,000, and its softmax is
        # then uniform.
        softly_masked_rows=bool(masks),
        problem=problem,
    )


def _four_term(term: Tensor, lead: torch.Size, shape: tuple[int, int]) -> Tensor:
    """Return a mask tensor that broadcasts to (…, T, S) as one that broadcasts to (B, H, T, S)."""
    if all(n == 1 for n in term.shape[:-2]):
        return term.reshape(1, 1, *term.shape[-2:])
    if tuple(lead) == shape:
        return term
    return _four(term, lead, shape)


def _readable(term: Tensor) -> Tensor:
    """Return a mask tensor whose low numbers, such as −10,000, are written as booleans."""
    if term.dtype == torch.bool or term.requires_grad:
        return term
    # OpenAI's GPT hides keys by −10,000, which `masked_entries` takes for a bias.
    low = term <= LOW
    is_mask = bool(low.any()) and bool(((term == 0) | low).all())
    return ~low if is_mask and bool((term > torch.finfo(term.dtype).min / 2).all()) else term


def _is_nan_beside_empty_rows(weights: Tensor, mask: Mask | None) -> bool:
    """Whether weights (B, H, T, S) are NaN in a row that sees a key, or, without a mask, in any row."""
    is_nan = weights.isnan().any(-1)
    if mask is None or not bool(is_nan.any()):
        return bool(is_nan.any())
    B, H, T, S = weights.shape
    seen = mask.tile(range(T), range(S), (B, H, T, S), device=weights.device).any(-1)
    return bool((is_nan & seen).any())


def _log_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithms of weights (B, H, T, S), −inf for 0, and of their sums (B, H, T).

    A sum that is 1 but for rounding is exact.
    """
    # Rows without a visible key are NaN in some code.
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32)).nan_to_num(0.0)
    sums, is_zero = wide.detach().sum(-1), wide == 0
    is_rounding = (sums - 1.0).abs() <= 8 * torch.finfo(weights.dtype).eps
    logs = wide.masked_fill(is_zero, 1.0).log().masked_fill(is_zero, -torch.inf)
    return logs, sums.log().where((sums == 0) | is_rounding, 0.0)


def _dense_call(
    weights: Tensor, logs: Tensor, lse: Tensor, v: Tensor, output: Tensor, problem: str | None
) -> AttentionCall:
    """Return a call that keeps the weights (B, H, T, S) themselves.

    The values stand in for keys, by which the steps of a generation are recognised; all queries are zero.
    """
    v = v.to(logs.dtype) if v.dtype != weights.dtype else v
    q = v.new_zeros(*weights.shape[:3], v.shape[-1])
    return AttentionCall(
        q, v, v, output, lse, TensorMask(logs), 1.0, weights=weights.detach(), problem=problem
    )


def _with_residual(known: AttentionCall, logs: Tensor, lse: Tensor) -> AttentionCall:
    """Return a call with its queries and keys, and the bias with which these give the model's weights."""
    k = known.k.repeat_interleave(known.q.shape[1] // known.k.shape[1], 1).to(logs.dtype)
    bias = logs - known.q.to(logs.dtype) @ k.mT * known.scale
    return known._replace(lse=lse, mask=TensorMask(bias), softcap=None, softly_masked_rows=False)
