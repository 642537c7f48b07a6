# ruff: noqa: E501 (a line of source text is as long as it is)
"""Attention with a window, a soft cap, biases, sinks, shared or compressed keys, and what goes wrong."""

from tests.checker.styles import Style

WINDOW = Style(
    "sliding window",
    """
class SlidingWindowAttention(nn.Module):
    '''Each token sees window_size tokens, counting itself.'''

    def __init__(self, d_model, n_heads, window_size=3):
        super().__init__()
        self.n_heads, self.window_size = n_heads, window_size
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        i, j = torch.arange(T, device=x.device)[:, None], torch.arange(T, device=x.device)
        mask = (j <= i) & (i - j < self.window_size)
        att = (q @ k.transpose(-2, -1)) * q.size(-1) ** -0.5
        att = att.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))
""",
    "SlidingWindowAttention",
)

SOFTCAP = Style(
    "soft cap",
    """
class CausalAttention(nn.Module):
    def __init__(self, d_model, n_heads, attn_logit_softcapping=2.0):
        super().__init__()
        self.n_heads, self.attn_logit_softcapping = n_heads, attn_logit_softcapping
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.n_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        logits = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        logits = logits / self.attn_logit_softcapping
        logits = torch.tanh(logits)
        logits = logits * self.attn_logit_softcapping
        causal = torch.full((T, T), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        weights = F.softmax(logits + causal, dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, C))
""",
    "CausalAttention",
)

ALIBI = Style(
    "ALiBi",
    """
def get_slopes(n):
    start = 2.0 ** (-8.0 / n)
    return torch.tensor([start ** (i + 1) for i in range(n)])


class CausalAlibiAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.register_buffer("slopes", get_slopes(n_heads), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.Wqkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.n_heads, C // self.n_heads).transpose(1, 2) for t in (q, k, v))
        pos = torch.arange(T, device=x.device)
        distance = pos[None, :] - pos[:, None]
        bias = self.slopes[:, None, None] * distance
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores + bias
        scores = scores.masked_fill(distance > 0, float("-inf"))
        out = scores.softmax(dim=-1) @ v
        return self.out_proj(out.transpose(1, 2).reshape(B, T, C))
""",
    "CausalAlibiAttention",
)

SINKS = Style(
    "sink logits",
    """
class CausalAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (p(x).view(B, T, self.num_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        qk = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        qk = qk + torch.full((T, T), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        sinks = self.sinks.view(1, -1, 1, 1).expand(B, -1, T, 1)
        w = torch.softmax(torch.cat([qk, sinks], dim=-1), dim=-1)[..., :-1]
        return self.o_proj((w @ v).transpose(1, 2).reshape(B, T, C))
""",
    "CausalAttention",
)

MULTI_QUERY = Style(
    "multi-query",
    """
class MultiQueryAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.to_q = nn.Linear(d_model, d_model, bias=False)
        self.to_kv = nn.Linear(d_model, 2 * self.head_dim, bias=False)
        self.to_out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.n_heads, self.head_dim))
        k, v = self.to_kv(x).chunk(2, dim=-1)
        sim = torch.einsum("b i h d, b j d -> b h i j", q, k) * self.head_dim ** -0.5
        attn = sim.softmax(dim=-1)
        out = torch.einsum("b h i j, b j d -> b i h d", attn, v)
        return self.to_out(out.flatten(2))
""",
    "MultiQueryAttention",
)

FUSED_EINSUM = Style(
    "fused parameter and einsum",
    """
class EinsumAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        d_head = d_model // n_heads
        self.n_heads = n_heads
        self.W_qkv = nn.Parameter(torch.randn(3, n_heads, d_model, d_head) * d_model**-0.5)
        self.W_o = nn.Parameter(torch.randn(n_heads, d_head, d_model) * d_model**-0.5)

    def forward(self, x):
        q, k, v = torch.einsum("btc,nhcd->nbhtd", x, self.W_qkv)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        weights = scores.softmax(dim=-1)
        mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return torch.einsum("bhqd,hdc->bqc", mixed, self.W_o)
""",
    "EinsumAttention",
)

LATENT = Style(
    "latent attention",
    """
class MultiHeadLatentAttention(nn.Module):
    def __init__(self, d_model, n_heads, kv_lora_rank=16):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.kv_down = nn.Linear(d_model, kv_lora_rank, bias=False)
        self.k_up = nn.Linear(kv_lora_rank, d_model, bias=False)
        self.v_up = nn.Linear(kv_lora_rank, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        latent = self.kv_down(x)
        q, k, v = self.q_proj(x), self.k_up(latent), self.v_up(latent)
        q, k, v = (t.view(B, T, self.n_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, C))
""",
    "MultiHeadLatentAttention",
)

