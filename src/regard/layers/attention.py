"""`Attention`: the attention layer of a transformer.

One projection computes queries, keys and values; QK-norm and rotary positions are applied if the model has
them; the cache adds the keys and values of earlier tokens; `attend` computes the attention. This file knows
weights and their order; the operation is in `regard.attention`, positions are in `rotary`, memory in `cache`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention.arguments import check_whole_number
from regard.attention.attend import attend
from regard.attention.masks.base import Mask, full
from regard.attention.masks.named_masks import as_mask
from regard.attention.tensors import check_floats
from regard.layers.cache import KVCache, mask_on_cached_keys
from regard.layers.norm import RMSNorm
from regard.layers.rotary import Rotary


class Attention(nn.Module):
    """Multi-head attention with grouped heads, biases, QK-norm, rotary positions, sinks and a cache.

    - `d_model`: the width of the input and the output; `num_heads`: the number of query heads.
    - `num_kv_heads`: key/value heads, each read by `num_heads // num_kv_heads` query heads; `num_heads` if
      None.
    - `head_dim`: the width of a head; `d_model // num_heads` if None.
    - `qkv_bias`, `out_bias`: biases of the two projections (GPT-2 has both, Qwen2 the first, Llama neither).
    - `qk_norm`: RMSNorm of each query and key over its head's width (Qwen3), with `norm_eps`.
    - `rotary`: a `Rotary`, which many layers may share. For ALiBi write `mask=causal & alibi(num_heads)`.
    - `mask`: the layer's own mask, such as `causal & window(4096)`; a call may restrict it further.
    - `scale` (`head_dim ** -0.5`), `softcap`, `dropout` (on the weights, in training only): as in `attend`.
    - `sinks`: a learned logit for each head that takes its share of the softmax (gpt-oss).

    >>> import regard
    >>> layer = Attention(32, 4, num_kv_heads=2, rotary=Rotary(8), mask=regard.causal)
    >>> layer(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        rotary: Rotary | None = None,
        mask: Mask | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model = d_model = check_whole_number("d_model", d_model)
        self.num_heads = num_heads = check_whole_number("num_heads", num_heads)
        if head_dim is None and d_model % num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of d_model={d_model}, got {num_heads}; "
                "or give head_dim, the width of a head"
            )
        self.head_dim = d_model // num_heads if head_dim is None else check_whole_number("head_dim", head_dim)
        if num_kv_heads is None:
            num_kv_heads = num_heads
        self.num_kv_heads = check_whole_number("num_kv_heads", num_kv_heads)
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads={num_heads}, got {num_kv_heads}; "
                "query head h reads key/value head h // (num_heads // num_kv_heads)"
            )
        if rotary is not None and rotary.width > self.head_dim:
            raise ValueError(
                f"rotary: expected a width of at most {self.head_dim}, the head's, got {rotary.width}"
            )
        if mask is not None and not isinstance(mask, Mask):
            raise ValueError(f"mask: expected a mask, such as regard.causal, got {type(mask).__name__}")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}")
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap: expected a number above 0, or None, got {softcap!r}")
        self.mask, self.scale, self.softcap, self.dropout = mask, scale, softcap, dropout

        H, G, D = self.num_heads, self.num_kv_heads, self.head_dim
        self.qkv = nn.Linear(d_model, (H + 2 * G) * D, bias=qkv_bias)  # rows: H queries, G keys, G values
        self.out = nn.Linear(H * D, d_model, bias=out_bias)
        self.query_norm = RMSNorm(D, norm_eps) if qk_norm else None
        self.key_norm = RMSNorm(D, norm_eps) if qk_norm else None
        self.rotary = rotary
        self.sinks = nn.Parameter(torch.zeros(H)) if sinks else None

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attention of x (B, T, d_model) on itself, or on `context` (B, S, d_model); returns (B, T, d_model).

        - `mask` restricts the layer's own mask, or adds to the scores.
        - `cache` holds the keys and values of earlier calls, which x and `mask` continue. A mask then covers
          every token so far, evicted ones too. An empty context adds nothing to the cache and attends to what
          it holds.
        - `positions`, (T,) or (B, T), are for rotary only. By default tokens count on from the cache's
          length, and the last query is aligned with the last key.
        """
        if cache is not None and not isinstance(cache, KVCache):
            raise ValueError(f"cache: expected a KVCache for this layer, got {type(cache).__name__}")
        try:
            if x.device != self.qkv.weight.device:  # PyTorch multiplies tensors of the meta device with any
                raise ValueError("x: another device")
            q, k, v, qk = self._project(x, context)  # (B, H, T, D), (B, G, S, D), (B, G, S, D)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError):  # of a fake tensor
            self._check("x", x)  # which says what is wrong with x; asked in every call it would take time
            raise
        if self.query_norm is not None and self.key_norm is not None:
            q, k, qk = self.query_norm(q), self.key_norm(k), None
        if self.rotary is not None:
            start = 0 if cache is None else cache.length
            if positions is not None and context is not None:
                raise ValueError(
                    "positions: expected None with a context, whose tokens have their own positions"
                )
            if qk is not None:  # rotated together, which takes half the time for a single token
                rotated = self.rotary(qk, start if positions is None else positions)
                q, k = rotated[:, : self.num_heads], rotated[:, self.num_heads :]
            else:
                q = self.rotary(q, start + k.shape[2] - q.shape[2] if positions is None else positions)
                k = self.rotary(k, start if positions is None else positions)

        # The layer's mask & the call's, on the keys that the cache holds.
        joint = full if self.mask is None else self.mask
        if mask is not None:
            joint = as_mask(mask) if joint is full else joint & as_mask(mask)
        if cache is not None:
            k, v = cache.update(k, v)  # (B, G, S, D) each
            joint = mask_on_cached_keys(joint, cache, q.shape[2], k.shape[2])
        heads = self.attend(q, k, v, joint)  # (B, H, T, D)
        output: Tensor = self.out(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)
        return output

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """`regard.attend` with the layer's settings. Override it to observe q, k, v and the mask."""
        dropout = self.dropout if self.training else 0.0
        return attend(
            q, k, v, mask=mask, scale=self.scale, softcap=self.softcap, sinks=self.sinks, dropout=dropout
        )

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values; and queries and keys as one tensor, where they are adjacent in memory."""
        H, G = self.num_heads, self.num_kv_heads
        if context is None:
            # Split, not sliced: the gradient is then one copy instead of sums with zeros.
            heads = self._heads(self.qkv(x))
            if self.rotary is None:
                q, k, v = heads.split_with_sizes([H, G, G], 1)
                return q, k, v, None
            qk, v = heads.split_with_sizes([H + G, G], 1)
            return qk[:, :H], qk[:, H:], v, qk
        self._check("context", context, len(x))
        weight, bias, rows = self.qkv.weight, self.qkv.bias, H * self.head_dim
        q = self._heads(linear(x, weight[:rows], None if bias is None else bias[:rows]))
        heads = self._heads(linear(context, weight[rows:], None if bias is None else bias[rows:]))
        return q, heads[:, :G], heads[:, G:], None

    def _heads(self, projected: Tensor) -> Tensor:
        B, T, width = projected.shape
        return projected.view(B, T, width // self.head_dim, self.head_dim).transpose(1, 2)  # (B, heads, T, D)

    def _check(self, name: str, x: Tensor, batch: int | None = None) -> None:
        weight = self.qkv.weight
        check_floats(name, x, values=False)
        if x.ndim != 3 or x.shape[2] != self.d_model or batch not in (None, len(x)):
            B = "batch" if batch is None else batch
            raise ValueError(f"{name}: expected ({B}, length, {self.d_model}), got {tuple(x.shape)}")
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(f"{name}: expected {weight.dtype}, as the weights are, got {x.dtype}")
        if x.device != weight.device:
            raise ValueError(f"{name}: expected it on {weight.device}, where the weights are, got {x.device}")

    def extra_repr(self) -> str:
        mask = "" if self.mask is None else f", mask={self.mask}"
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}{mask}"
