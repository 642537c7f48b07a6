"""Stage 3, causal self-attention.

New: a token may look at itself and at earlier tokens only, as a model that writes from left to right must;
and `W_o` mixes what was gathered before it is handed on.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.masks.named import causal_mask
from regard.stages.checks import check_sequence, check_size
from regard.stages.trainable import one_head


class CausalSelfAttention(nn.Module):
    """One causal head with an output projection: `forward(x) -> out`, for up to `max_seq_len` tokens."""

    causal_mask: Tensor  # (max_seq_len, max_seq_len) True = may look

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        check_size("d_model", d_model)
        check_size("max_seq_len", max_seq_len)
        self.max_seq_len = max_seq_len
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        # A buffer moves with the module. It is not saved: the weights then load at any max_seq_len.
        self.register_buffer("causal_mask", causal_mask(max_seq_len), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        gathered, _ = self.attention(x)
        out: Tensor = self.W_o(gathered)  # (B, T, d_model)
        return out

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` hands to `W_o`, and the weights (B, T, T) by which it was gathered."""
        check_sequence("x", x, self.W_q, longest=self.max_seq_len)
        T = x.shape[-2]
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, d_model)
        return one_head(q, k, v, self.causal_mask[:T, :T])