ENTRIES = [
    WINDOW.right(),
    WINDOW.wrong(
        "one key too many",
        ("i - j < self.window_size", "i - j <= self.window_size"),
        mistakes=("window-off-by-one",),
    ),
    WINDOW.wrong(
        "one key too few",
        ("i - j < self.window_size", "i - j < self.window_size - 1"),
        mistakes=("window-off-by-one",),
    ),
    WINDOW.wrong(
        "window forgotten",
        ("mask = (j <= i) & (i - j < self.window_size)", "mask = j <= i"),
        mistakes=("window-dropped",),
    ),
    # The window is on the future's side.
    WINDOW.wrong(
        "window of the future",
        ("mask = (j <= i) & (i - j < self.window_size)", "mask = (j >= i) & (j - i < self.window_size)"),
        mistakes=("inverted-mask",),
    ),
    SOFTCAP.right(),
    SOFTCAP.wrong(
        "cap after the mask",
        (
            "logits = torch.tanh(logits)",
            "logits = torch.tanh(logits + torch.full((T, T), float('-inf'), dtype=x.dtype).triu(1))",
        ),
        ("F.softmax(logits + causal, dim=-1)", "F.softmax(logits, dim=-1)"),
        mistakes=("softcap-after-mask",),
    ),
    SOFTCAP.wrong(
        "cap never multiplied back",
        ("        logits = logits * self.attn_logit_softcapping\n", ""),
        mistakes=("softcap-not-multiplied",),
    ),
    SOFTCAP.wrong(
        "cap dropped",
        (
            "        logits = logits / self.attn_logit_softcapping\n        logits = torch.tanh(logits)\n        logits = logits * self.attn_logit_softcapping\n",
            "",
        ),
        mistakes=("softcap-dropped",),
    ),
    SOFTCAP.wrong("no scale under the cap", (" * q.shape[-1] ** -0.5", ""), mistakes=("no-scale",)),
    ALIBI.right(),
    # Far keys are favoured.
    ALIBI.wrong("sign", ("scores = scores + bias", "scores = scores - bias"), mistakes=("alibi-inverted",)),
    ALIBI.wrong("slopes not powers", ("start ** (i + 1)", "start * (i + 1)"), mistakes=("alibi-slopes",)),
    ALIBI.wrong("slopes from exponent 0", ("start ** (i + 1)", "start ** i"), mistakes=("alibi-slopes",)),
    ALIBI.wrong(
        "scaled with the scores",
        (
            "q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])",
            "(q @ k.transpose(-1, -2) + bias) / math.sqrt(q.shape[-1])",
        ),
        ("        scores = scores + bias\n", ""),
        mistakes=("mask-scaled-too", "alibi-slopes"),
    ),
    SINKS.right(),
    SINKS.wrong(
        "sink lost",
        (
            "w = torch.softmax(torch.cat([qk, sinks], dim=-1), dim=-1)[..., :-1]",
            "w = torch.softmax(qk, dim=-1)",
        ),
        mistakes=("sink-dropped",),
    ),
    SINKS.wrong(
        "sink of the neighbouring head",
        ("self.sinks.view(1, -1, 1, 1)", "self.sinks.roll(1).view(1, -1, 1, 1)"),
        mistakes=("sink-of-another-head",),
    ),
    SINKS.wrong("first column cut off", ("[..., :-1]", "[..., 1:]"), mistakes=()),
    MULTI_QUERY.right(),
    MULTI_QUERY.wrong(
        "scale of the model",
        ("self.head_dim ** -0.5", "x.shape[-1] ** -0.5"),
        mistakes=("scale-from-model-width",),
    ),
    MULTI_QUERY.wrong(
        "softmax over the heads",
        ("sim.softmax(dim=-1)", "sim.softmax(dim=1)"),
        mistakes=("softmax-over-heads",),
    ),
    MULTI_QUERY.wrong(
        "output transposed",
        ('"b h i j, b j d -> b i h d"', '"b h j i, b j d -> b i h d"'),
        mistakes=("softmax-over-queries", "query-key-swapped"),
    ),
    FUSED_EINSUM.right(),
    FUSED_EINSUM.wrong("no scale", (" / q.shape[-1] ** 0.5", ""), mistakes=("no-scale",)),
    FUSED_EINSUM.wrong(
        "softmax over queries", ("softmax(dim=-1)", "softmax(dim=-2)"), mistakes=("softmax-over-queries",)
    ),
    FUSED_EINSUM.wrong(
        "keys are queries",
        ("        scores = torch.einsum(", "        k = q\n        scores = torch.einsum("),
        mistakes=("one-projection",),
    ),
    FUSED_EINSUM.wrong(
        "divided by the width",
        ("q.shape[-1] ** 0.5", "q.shape[-1]"),
        mistakes=("scaled-by-width", "scaled-twice"),
    ),
    LATENT.right(),
    LATENT.wrong("no scale", (" / math.sqrt(self.head_dim)", ""), mistakes=("no-scale",)),
    LATENT.wrong(
        "scale of the latent's width",
        ("math.sqrt(self.head_dim)", "math.sqrt(latent.shape[-1])"),
        mistakes=("constant-scale",),
    ),
    LATENT.wrong(
        "values from the keys' matrix",
        ("self.v_up(latent)", "self.k_up(latent)"),
        mistakes=("one-projection",),
    ),
    LATENT.wrong("mask inverted", ("triu(1)", "tril()"), mistakes=("inverted-mask",)),
]
