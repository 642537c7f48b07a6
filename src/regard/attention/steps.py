"""Attention step by step: `scaled_dot_product_attention` and `trace`, which returns every intermediate
tensor.

This is the readable oracle that every backend is tested against. It builds the T×S matrix, so it is for
reading, teaching and checking; `attend` computes the same output without the matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from regard.attention.arguments import answer_pytorch_arguments
from regard.attention.inputs import check_inputs, working_dtype
from regard.attention.masks.base import Mask
from regard.support.table import Table

MOST_NUMBERS = 8  # of a row that a notebook writes out


class Steps(NamedTuple):
    """The intermediate tensors of attention, in order; in float32 (float64 for float64 inputs)."""

    scores: Tensor  # (B, H, T, S) how well each query matches each key
    scaled: Tensor  # (B, H, T, S) times the scale, with the soft cap if there is one
    masked: Tensor  # (B, H, T, S) plus the bias, −inf where the key is hidden
    weights: Tensor  # (B, H, T, S) softmax over the keys
    output: Tensor  # (B, H, T, E) the weighted mean of the values

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return what a notebook shows: what each step is, its shape, and its numbers for one query."""
        meanings = ("q · k", "times the scale", "−inf where the key is hidden", "softmax", "weights · v")
        query = self.output.shape[-2] // 2  # under a causal mask it sees some keys and not others
        rows = [
            (name, meaning, "×".join(map(str, x.shape)), _row_of_first_head(x, query))
            for name, meaning, x in zip(self._fields, meanings, self, strict=True)
        ]
        names = ("step", "what it is", "shape", f"query {query} of the first head")
        return Table(names, rows).output(repr(self))


def _row_of_first_head(x: Tensor, row: int) -> str:
    """Return the first numbers of a row of the first matrix in x (…, rows, columns)."""
    if not x.numel():
        return ""
    numbers = x.detach().reshape(-1, *x.shape[-2:])[0, row].tolist()
    written = "  ".join(f"{number:.2f}" for number in numbers[:MOST_NUMBERS]).replace("-", "−")
    return written + ("  …" if len(numbers) > MOST_NUMBERS else "")


@answer_pytorch_arguments
def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns a pair, `(output, weights)`, unlike PyTorch's function of the same name, which has one output.

    Attention of q (B, H, T, D) on k (B, G, S, D) and v (B, G, S, E), with leading dimensions that may be
    absent or more. `mask` is a mask such as `regard.causal`, or a tensor that broadcasts to (B, H, T, S):
    True is visible, floats are added to the scores. `scale` multiplies the scores (D ** -0.5 if None);
    `softcap` bounds them by softcap · tanh(score / softcap); `sinks` (H,) holds one more logit for every
    head, which takes its share of the softmax; `dropout` is the probability with which a weight is dropped.
    The output (B, H, T, E) and the weights (B, H, T, S) have the dtype of the inputs. A query that sees no
    key has zeros.

    >>> import torch, regard
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> output, weights = regard.scaled_dot_product_attention(x, x, x, mask=regard.causal)
    >>> weights
    tensor([[1.0000, 0.0000, 0.0000],
            [0.3302, 0.6698, 0.0000],
            [0.2483, 0.2483, 0.5035]])
    """
    steps = trace(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout)
    return steps.output, steps.weights.to(q.dtype)


def trace(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> Steps:
    """Every step of attention, from the scores to the output.

    The arguments are those of `scaled_dot_product_attention`.
    """
    shape, mask, scale = check_inputs(
        q, k, v, mask=mask, scale=scale, softcap=softcap, sinks=sinks, dropout=dropout
    )
    dtype, out_dtype = working_dtype(q.dtype), v.dtype
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)

    # Grouped heads: query head h reads key/value head h // group.
    if shape.group > 1:
        k = k.repeat_interleave(shape.group, dim=-3)  # (B, H, S, D)
        v = v.repeat_interleave(shape.group, dim=-3)  # (B, H, S, E)

    everything = (slice(0, shape.T), slice(0, shape.S), shape.matrix)
    allowed = shape.fit(mask.tile(*everything, device=q.device))
    bias = mask.bias(*everything, device=q.device)
    # NaN in a key that no query sees must not reach the output, nor NaN in a query that sees no key.
    unseen, blind = ~allowed.any(dim=-2).unsqueeze(-1), ~allowed.any(dim=-1).unsqueeze(-1)
    q, k, v = _zero_nonfinite(q, blind), _zero_nonfinite(k, unseen), _zero_nonfinite(v, unseen)

    # softmax(q kᵀ · scale + bias) v

    scores = q @ k.mT  # (B, H, T, S)
    scaled = scores * scale
    if softcap is not None:
        scaled = softcap * torch.tanh(scaled / softcap)
    masked = scaled if bias is None else scaled + shape.fit(bias).to(dtype)
    masked = masked.masked_fill(~allowed, -torch.inf)
    weights = drop(softmax(masked, sinks), dropout)
    output = weights @ v  # (B, H, T, E)
    return Steps(scores, scaled, masked, weights, output.to(out_dtype))


def _zero_nonfinite(x: Tensor, rows: Tensor) -> Tensor:
    """x with 0 for NaN and Inf in the marked rows. Their weight is 0, but 0 · NaN is NaN."""
    return x.masked_fill(rows & ~x.isfinite(), 0.0)


def softmax(masked: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the keys of masked scores (B, H, T, S); a row of −inf gives zeros instead of NaN.

    `sinks` (H,) adds one more logit to every row of a head. It takes its share of the softmax and is then
    dropped.
    """
    if sinks is not None:
        column = sinks.to(masked.dtype).view(-1, *[1] * min(masked.ndim - 1, 2))  # (H, 1, 1)
        column = column.expand(*masked.shape[:-1], 1)  # (B, H, T, 1)
        return softmax(torch.cat([masked, column], dim=-1))[..., :-1]
    empty = (masked == -torch.inf).all(dim=-1, keepdim=True)
    return torch.softmax(masked.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
