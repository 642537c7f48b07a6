# ruff: noqa: E501 (a line of source text is as long as it is)
"""Encoders, vision, speech and cross-attention, and what goes wrong in them."""

from dataclasses import replace

from tests.checker.styles import Style

BERT = Style(
    "encoder with an extended mask",
    """
class SelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x):
        x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(self, x, attention_mask=None):
        query_layer = self.transpose_for_scores(self.query(x))
        key_layer = self.transpose_for_scores(self.key(x))
        value_layer = self.transpose_for_scores(self.value(x))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        attention_probs = self.dropout(attention_probs)
        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        return context_layer.view(context_layer.size()[:-2] + (self.all_head_size,))
""",
    "SelfAttention",
)

VISION = Style(
    "vision",
    """
class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
""",
    "Attention",
)

ANNOTATED = Style(
    "layers in a list",
    """
def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)
""",
    "MultiHeadedAttention",
)

SPEECH = Style(
    "speech",
    """
class MultiHeadAttention(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x, xa=None, mask=None):
        q = self.query(x)
        k = self.key(x if xa is None else xa)
        v = self.value(x if xa is None else xa)
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        w = F.softmax(qk, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))
""",
    "MultiHeadAttention",
)

CROSS = Style(
    "cross-attention",
    """
class CrossAttention(nn.Module):
    def __init__(self, query_dim, context_dim=20, heads=4, dim_head=12):
        super().__init__()
        inner_dim = dim_head * heads
        self.scale, self.heads = dim_head**-0.5, heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, x, context):
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(*x.shape[:2], -1))
""",
    "CrossAttention",
)

WRAPPED = Style(
    "wrapped nn.MultiheadAttention",
    """
class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=True)

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
        out, _ = self.attn(x, x, x, attn_mask=mask, need_weights=False)
        return out
""",
    "CausalSelfAttention",
)

