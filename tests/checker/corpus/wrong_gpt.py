# ruff: noqa: E501 (a line of source text is as long as it is)
"""Decoders in the style of small GPTs and lectures, and what goes wrong in them."""

from tests.checker.styles import Style

HEAD = Style(
    "lecture head",
    '''
class Head(nn.Module):
    """One head of self-attention."""

    def __init__(self, n_embd, head_size, block_size, dropout):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)), persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        wei = F.softmax(wei, dim=-1)
        wei = self.dropout(wei)
        v = self.value(x)
        return wei @ v
''',
    "Head",
)

NANO = Style(
    "small GPT",
    """
class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        ones = torch.ones(config.block_size, config.block_size)
        self.register_buffer("bias", torch.tril(ones).view(1, 1, *ones.shape), persistent=False)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y
""",
    "CausalSelfAttention",
)
_NANO_MASK = '        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n'
_NANO_SOFTMAX = "        att = F.softmax(att, dim=-1)\n"

FUSED = Style(
    "small GPT with a fused kernel",
    """
class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.0):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head, self.n_embd, self.dropout = n_head, n_embd, dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in (q, k, v))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))
""",
    "CausalSelfAttention",
)
_FUSED_CALL = "F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)"

BOOK = Style(
    "book",
    """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        future = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)
        keys = keys.view(b, num_tokens, self.num_heads, self.head_dim)
        values = values.view(b, num_tokens, self.num_heads, self.head_dim)
        queries = queries.view(b, num_tokens, self.num_heads, self.head_dim)
        keys = keys.transpose(1, 2)
        queries = queries.transpose(1, 2)
        values = values.transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)
""",
    "MultiHeadAttention",
)

HEADS = Style(
    "list of heads",
    HEAD.source
    + """

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, n_embd, block_size, dropout=0.1):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, head_size, block_size, dropout) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))
""",
    "MultiHeadAttention",
)

