# ruff: noqa: E501 (a line of source text is as long as it is)
"""Rotary positions in the styles of today's decoders, and what goes wrong with them."""

from tests.checker.styles import Style

# Tables from a module, halves paired, as in most model code.
HALVES = Style(
    "rotary halves",
    """
class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)), persistent=False)

    def tables(self, length):
        t = torch.arange(length, dtype=self.inv_freq.dtype, device=self.inv_freq.device)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


class CausalAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads=2):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)

    def forward(self, hidden_states):
        B, T, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        cos, sin = self.rotary_emb.tables(T)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        mask = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        out = torch.softmax(scores, dim=-1) @ v
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
""",
    "CausalAttention",
)

# Neighbouring channels as complex numbers.
COMPLEX = Style(
    "rotary complex",
    """
def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].double() / dim))
    freqs = torch.outer(torch.arange(end).double(), freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x, freqs_cis):
    x_ = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis[None, :, None, :]).flatten(3).to(x.dtype)


class CausalAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        freqs_cis = precompute_freqs_cis(self.head_dim, seqlen)
        xq = apply_rotary_emb(xq, freqs_cis)
        xk = apply_rotary_emb(xk, freqs_cis)
        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))
        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        return self.wo(output.transpose(1, 2).reshape(bsz, seqlen, -1))
""",
    "CausalAttention",
)
_TURN = "        xq = apply_rotary_emb(xq, freqs_cis)\n        xk = apply_rotary_emb(xk, freqs_cis)\n"

# Norms of queries and keys in front of the rotation.
NORMED = Style(
    "norms of queries and keys",
    """
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class CausalAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.head_dim), RMSNorm(self.head_dim)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, self.num_heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, self.num_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, C))
""",
    "CausalAttention",
)

ENTRIES = [
    HALVES.right(),
    # The angles of neighbours with the rotation of halves.
    HALVES.wrong(
        "tables of the other pairing",
        ("emb = torch.cat((freqs, freqs), dim=-1)", "emb = freqs.repeat_interleave(2, dim=-1)"),
        mistakes=("rotary-pairing-mixed",),
    ),
    HALVES.wrong(
        "rotation of the other pairing",
        ("torch.cat((-x2, x1), dim=-1)", "torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)"),
        mistakes=("rotary-pairing-mixed",),
    ),
    HALVES.wrong(
        "only the keys are rotated",
        ("        q, k = apply_rotary_pos_emb(", "        _, k = apply_rotary_pos_emb("),
        mistakes=("one-side-rotated",),
    ),
    HALVES.wrong(
        "the values are rotated too",
        (
            "        k = k.repeat_interleave(",
            "        v, _ = apply_rotary_pos_emb(v, v, cos, sin)\n        k = k.repeat_interleave(",
        ),
        mistakes=("values-rotated",),
    ),
    # The last line of rotate_half lost its sign: not a rotation.
    HALVES.wrong(
        "sign lost in rotate_half",
        ("torch.cat((-x2, x1), dim=-1)", "torch.cat((x2, x1), dim=-1)"),
        mistakes=("rotation-sign-lost",),
    ),
    HALVES.wrong(
        "groups tiled",
        (
            "k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)",
            "k.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)",
        ),
        (
            "v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)",
            "v.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)",
        ),
        mistakes=("grouped-heads-tiled",),
    ),
    HALVES.wrong(
        "scale of the hidden size",
        ("math.sqrt(self.head_dim)", "math.sqrt(hidden_states.shape[-1])"),
        mistakes=("scale-from-model-width",),
    ),
    HALVES.wrong(
        "mask without the diagonal",
        ("device=q.device).tril()", "device=q.device).tril(-1)"),
        mistakes=("missing-diagonal",),
    ),
    HALVES.wrong(
        "softmax over queries",
        ("torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)"),
        mistakes=("softmax-over-queries",),
    ),
    COMPLEX.right(),
    # (B, H, T, D) is given where (B, T, H, D) is expected: positions run along the heads.
    COMPLEX.wrong(
        "rotated after the transpose",
        (_TURN, ""),
        (
            "        output = F.scaled",
            "        freqs_cis = freqs_cis[: self.n_heads]\n        xq, xk = apply_rotary_emb(xq, freqs_cis), apply_rotary_emb(xk, freqs_cis)\n        output = F.scaled",
        ),
        mistakes=("positions-cancel",),
    ),
    COMPLEX.wrong(
        "the values are rotated",
        (_TURN, _TURN + "        xv = apply_rotary_emb(xv, freqs_cis)\n"),
        mistakes=("values-rotated",),
    ),
    COMPLEX.wrong(
        "the keys are not rotated",
        ("        xk = apply_rotary_emb(xk, freqs_cis)\n", ""),
        mistakes=("one-side-rotated",),
    ),
    # Keys turn the other way: scores depend on the sum of the positions.
    COMPLEX.wrong(
        "keys turn the other way",
        ("xk = apply_rotary_emb(xk, freqs_cis)", "xk = apply_rotary_emb(xk, freqs_cis.conj())"),
        mistakes=("rotated-against-each-other",),
    ),
    COMPLEX.wrong(
        "scaled twice",
        ("(xq, xk, xv, is_causal", "(xq * self.head_dim**-0.5, xk, xv, is_causal"),
        mistakes=("scaled-twice",),
    ),
    COMPLEX.wrong("not causal", ("is_causal=True", "is_causal=False"), mistakes=("no-mask",)),
    COMPLEX.wrong(
        "heads merged by view",
        ("output.transpose(1, 2).reshape", "output.reshape"),
        mistakes=("heads-merged-by-view",),
    ),
    NORMED.right(),
    NORMED.wrong(
        "only the queries are normalised",
        (
            "self.k_norm(self.k_proj(x).view(B, T, self.num_heads, self.head_dim))",
            "self.k_proj(x).view(B, T, self.num_heads, self.head_dim)",
        ),
        mistakes=("one-side-normalised",),
    ),
    NORMED.wrong(
        "only the keys are normalised",
        (
            "self.q_norm(self.q_proj(x).view(B, T, self.num_heads, self.head_dim))",
            "self.q_proj(x).view(B, T, self.num_heads, self.head_dim)",
        ),
        mistakes=("one-side-normalised",),
    ),
]