ENTRIES = [
    BERT.right(),
    BERT.wrong(
        "mask before the scale",
        ("        attention_scores = attention_scores / math.sqrt(self.attention_head_size)\n", ""),
        (
            "        attention_probs = nn",
            "        attention_scores = attention_scores / math.sqrt(self.attention_head_size)\n        attention_probs = nn",
        ),
        mistakes=("mask-scaled-too",),
    ),
    BERT.wrong(
        "mask multiplied",
        ("attention_scores + attention_mask", "attention_scores * attention_mask"),
        mistakes=("masked-with-zero", "zero-times-infinity", "mask-multiplied"),
    ),
    BERT.wrong(
        "mask accepted, not used",
        ("            attention_scores = attention_scores + attention_mask\n", "            pass\n"),
        mistakes=("no-mask",),
    ),
    BERT.wrong(
        "no scale",
        ("        attention_scores = attention_scores / math.sqrt(self.attention_head_size)\n", ""),
        mistakes=("no-scale",),
    ),
    BERT.wrong(
        "softmax over heads",
        ("softmax(attention_scores, dim=-1)", "softmax(attention_scores, dim=1)"),
        mistakes=("softmax-over-heads",),
    ),
    BERT.wrong(
        "values of the key's layer",
        ("self.transpose_for_scores(self.value(x))", "self.transpose_for_scores(self.key(x))"),
        mistakes=("one-projection",),
    ),
    BERT.wrong(
        "context not permuted",
        (
            "context_layer.permute(0, 2, 1, 3).contiguous()\n        return context_layer.view(context_layer.size()[:-2] + (self.all_head_size,))",
            "context_layer.contiguous()\n        return context_layer.view(x.shape[0], x.shape[1], self.all_head_size)",
        ),
        mistakes=("heads-merged-by-view",),
    ),
    VISION.right(),
    VISION.wrong(
        "scale of the model",
        ("(dim // num_heads) ** -0.5", "dim ** -0.5"),
        mistakes=("scale-from-model-width",),
    ),
    VISION.wrong("divided by the scale", (" * self.scale", " / self.scale"), mistakes=("scale-multiplied",)),
    # (B, N, H, 3, D) is read as (3, B, H, N, D) by a permute that does not fit the reshape: right for a layer of its
    # own, so it is no entry. Splitting the sequence instead of the channels is.
    VISION.wrong(
        "heads split by view",
        (
            "reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)",
            "reshape(B, 3, self.num_heads, N, C // self.num_heads).permute(1, 0, 2, 3, 4)",
        ),
        mistakes=(),
    ),
    VISION.wrong(
        "softmax over the tokens that ask",
        ("softmax(dim=-1)", "softmax(dim=-2)"),
        mistakes=("softmax-over-queries",),
    ),
    VISION.wrong(
        "dropout in eval", ("self.attn_drop(attn)", "F.dropout(attn, 0.1)"), mistakes=("dropout-in-eval",)
    ),
    VISION.wrong(
        "projection forgotten",
        ("self.proj_drop(self.proj(x))", "self.proj_drop(x)"),
        mistakes=("output-projection-skipped",),
    ),
    VISION.wrong(
        "the batch is the sequence",
        ("q, k, v = qkv.unbind(0)", "q, k, v = (t.transpose(0, 2) for t in qkv.unbind(0))"),
        ("(attn @ v).transpose(1, 2)", "(attn @ v).transpose(0, 2).transpose(1, 2)"),
        mistakes=("batch-items-mixed",),
    ),
    ANNOTATED.right(),
    ANNOTATED.wrong(
        "mask inverted",
        ("mask == 0, -1e9", "mask == 1, -1e9"),
        mistakes=("inverted-mask",),
        true_means="look",
    ),
    ANNOTATED.wrong(
        "sign of −1e9 lost", ("mask == 0, -1e9", "mask == 0, 1e-9"), mistakes=("masked-with-zero",)
    ),
    ANNOTATED.wrong(
        "mask after softmax",
        (
            "        scores = scores.masked_fill(mask == 0, -1e9)\n    p_attn = scores.softmax(dim=-1)\n",
            "        p_attn = scores.softmax(dim=-1).masked_fill(mask == 0, 0.0)\n    else:\n        p_attn = scores.softmax(dim=-1)\n",
        ),
        mistakes=("mask-after-softmax",),
    ),
    ANNOTATED.wrong(
        "keys and values of each other",
        ("(query, key, value))\n        ]", "(query, value, key))\n        ]"),
        mistakes=("key-value-swapped", "inputs-exchanged"),
    ),
    ANNOTATED.wrong(
        "dropout before softmax",
        (
            "    p_attn = scores.softmax(dim=-1)\n    if dropout is not None:\n        p_attn = dropout(p_attn)\n",
            "    if dropout is not None:\n        scores = dropout(scores)\n    p_attn = scores.softmax(dim=-1)\n",
        ),
        mistakes=("dropout-on-scores",),
    ),
    ANNOTATED.wrong(
        "scale of the model",
        ("math.sqrt(d_k)", "math.sqrt(d_k * query.size(1))"),
        mistakes=("scale-from-model-width",),
    ),
    # masks of the wrong orientation
    ANNOTATED.wrong(
        "mask transposed",
        ("mask = mask.unsqueeze(1)", "mask = mask.unsqueeze(1).transpose(-2, -1)"),
        mistakes=("transposed-mask",),
    ),
    SPEECH.right(),
    SPEECH.wrong("scale twice √√", ("** -0.25", "** -0.5"), mistakes=("scaled-twice", "scaled-by-width")),
    SPEECH.wrong(
        "scale on one side only",
        ("permute(0, 2, 3, 1) * scale", "permute(0, 2, 3, 1)"),
        mistakes=("scale-on-one-side", "constant-scale"),
    ),
    SPEECH.wrong(
        "heads flattened in the wrong order",
        ("permute(0, 2, 1, 3).flatten(start_dim=2)", "permute(0, 2, 3, 1).flatten(start_dim=2)"),
        mistakes=("heads-interleaved",),
    ),
    SPEECH.wrong(
        "the context is ignored by the values",
        ("v = self.value(x if xa is None else xa)", "v = self.value(x)"),
        mistakes=("context-ignored",),
    ),
    replace(
        SPEECH.wrong(
            "the keys are made of both inputs",
            (
                "k = self.key(x if xa is None else xa)",
                "k = self.key(x if xa is None else xa * x.mean(1, keepdim=True))",
            ),
            mistakes=(),
        ),
        verdict="undecided",
        why="neither attention to `xa` nor to both",
    ),
    CROSS.right(),
    CROSS.wrong("scale forgotten", (" * self.scale", ""), mistakes=("no-scale",)),
    CROSS.wrong(
        "softmax over the queries", ("softmax(dim=-1)", "softmax(dim=-2)"), mistakes=("softmax-over-queries",)
    ),
    CROSS.wrong(
        "values of the keys", ("self.to_v(context)", "self.to_k(context)"), mistakes=("one-projection",)
    ),
    CROSS.wrong(
        "merged by view",
        ("out.transpose(1, 2).reshape(*x.shape[:2], -1)", "out.reshape(*x.shape[:2], -1)"),
        mistakes=("heads-merged-by-view",),
    ),
    WRAPPED.right(),
    WRAPPED.wrong(
        "tril of booleans, where True hides",
        (
            "torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)",
            "torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device))",
        ),
        mistakes=("inverted-mask",),
    ),
    WRAPPED.wrong("diagonal hidden", ("diagonal=1", "diagonal=0"), mistakes=("missing-diagonal",)),
    WRAPPED.wrong(
        "a float mask of ones is added",
        ("dtype=torch.bool, device=x.device), diagonal=1)", "dtype=x.dtype, device=x.device), diagonal=1)"),
        mistakes=("mask-added-as-zero-one",),
    ),
]
