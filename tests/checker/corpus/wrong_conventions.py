# ruff: noqa: E501 (a line of source text is as long as it is)
"""Mistakes in the further styles: with conventions of masks, blocks, optional grouped heads, contexts, NumPy."""

from tests.checker.styles import Style

FLASH = Style(
    "flash reference",
    """
def attention_ref(q, k, v, key_padding_mask=None, causal=False, window=None):
    # window: how many keys a query sees, including its own
    T, S = q.shape[1], k.shape[1]
    times = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(times, dim=2), v.repeat_interleave(times, dim=2)
    scores = torch.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, k)
    i, j = torch.arange(T)[:, None] + S - T, torch.arange(S)
    if key_padding_mask is not None:
        scores = scores.masked_fill(~key_padding_mask[:, None, None, :], float("-inf"))
    if causal:
        scores = scores.masked_fill(j > i, float("-inf"))
    if window is not None:
        scores = scores.masked_fill(j <= i - window, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.einsum("bhts,bshd->bthd", weights, v)
""",
    "attention_ref",
)

BUCKETS = Style(
    "buckets",
    """
def attention(q, k, v, causal=False, q_bucket_size=512, k_bucket_size=1024):
    T, S, outs = q.shape[-2], k.shape[-2], []
    for i in range(0, T, q_bucket_size):
        qi = q[..., i : i + q_bucket_size, :] * q.shape[-1] ** -0.5
        m = qi.new_full((*qi.shape[:-1], 1), -1e30)
        l, out = torch.zeros_like(m), qi.new_zeros(*qi.shape[:-1], v.shape[-1])
        for j in range(0, S, k_bucket_size):
            kj, vj = k[..., j : j + k_bucket_size, :], v[..., j : j + k_bucket_size, :]
            s = qi @ kj.mT
            if causal:
                rows = torch.arange(qi.shape[-2])[:, None] + i + S - T
                cols = torch.arange(kj.shape[-2]) + j
                s = s.masked_fill(cols > rows, float("-inf"))
            new = torch.maximum(m, s.amax(-1, keepdim=True))
            alpha, p = (m - new).exp(), (s - new).exp()
            l = l * alpha + p.sum(-1, keepdim=True)
            out = out * alpha + p @ vj
            m = new
        outs.append(out / l)
    return torch.cat(outs, dim=-2)
""",
    "attention",
)

GROUPS = Style(
    "optional groups",
    """
class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads=None):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        times = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_dim)
        weights = torch.softmax(scores, dim=-1)
        return self.wo((weights @ v).transpose(1, 2).reshape(B, T, C))
""",
    "Attention",
)

CROSS = Style(
    "context",
    """
class CrossAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT * self.scale).softmax(dim=-1)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))
""",
    "CrossAttention",
)

TOKENS = Style(
    "mask of tokens",
    """
class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, attention_mask=None):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.n_heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores + torch.full((T, T), float("-inf")).triu(1).to(scores)
        if attention_mask is not None:
            keep = attention_mask[:, None, None, :].to(scores.dtype)
            scores = scores.masked_fill(keep == 0, -1e9)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
""",
    "Attention",
)

NUMPY = Style(
    "numpy",
    """
import numpy as np

def attention(q, k, v):
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v
""",
    "attention",
)

DOCUMENTED = Style(
    "documented",
    '''
def attend(q, k, v, is_causal=False):
    """Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if is_causal:
        T, S = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(T, S).triu(S - T + 1).bool(), float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return weights @ v
''',
    "attend",
)

SPLIT = Style(
    "split by channel",
    """
class MultiHeadSelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).permute(0, 2, 1, 3) for t in self.to_qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(B, T, C))
""",
    "MultiHeadSelfAttention",
)