ENTRIES = [
    HEAD.right(),
    # The scale is that of the model, not of the head.
    HEAD.wrong(
        "scale of the model's width",
        ("k.shape[-1] ** -0.5", "C ** -0.5"),
        mistakes=("scale-from-model-width",),
    ),
    HEAD.wrong(
        "softmax over dim=1",
        ("F.softmax(wei, dim=-1)", "F.softmax(wei, dim=1)"),
        mistakes=("softmax-over-queries",),
    ),
    # Weights above the diagonal are set to 0 after the softmax, so rows do not sum to 1.
    HEAD.wrong(
        "mask after softmax",
        ('        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))\n', ""),
        (
            "        wei = F.softmax(wei, dim=-1)\n",
            "        wei = F.softmax(wei, dim=-1)\n        wei = wei.masked_fill(self.tril[:T, :T] == 0, 0.0)\n",
        ),
        mistakes=("mask-after-softmax",),
    ),
    # softmax of a softmax: every weight lies between 1/(T·e) and e/T, far too flat.
    HEAD.wrong(
        "softmax twice",
        ("        wei = self.dropout(wei)\n", "        wei = self.dropout(F.softmax(wei, dim=-1))\n"),
        mistakes=("softmax-twice",),
    ),
    HEAD.wrong(
        "no softmax",
        ('float("-inf")', "0.0"),
        ("        wei = F.softmax(wei, dim=-1)\n", ""),
        mistakes=("softmax-missing",),
    ),
    # The value of each token is multiplied by √D: the weights were scaled, not the scores.
    HEAD.wrong(
        "scale after softmax",
        (" * k.shape[-1] ** -0.5", ""),
        (
            "        wei = F.softmax(wei, dim=-1)\n",
            "        wei = F.softmax(wei, dim=-1) * k.shape[-1] ** -0.5\n",
        ),
        mistakes=("scale-after-softmax",),
    ),
    HEAD.wrong(
        "value never projected", ("v = self.value(x)", "v = self.key(x)"), mistakes=("one-projection",)
    ),
    HEAD.wrong(
        "mask never saved",
        (
            'self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)), persistent=False)',
            "self.tril = torch.tril(torch.ones(block_size, block_size))",
        ),
        mistakes=("plain-attribute",),
    ),
    NANO.right(),
    # The projection holds (q, k, v), and the code reads (k, q, v): harmless in training from scratch, so
    # this is not an entry. Reading keys for values twice is one.
    NANO.wrong(
        "key used as value",
        ("        v = v.view(B, T,", "        v = k.transpose(1, 2).reshape(B, T, C).view(B, T,"),
        mistakes=("one-projection",),
    ),
    NANO.wrong(
        "heads split by view",
        *(
            (
                f"{t}.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
                f"{t}.view(B, self.n_head, T, C // self.n_head)",
            )
            for t in "qkv"
        ),
        mistakes=("heads-split-by-view",),
    ),
    NANO.wrong(
        "heads merged without a transpose",
        ("y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)"),
        mistakes=("heads-merged-by-view",),
    ),
    # The channels of a token are ordered (D, H) instead of (H, D): c_proj's columns do not fit.
    NANO.wrong(
        "heads concatenated in the wrong order",
        ("y.transpose(1, 2).contiguous().view(B, T, C)", "y.permute(0, 2, 3, 1).reshape(B, T, C)"),
        mistakes=("heads-interleaved",),
    ),
    NANO.wrong(
        "diagonal masked",
        (_NANO_MASK, '        att = att.masked_fill(torch.triu(torch.ones(T, T)) == 1, float("-inf"))\n'),
        mistakes=("missing-diagonal",),
    ),
    NANO.wrong(
        "one token too many",
        ("torch.tril(ones)", "torch.tril(ones, diagonal=1)"),
        mistakes=("one-token-ahead",),
    ),
    NANO.wrong("triu", ("torch.tril(ones)", "torch.triu(ones)"), mistakes=("transposed-mask",)),
    NANO.wrong("mask registered, not used", (_NANO_MASK, ""), mistakes=("no-mask",)),
    NANO.wrong("mask fills where 1", ("== 0, float", "== 1, float"), mistakes=("inverted-mask",)),
    NANO.wrong(
        "mask multiplies",
        (_NANO_MASK, "        att = att * self.bias[:, :, :T, :T]\n"),
        mistakes=("masked-with-zero",),
    ),
    NANO.wrong(
        "0 · inf",
        (_NANO_MASK, '        att = att + (1 - self.bias[:, :, :T, :T]) * float("-inf")\n'),
        mistakes=("zero-times-infinity",),
    ),
    NANO.wrong("mask of −10", ('float("-inf")', "-10.0"), mistakes=("weak-mask-value",)),
    NANO.wrong(
        "exp without the maximum",
        (_NANO_SOFTMAX, "        att = torch.exp(att) / torch.exp(att).sum(dim=-1, keepdim=True)\n"),
        mistakes=("softmax-overflow",),
    ),
    NANO.wrong(
        "softmax over heads",
        (_NANO_SOFTMAX, "        att = F.softmax(att, dim=1)\n"),
        mistakes=("softmax-over-heads",),
    ),
    NANO.wrong(
        "weights without gradient",
        (
            _NANO_SOFTMAX,
            "        att = F.softmax(att, dim=-1)\n        att = torch.tensor(att.tolist(), dtype=att.dtype)\n",
        ),
        mistakes=("weights-detached",),
    ),
    NANO.wrong(
        "dropout always",
        ("self.attn_dropout(att)", "F.dropout(att, p=self.attn_dropout.p)"),
        mistakes=("dropout-in-eval",),
    ),
    NANO.wrong(
        "dropout on the scores",
        ("        att = self.attn_dropout(att)\n", ""),
        ("F.softmax(att, dim=-1)", "F.softmax(self.attn_dropout(att), dim=-1)"),
        mistakes=("dropout-on-scores",),
    ),
    NANO.wrong(
        "projection skipped",
        ("self.resid_dropout(self.c_proj(y))", "self.resid_dropout(y)"),
        mistakes=("output-projection-skipped",),
    ),
    # Two mistakes together.
    NANO.wrong(
        "no scale and no diagonal",
        (" * (1.0 / math.sqrt(k.size(-1)))", ""),
        ("torch.tril(ones)", "torch.tril(ones, diagonal=-1)"),
        mistakes=("no-scale", "missing-diagonal"),
    ),
    NANO.wrong(
        "softmax over queries and heads merged by view",
        (_NANO_SOFTMAX, "        att = F.softmax(att, dim=-2)\n"),
        ("y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)"),
        mistakes=("softmax-over-queries", "heads-merged-by-view"),
    ),
    FUSED.right(),
    # F.scaled_dot_product_attention scales by itself.
    FUSED.wrong(
        "scaled twice",
        ("(q, k, v, attn", "(q / math.sqrt(q.size(-1)), k, v, attn"),
        mistakes=("scaled-twice",),
    ),
    FUSED.wrong(
        "a mask that hides is passed where True means look",
        (_FUSED_CALL, "F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(T, T).triu(1).bool())"),
        ("        p = self.dropout if self.training else 0.0\n", ""),
        (", self.dropout = n_head, n_embd, dropout", " = n_head, n_embd"),
        mistakes=("inverted-mask",),
    ),
    FUSED.wrong("dropout in eval", ("dropout_p=p", "dropout_p=self.dropout"), mistakes=("dropout-in-eval",)),
    FUSED.wrong("not causal", ("is_causal=True", "is_causal=False"), mistakes=("no-mask",)),
    BOOK.right(),
    BOOK.wrong(
        "values of the queries' projection",
        ("values = self.W_value(x)", "values = self.W_query(x)"),
        mistakes=("one-projection",),
    ),
    BOOK.wrong(
        "keys and values swapped",
        ("keys = self.W_key(x)", "keys = self.W_value(x)"),
        ("        values = self.W_value(x)", "        values = self.W_key(x)"),
        mistakes=("key-value-swapped",),
    ),
    BOOK.wrong(
        "queries and keys swapped",
        ("queries @ keys.transpose(2, 3)", "keys @ queries.transpose(2, 3)"),
        mistakes=("query-key-swapped",),
    ),
    BOOK.wrong(
        "scale of the number of tokens",
        ("keys.shape[-1] ** 0.5", "keys.shape[-2] ** 0.5"),
        mistakes=("scale-by-length",),
    ),
    BOOK.wrong(
        "divided by the width", ("keys.shape[-1] ** 0.5", "keys.shape[-1]"), mistakes=("scaled-by-width",)
    ),
    BOOK.wrong(
        "divided by 1/√D", ("keys.shape[-1] ** 0.5", "keys.shape[-1] ** -0.5"), mistakes=("scale-multiplied",)
    ),
    BOOK.wrong(
        "half precision inside",
        (
            "queries @ keys.transpose(2, 3)",
            "(queries.bfloat16() @ keys.bfloat16().transpose(2, 3)).to(x.dtype)",
        ),
        mistakes=("precision-lost",),
    ),
    BOOK.wrong(
        "softmax over the batch",
        ("** 0.5, dim=-1)", "** 0.5, dim=0)"),
        mistakes=("softmax-over-batch", "batch-items-mixed"),
    ),
    BOOK.wrong(
        "dropout created, not used",
        ("        attn_weights = self.dropout(attn_weights)\n", ""),
        mistakes=("dropout-never-acts",),
    ),
    HEADS.right(),
    HEADS.wrong("heads in a plain list", ("nn.ModuleList([Head", "list([Head"), mistakes=("plain-list",)),
    # Every head is the same head.
    HEADS.wrong(
        "the same head each time",
        ("[h(x) for h in self.heads]", "[self.heads[0](x) for _ in self.heads]"),
        mistakes=("one-head-for-all",),
    ),
    NANO.wrong(
        "dropout by hand, not rescaled",
        (
            "att = self.attn_dropout(att)",
            "att = att * (torch.rand_like(att) > self.attn_dropout.p) if self.training else att",
        ),
        mistakes=("dropout-not-rescaled",),
    ),
    HEAD.wrong(
        "dropout behind the values",
        ("        wei = self.dropout(wei)\n", ""),
        ("return wei @ v", "return self.dropout(wei @ v)"),
        mistakes=("dropout-on-output",),
    ),
    BOOK.wrong(
        "all three in another order",
        ("keys = self.W_key(x)", "keys = self.W_query(x)"),
        (
            "queries = self.W_query(x)\n        values = self.W_value(x)",
            "queries = self.W_value(x)\n        values = self.W_key(x)",
        ),
        mistakes=("roles-shuffled",),
    ),
    HEAD.wrong(".T of a batch", ("k.transpose(-2, -1)", "k.T"), mistakes=("dot-t-on-a-batch",)),
]
