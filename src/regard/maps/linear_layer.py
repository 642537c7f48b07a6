"""`linear_attention_map`: checks what the recurrence of a layer is made of, and makes its map."""

from __future__ import annotations

from torch import Tensor

from regard.attention.inputs import working_dtype
from regard.attention.tensors import check_floats
from regard.maps.linear_map import LinearAttentionMap


def linear_attention_map(
    q: Tensor,
    k: Tensor,
    *,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    delta_rule: bool = False,
    skip: Tensor | None = None,
    scale: float = 1.0,
    qk_norm: float | None = None,
) -> LinearAttentionMap:
    """The map of a linear-attention or state-space layer, as entries W with o_t = Σ_s W_ts v_s.

    The layer's state is S_t = (I − β_t k_t k_tᵀ) e^{g_t} S_{t−1} + β_t k_t v_tᵀ, without the bracket unless
    `delta_rule`, and its output o_t = scale · S_tᵀ q_t + skip · v_t.

    - `q`, `k`: (B, G, T, D), where each of the G heads serves as many of the layer's H heads. For Mamba-2
      they are C and B.
    - `decay`: g, the logarithm of what the state keeps, at most 0: (B, H, T), or (B, H, T, D) for a decay of
      each channel (KDA, GLA). None for no decay.
    - `beta`: β, (B, H, T); 1 by default. For Mamba-2 it is the time step.
    - `skip`: (H,), what a token's own value adds beside the recurrence (Mamba-2's D).
    - `qk_norm`: if given, q and k are divided by √(Σ x² + qk_norm) first.

    >>> import torch, regard
    >>> q = k = torch.eye(3)[None, None]
    >>> m = regard.maps.linear_attention_map(q, k, decay=torch.full((1, 1, 3), -0.5))
    >>> m
    LinearAttentionMap(1×1×3×3, linear attention with decay, float32)
    >>> ones = torch.ones(1, 1, 3, 1)
    >>> regard.maps.linear_attention_map(ones, ones, delta_rule=True)[0, 0, 2]
    tensor([0., 0., 1.])
    """
    for name, x in (("q", q), ("k", k)):
        if check_floats(name, x).ndim != 4:
            raise ValueError(f"{name}: expected (B, G, T, D), got {tuple(x.shape)}")
    if q.shape != k.shape:
        raise ValueError(f"k: expected {tuple(q.shape)}, as q has, got {tuple(k.shape)}")
    B, G, T, D = q.shape
    working = working_dtype(q.dtype)
    # The heads of the layer are those of decay or beta: q and k may have fewer, as Mamba-2's groups.
    H = next((x.shape[1] for x in (decay, beta) if x is not None and x.ndim >= 3), G)
    if skip is not None and decay is None and beta is None:
        H = len(skip)
    if H % max(G, 1):
        raise ValueError(f"q: expected a number of heads that divides the layer's {H}, got {G}")
    expected: dict[str, list[tuple[int, ...]]] = {
        "decay": [(B, H, T), (B, H, T, D)],
        "beta": [(B, H, T)],
        "skip": [(H,)],
    }
    given = {"decay": decay, "beta": beta, "skip": skip}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if tuple(check_floats(name, tensor).shape) not in expected[name]:
            shapes = " or ".join(map(str, expected[name]))
            raise ValueError(f"{name}: expected {shapes}, got {tuple(tensor.shape)}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: expected it on {q.device}, where q is, got {tensor.device}")
    if k.device != q.device:
        raise ValueError(f"k: expected it on {q.device}, where q is, got {k.device}")
    decay = q.new_zeros(B, H, T, dtype=working) if decay is None else decay
    beta = q.new_ones(B, H, T, dtype=working) if beta is None else beta
    return LinearAttentionMap(
        q=q.detach(),
        k=k.detach(),
        decay=decay.detach(),
        beta=beta.detach(),
        skip=None if skip is None else skip.detach(),
        delta_rule=delta_rule,
        scale=float(scale),
        qk_norm=qk_norm,
    )