ENTRIES = [
    FLASH.right(),
    FLASH.wrong("one key too many", ("j <= i - window", "j < i - window"), mistakes=("window-off-by-one",)),
    FLASH.wrong(
        "tiled",
        (
            "k.repeat_interleave(times, dim=2), v.repeat_interleave(times, dim=2)",
            "k.repeat(1, 1, times, 1), v.repeat(1, 1, times, 1)",
        ),
        mistakes=("grouped-heads-tiled",),
    ),
    FLASH.wrong(
        "padding ignored",
        ("~key_padding_mask[:, None, None, :]", "~torch.ones_like(key_padding_mask)[:, None, None, :]"),
        mistakes=("padded-keys-leak",),
    ),
    FLASH.wrong(
        "not as stated",
        ("~key_padding_mask[", "key_padding_mask["),
        mistakes=("inverted-mask",),
        true_means="look",
    ),
    FLASH.wrong(
        "as PyTorch has it, and stated",
        ("def attention_ref", "def attention_ref"),
        mistakes=("inverted-mask",),
        true_means="hide",
    ),
    FLASH.wrong("no scale", (" * q.shape[-1] ** -0.5", ""), mistakes=("no-scale",)),
    FLASH.wrong(
        "window ignored",
        ("if window is not None:", "if window is None and T < 0:"),
        mistakes=("window-dropped",),
    ),
    FLASH.wrong("always causal", ("if causal:", "if True:"), mistakes=("always-causal",)),
    BUCKETS.right(),
    BUCKETS.wrong(
        "not rescaled", ("out = out * alpha + p", "out = out + p"), mistakes=("block-not-rescaled",)
    ),
    BUCKETS.wrong("sum not rescaled", ("l = l * alpha + p", "l = l + p"), mistakes=("block-not-rescaled",)),
    BUCKETS.wrong("rows without their block", ("[:, None] + i + S - T", "[:, None] + S - T"), mistakes=()),
    BUCKETS.wrong(
        "offset of equal blocks",
        (
            "cols = torch.arange(kj.shape[-2]) + j",
            "cols = torch.arange(kj.shape[-2]) + j // k_bucket_size * q_bucket_size",
        ),
        mistakes=(),
    ),
    BUCKETS.wrong(
        "first block only",
        ("range(0, S, k_bucket_size)", "range(0, min(S, k_bucket_size), k_bucket_size)"),
        mistakes=(),
    ),
    GROUPS.right(),
    GROUPS.wrong(
        "tiled",
        (
            "k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1)",
            "k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)",
        ),
        mistakes=("grouped-heads-tiled",),
    ),
    GROUPS.wrong(
        "values tiled", ("v.repeat_interleave(times, dim=1)", "v.repeat(1, times, 1, 1)"), mistakes=()
    ),
    GROUPS.wrong(
        "scale of all heads",
        ("math.sqrt(self.head_dim)", "math.sqrt(C)"),
        mistakes=("scale-from-model-width",),
    ),
    GROUPS.wrong(
        "merged by view",
        (".transpose(1, 2).reshape(B, T, C))", ".reshape(B, T, C))"),
        mistakes=("heads-merged-by-view",),
    ),
    CROSS.right(),
    CROSS.wrong(
        "sides exchanged",
        (
            "self.to_q(x), self.to_k(context), self.to_v(context)",
            "self.to_q(context), self.to_k(x), self.to_v(x)",
        ),
        mistakes=("roles-shuffled",),
    ),
    CROSS.wrong(
        "values of the sequence", ("self.to_v(context)", "self.to_v(x)"), mistakes=("context-ignored",)
    ),
    CROSS.wrong("divided by the scale", ("* self.scale", "/ self.scale"), mistakes=("scale-multiplied",)),
    CROSS.wrong(
        "softmax over queries", ("softmax(dim=-1)", "softmax(dim=-2)"), mistakes=("softmax-over-queries",)
    ),
    TOKENS.right(),
    TOKENS.wrong(
        "zero times infinity",
        ("scores = scores.masked_fill(keep == 0, -1e9)", 'scores = scores + (1.0 - keep) * float("-inf")'),
        mistakes=("zero-times-infinity",),
    ),
    TOKENS.wrong("tokens hidden", ("keep == 0", "keep == 1"), mistakes=("inverted-mask",)),
    TOKENS.wrong(
        "padding seen", ("keep == 0, -1e9", "keep == 2, -1e9"), mistakes=("padded-keys-leak", "no-mask")
    ),
    TOKENS.wrong("diagonal hidden", (".triu(1)", ".triu(0)"), mistakes=("missing-diagonal",)),
    NUMPY.right(),
    NUMPY.wrong(
        "no maximum",
        ("    scores = scores - scores.max(axis=-1, keepdims=True)\n", ""),
        mistakes=("softmax-overflow",),
    ),
    NUMPY.wrong(
        "not divided",
        ("    weights = weights / weights.sum(axis=-1, keepdims=True)\n", ""),
        mistakes=("sum-not-divided",),
    ),
    NUMPY.wrong(
        "over queries",
        ("max(axis=-1", "max(axis=-2"),
        ("sum(axis=-1", "sum(axis=-2"),
        mistakes=("softmax-over-queries",),
    ),
    DOCUMENTED.right(),
    DOCUMENTED.wrong(
        "logarithms",
        ("F.softmax(scores, dim=-1)", "F.log_softmax(scores, dim=-1)"),
        mistakes=("softmax-missing", "no-mask"),
    ),
    DOCUMENTED.wrong("sigmoid", ("F.softmax(scores, dim=-1)", "torch.sigmoid(scores)"), mistakes=()),
    DOCUMENTED.wrong("one too few", ("triu(S - T + 1)", "triu(S - T)"), mistakes=("missing-diagonal",)),
    DOCUMENTED.wrong("one too many", ("triu(S - T + 1)", "triu(S - T + 2)"), mistakes=("one-token-ahead",)),
    DOCUMENTED.wrong("always causal", ("if is_causal:", "if True:"), mistakes=("always-causal",)),
    SPLIT.right(),
    SPLIT.wrong(
        "(d h) to (h d)",
        (
            "t.view(B, T, self.heads, -1).permute(0, 2, 1, 3)",
            "t.view(B, T, -1, self.heads).permute(0, 3, 1, 2)",
        ),
        mistakes=("heads-interleaved",),
    ),
    SPLIT.wrong(
        "(h d) to (d h)",
        ("out.permute(0, 2, 1, 3)", "out.permute(0, 2, 3, 1)"),
        mistakes=("heads-interleaved",),
    ),
    SPLIT.wrong(
        "split by view",
        ("t.view(B, T, self.heads, -1).permute(0, 2, 1, 3)", "t.view(B, self.heads, T, -1)"),
        mistakes=("heads-split-by-view",),
    ),
]
