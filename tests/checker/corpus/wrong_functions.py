# ruff: noqa: E501 (a line of source text is as long as it is)
"""Functions on queries, keys and values, among them kernels written in PyTorch, and what goes wrong in them."""

from tests.checker.styles import Style

ONLINE = Style(
    "online softmax",
    """
def flash_attention(q, k, v, causal=False, block=4):
    B, H, T, D = q.shape
    S = k.shape[2]
    out = torch.zeros(B, H, T, v.shape[-1], dtype=q.dtype, device=q.device)
    l = torch.zeros(B, H, T, 1, dtype=q.dtype, device=q.device)
    m = torch.full((B, H, T, 1), float("-inf"), dtype=q.dtype, device=q.device)
    scale = D**-0.5
    rows = torch.arange(T, device=q.device)[:, None] + S - T
    for j in range(0, S, block):
        kj, vj = k[:, :, j : j + block], v[:, :, j : j + block]
        s = q @ kj.transpose(-1, -2) * scale
        if causal:
            cols = torch.arange(j, j + kj.shape[2], device=q.device)
            s = s.masked_fill(cols > rows, float("-inf"))
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp(s - m_new)
        alpha = torch.exp(m - m_new)
        l = l * alpha + p.sum(-1, keepdim=True)
        out = out * alpha + p @ vj
        m = m_new
    return out / l
""",
    "flash_attention",
)

PLAIN = Style(
    "scaled dot-product function",
    """
def scaled_dot_product(q, k, v, mask=None):
    d_k = q.size()[-1]
    attn_logits = torch.matmul(q, k.transpose(-2, -1))
    attn_logits = attn_logits / math.sqrt(d_k)
    if mask is not None:
        attn_logits = attn_logits.masked_fill(mask == 0, float("-inf"))
    attention = F.softmax(attn_logits, dim=-1)
    values = torch.matmul(attention, v)
    return values, attention
""",
    "scaled_dot_product",
)

BMM = Style(
    "three dimensions",
    """
def attention(query, key, value, key_padding_mask=None):
    scores = torch.bmm(query, key.transpose(1, 2)) / query.size(-1) ** 0.5
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, :], float("-inf"))
    return torch.bmm(scores.softmax(dim=-1), value)
""",
    "attention",
)

HEADS_LAST = Style(
    "heads on axis 2",
    """
def attention(q, k, v, causal=False, window=None):
    # A query sees the last `window` keys, its own included.
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    T, S = scores.shape[-2:]
    i, j = torch.arange(T, device=q.device)[:, None] + S - T, torch.arange(S, device=q.device)
    allowed = torch.ones(T, S, dtype=torch.bool, device=q.device)
    if causal:
        allowed = allowed & (j <= i)
    if window is not None:
        allowed = allowed & (j > i - window)
    scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
""",
    "attention",
)

ENTRIES = [
    ONLINE.right(),
    # Earlier blocks are not rescaled by the new maximum.
    ONLINE.wrong(
        "output not rescaled",
        ("out = out * alpha + p @ vj", "out = out + p @ vj"),
        mistakes=("block-not-rescaled",),
    ),
    ONLINE.wrong(
        "sum not rescaled", ("l = l * alpha + p.sum", "l = l + p.sum"), mistakes=("block-not-rescaled",)
    ),
    ONLINE.wrong(
        "no maximum",
        ("p = torch.exp(s - m_new)", "p = torch.exp(s)"),
        ("alpha = torch.exp(m - m_new)", "alpha = 1.0"),
        mistakes=("softmax-overflow",),
    ),
    ONLINE.wrong(
        "last block left out", ("range(0, S, block)", "range(0, S - S % block or S, block)"), mistakes=()
    ),
    ONLINE.wrong(
        "columns counted in each block",
        ("torch.arange(j, j + kj.shape[2]", "torch.arange(kj.shape[2]"),
        mistakes=(),
    ),
    ONLINE.wrong("never divided", ("return out / l", "return out"), mistakes=("sum-not-divided",)),
    PLAIN.right(),
    PLAIN.wrong("no scale", ("    attn_logits = attn_logits / math.sqrt(d_k)\n", ""), mistakes=("no-scale",)),
    PLAIN.wrong(
        "width of the batch axis",
        ("q.size()[-1]", "q.size()[1]"),
        mistakes=("scale-by-length", "constant-scale", "scale-from-heads"),
    ),
    PLAIN.wrong(
        "softmax without dim on four axes",
        ("F.softmax(attn_logits, dim=-1)", "F.softmax(attn_logits, dim=1)"),
        mistakes=("softmax-over-heads",),
    ),
    PLAIN.wrong("mask of −9", ('float("-inf")', "-9"), mistakes=("weak-mask-value",)),
    PLAIN.wrong(
        "softmax twice",
        ("torch.matmul(attention, v)", "torch.matmul(F.softmax(attention, dim=-1), v)"),
        mistakes=("softmax-twice",),
    ),
    PLAIN.wrong(
        "no softmax",
        ("attention = F.softmax(attn_logits, dim=-1)", "attention = attn_logits"),
        ('float("-inf")', "0.0"),
        mistakes=("softmax-missing",),
    ),
    PLAIN.wrong(
        "keys for values",
        ("torch.matmul(attention, v)", "torch.matmul(attention, k)"),
        mistakes=("one-projection", "key-value-swapped"),
    ),
    PLAIN.wrong(
        "weights of another softmax are returned",
        ("return values, attention", "return values, F.softmax(attn_logits, dim=-2)"),
        mistakes=(),
    ),
    BMM.right(),
    BMM.wrong(
        "padding hides queries",
        ("key_padding_mask[:, None, :]", "key_padding_mask[:, :, None]"),
        mistakes=("padding-on-queries", "padded-keys-leak"),
    ),
    BMM.wrong(
        "padding inverted",
        ("key_padding_mask[:, None, :]", "~key_padding_mask[:, None, :]"),
        mistakes=("inverted-mask",),
        true_means="hide",
    ),
    BMM.wrong(
        "softmax over the batch",
        ("softmax(dim=-1)", "softmax(dim=0)"),
        mistakes=("softmax-over-batch", "batch-items-mixed"),
    ),
    BMM.wrong(
        "half precision",
        (
            "torch.bmm(query, key.transpose(1, 2))",
            "torch.bmm(query.half(), key.half().transpose(1, 2)).to(query.dtype)",
        ),
        mistakes=("precision-lost",),
    ),
    HEADS_LAST.right(),
    HEADS_LAST.wrong(
        "window one too wide", ("j > i - window", "j >= i - window"), mistakes=("window-off-by-one",)
    ),
    HEADS_LAST.wrong(
        "window dropped", ("allowed & (j > i - window)", "allowed"), mistakes=("window-dropped",)
    ),
    HEADS_LAST.wrong(
        "causal only in the name",
        ("        allowed = allowed & (j <= i)\n", "        pass\n"),
        mistakes=("no-mask",),
    ),
    HEADS_LAST.wrong("one ahead", ("(j <= i)", "(j <= i + 1)"), mistakes=("one-token-ahead",)),
    ONLINE.wrong(
        "log-sum-exp in base 2",
        ("return out / l", "return out / l, (m + l.log()).squeeze(-1) / math.log(2)"),
        mistakes=("lse-base-2",),
    ),
]
