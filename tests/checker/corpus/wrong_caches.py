# ruff: noqa: E501 (a line of source text is as long as it is)
"""Attention with a cache of keys and values, and what goes wrong when a sequence is continued."""

from tests.checker.styles import Style

_ROTATE = """
def precompute(D, length, theta=10000.0):
    inverse = theta ** (-torch.arange(0, D, 2).double() / D)
    angles = torch.outer(torch.arange(length).double(), inverse)
    return torch.cat([angles.cos(), angles.cos()], -1), torch.cat([angles.sin(), angles.sin()], -1)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary(x, cos, sin):
    return x * cos.to(x.dtype) + rotate_half(x) * sin.to(x.dtype)
"""

# start_pos as an argument, the cache in buffers of the module, as the reference code of Llama has it.
LLAMA = Style(
    "llama",
    _ROTATE
    + """

@dataclass
class ModelArgs:
    dim: int = 48
    n_heads: int = 4
    n_kv_heads: int = 2
    max_batch_size: int = 4
    max_seq_len: int = 16


def repeat_kv(x, times):
    return x.repeat_interleave(times, dim=2)


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads, self.n_kv_heads = args.n_heads, args.n_kv_heads
        self.n_rep = args.n_heads // args.n_kv_heads
        self.head_dim = args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, self.n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * self.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.max_seq_len, self.n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)
        cos, sin = precompute(self.head_dim, args.max_seq_len)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x, start_pos: int = 0):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        cos = self.cos[start_pos : start_pos + seqlen, None]
        sin = self.sin[start_pos : start_pos + seqlen, None]
        xq, xk = apply_rotary(xq, cos, sin), apply_rotary(xk, cos, sin)
        self.cache_k[:bsz, start_pos : start_pos + seqlen] = xk.detach()
        self.cache_v[:bsz, start_pos : start_pos + seqlen] = xv.detach()
        keys = torch.cat([self.cache_k[:bsz, :start_pos], xk], 1)
        values = torch.cat([self.cache_v[:bsz, :start_pos], xv], 1)
        keys, values = repeat_kv(keys, self.n_rep), repeat_kv(values, self.n_rep)
        xq, keys, values = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        mask = torch.full((seqlen, seqlen), float("-inf")).triu(1)
        mask = torch.hstack([torch.zeros(seqlen, start_pos), mask])
        scores = scores + mask.to(scores)
        scores = F.softmax(scores, dim=-1)
        output = torch.matmul(scores, values)
        return self.wo(output.transpose(1, 2).contiguous().view(bsz, seqlen, -1))
""",
    "Attention",
)
_LLAMA_READ = "keys = torch.cat([self.cache_k[:bsz, :start_pos], xk], 1)\n"

# The cache goes in and comes out, as a pair.
PAST = Style(
    "layer_past",
    """
class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def split_heads(self, x):
        return x.view(*x.shape[:-1], self.n_head, -1).transpose(1, 2)

    def forward(self, x, layer_past=None):
        query, key, value = self.c_attn(x).chunk(3, dim=-1)
        query, key, value = self.split_heads(query), self.split_heads(key), self.split_heads(value)
        if layer_past is not None:
            past_key, past_value = layer_past[0], layer_past[1]
            key = torch.cat((past_key, key), dim=-2)
            value = torch.cat((past_value, value), dim=-2)
        present = torch.stack((key, value))
        nd, ns = query.size(-2), key.size(-2)
        w = query @ key.transpose(-1, -2) / math.sqrt(value.size(-1))
        b = torch.ones(ns, ns, dtype=torch.bool).tril()[ns - nd : ns, :ns]
        w = w.masked_fill(~b, -1e9)
        a = (F.softmax(w, dim=-1) @ value).transpose(1, 2).reshape(x.shape)
        return self.c_proj(a), present
""",
    "Attention",
)
_PAST_CAT = "            key = torch.cat((past_key, key), dim=-2)\n"

# The cache inside, switched on by an argument, emptied by a method.
BOOK_CACHE = Style(
    "book with a cache",
    """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        future = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", future, persistent=False)
        self.register_buffer("cache_k", None, persistent=False)
        self.register_buffer("cache_v", None, persistent=False)
        self.ptr_current_pos = 0

    def forward(self, x, use_cache=False):
        b, num_tokens, d_in = x.shape
        keys_new = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim)
        values_new = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim)
        if use_cache:
            if self.cache_k is None:
                self.cache_k, self.cache_v = keys_new, values_new
            else:
                self.cache_k = torch.cat([self.cache_k, keys_new], dim=1)
                self.cache_v = torch.cat([self.cache_v, values_new], dim=1)
            keys, values = self.cache_k, self.cache_v
        else:
            keys, values = keys_new, values_new
        keys, queries, values = keys.transpose(1, 2), queries.transpose(1, 2), values.transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        num_tokens_Q, num_tokens_K = queries.shape[-2], keys.shape[-2]
        if use_cache:
            start = self.ptr_current_pos
            mask_bool = self.mask.bool()[start : start + num_tokens_Q, :num_tokens_K]
            self.ptr_current_pos += num_tokens_Q
        else:
            mask_bool = self.mask.bool()[:num_tokens_Q, :num_tokens_K]
        attn_scores = attn_scores.masked_fill(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = (attn_weights @ values).transpose(1, 2)
        return self.out_proj(context_vec.reshape(b, num_tokens, self.d_out))

    def reset_cache(self):
        self.cache_k, self.cache_v = None, None
        self.ptr_current_pos = 0
""",
    "MultiHeadAttention",
)

# Fixed buffers in a module of their own, written at the positions that are passed.
SLOTS = Style(
    "cache of fixed slots",
    """
class KVCache(nn.Module):
    def __init__(self, max_batch_size, max_seq_length, n_heads, head_dim):
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def update(self, input_pos, k_val, v_val):
        k_out, v_out = self.k_cache, self.v_cache
        k_out[:, :, input_pos] = k_val
        v_out[:, :, input_pos] = v_val
        return k_out, v_out


class Attention(nn.Module):
    def __init__(self, dim, n_head, block_size=16):
        super().__init__()
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.kv_cache = None
        self.n_head, self.head_dim, self.dim, self.block_size = n_head, dim // n_head, dim, block_size

    def setup_cache(self, max_batch_size, max_seq_length):
        weight = self.wo.weight
        self.kv_cache = KVCache(max_batch_size, max_seq_length, self.n_head, self.head_dim).to(weight.dtype)

    def forward(self, x, input_pos=None):
        bsz, seqlen, _ = x.shape
        q, k, v = self.wqkv(x).split(self.dim, dim=-1)
        q, k, v = (t.view(bsz, seqlen, self.n_head, self.head_dim).transpose(1, 2) for t in (q, k, v))
        causal = torch.tril(torch.ones(self.block_size, self.block_size, dtype=torch.bool))
        if self.kv_cache is not None:
            k, v = self.kv_cache.update(input_pos, k, v)
            mask = causal[input_pos][:, : k.shape[2]]
        else:
            mask = causal[:seqlen, :seqlen]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(bsz, seqlen, self.dim))
""",
    "Attention",
)

# An object that the caller makes and the module fills.
OBJECT = Style(
    "cache object",
    _ROTATE
    + """

class Cache:
    def __init__(self):
        self.keys, self.values = None, None

    def __len__(self):
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, k, v):
        if self.keys is not None:
            k, v = torch.cat([self.keys, k], 2), torch.cat([self.values, v], 2)
        self.keys, self.values = k, v
        return k, v


class RotaryAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x, cache: Cache | None = None):
        B, T, C = x.shape
        q, k, v = (
            proj(x).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        start = 0 if cache is None else len(cache)
        cos, sin = precompute(self.head_dim, start + T)
        q = apply_rotary(q, cos[start:], sin[start:])
        k = apply_rotary(k, cos[start:], sin[start:])
        if cache is not None:
            k, v = cache.update(k, v)
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, C))
""",
    "RotaryAttention",
)
_OBJECT_ROTATE = """\
        q = apply_rotary(q, cos[start:], sin[start:])
        k = apply_rotary(k, cos[start:], sin[start:])
        if cache is not None:
            k, v = cache.update(k, v)
"""

# A second method for one token at a time.
STREAM = Style(
    "step method",
    """
class StreamingAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.reset()

    def reset(self):
        self.past_keys, self.past_values = [], []

    def heads(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def step(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        self.past_keys.append(k)
        self.past_values.append(v)
        k, v = torch.cat(self.past_keys, 2), torch.cat(self.past_values, 2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))
""",
    "StreamingAttention",
)

# A dictionary that the caller passes and the module fills.
DICT = Style(
    "cache dictionary",
    """
class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, kv_cache=None):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        if kv_cache is not None:
            if "k" in kv_cache:
                k = torch.cat([kv_cache["k"], k], dim=2)
                v = torch.cat([kv_cache["v"], v], dim=2)
            kv_cache["k"], kv_cache["v"] = k, v
        i, j = q.shape[2], k.shape[2]
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        causal_mask = torch.ones((i, j), dtype=torch.bool).triu(j - i + 1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        out = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))
""",
    "CausalAttention",
)

ENTRIES = [
    LLAMA.right(),
    # The tables are read from 0 in every call.
    LLAMA.wrong(
        "positions restart",
        ("self.cos[start_pos : start_pos + seqlen, None]", "self.cos[:seqlen, None]"),
        ("self.sin[start_pos : start_pos + seqlen, None]", "self.sin[:seqlen, None]"),
        mistakes=("positions-restart",),
    ),
    LLAMA.wrong(
        "positions one behind",
        (
            "        cos = self.cos[start_pos",
            "        first = max(start_pos - 1, 0)\n        cos = self.cos[first",
        ),
        (
            "start_pos + seqlen, None]\n        sin = self.sin[start_pos : start_pos + seqlen, None]",
            "first + seqlen, None]\n        sin = self.sin[first : first + seqlen, None]",
        ),
        mistakes=("position-off-by-one",),
    ),
    # zeros(seqlen, start_pos) is on the wrong side: the new tokens' columns are the first ones.
    LLAMA.wrong(
        # The future is hidden among the cached keys, and the new keys are hidden altogether.
        "mask on the wrong side",
        (
            "torch.hstack([torch.zeros(seqlen, start_pos), mask])",
            'torch.hstack([mask, torch.full((seqlen, start_pos), float("-inf"))])',
        ),
        mistakes=("top-left-causal",),
    ),
    LLAMA.wrong(
        "written to slot 0",
        ("self.cache_k[:bsz, start_pos : start_pos + seqlen]", "self.cache_k[:bsz, :seqlen]"),
        ("self.cache_v[:bsz, start_pos : start_pos + seqlen]", "self.cache_v[:bsz, :seqlen]"),
        mistakes=("cache-overwritten",),
    ),
    LLAMA.wrong(
        "cache never read",
        ("self.cache_k[:bsz, :start_pos], xk], 1)", "self.cache_k[:bsz, :0], xk], 1)"),
        ("self.cache_v[:bsz, :start_pos], xv], 1)", "self.cache_v[:bsz, :0], xv], 1)"),
        ("torch.hstack([torch.zeros(seqlen, start_pos), mask])", "mask"),
        mistakes=("cache-ignored",),
    ),
    # One slot more than was written: a key of zeros, or of an earlier text.
    LLAMA.wrong(
        "one slot too many",
        (
            "self.cache_k[:bsz, :start_pos], xk], 1)",
            "self.cache_k[:bsz, :start_pos], xk, self.cache_k[:bsz, -1:][:, : start_pos > 0]], 1)",
        ),
        (
            "self.cache_v[:bsz, :start_pos], xv], 1)",
            "self.cache_v[:bsz, :start_pos], xv, self.cache_v[:bsz, -1:][:, : start_pos > 0]], 1)",
        ),
        (
            "torch.hstack([torch.zeros(seqlen, start_pos), mask])",
            "torch.hstack([torch.zeros(seqlen, start_pos), mask, torch.zeros(seqlen, int(start_pos > 0))])",
        ),
        mistakes=("empty-slot-read",),
    ),
    LLAMA.wrong(
        "one slot too few",
        ("self.cache_k[:bsz, :start_pos], xk], 1)", "self.cache_k[:bsz, 1:start_pos], xk], 1)"),
        ("self.cache_v[:bsz, :start_pos], xv], 1)", "self.cache_v[:bsz, 1:start_pos], xv], 1)"),
        ("torch.zeros(seqlen, start_pos), mask", "torch.zeros(seqlen, max(start_pos - 1, 0)), mask"),
        mistakes=("cached-key-lost",),
    ),
    # Keys are rotated when they are written and again when they are read.
    LLAMA.wrong(
        "keys rotated again when read",
        (
            "        keys, values = repeat_kv(keys",
            "        if start_pos > 0:\n"
            "            keys = apply_rotary(keys, self.cos[: start_pos + seqlen, None], self.sin[: start_pos + seqlen, None])\n"
            "        keys, values = repeat_kv(keys",
        ),
        mistakes=("keys-rotated-twice",),
    ),
    LLAMA.wrong(
        "values rotated",
        (
            "        self.cache_k[:bsz, start",
            "        xv = apply_rotary(xv, cos, sin)\n        self.cache_k[:bsz, start",
        ),
        mistakes=("values-rotated",),
    ),
    LLAMA.wrong(
        "keys are not rotated",
        (
            "xq, xk = apply_rotary(xq, cos, sin), apply_rotary(xk, cos, sin)",
            "xq = apply_rotary(xq, cos, sin)",
        ),
        mistakes=("one-side-rotated",),
    ),
    LLAMA.wrong(
        "groups tiled",
        ("x.repeat_interleave(times, dim=2)", "x.repeat(1, 1, times, 1)"),
        mistakes=("grouped-heads-tiled",),
    ),
    PAST.right(),
    PAST.wrong("top-left mask", ("[ns - nd : ns, :ns]", "[:nd, :ns]"), mistakes=("top-left-causal",)),
    PAST.wrong(
        "past values lost",
        (
            "            value = torch.cat((past_value, value), dim=-2)\n",
            "            value = torch.cat((past_key, value), dim=-2)\n",
        ),
        mistakes=("cache-roles-swapped",),
    ),
    PAST.wrong(
        "past after the new",
        (_PAST_CAT, "            key = torch.cat((key, past_key), dim=-2)\n"),
        ("torch.cat((past_value, value), dim=-2)", "torch.cat((value, past_value), dim=-2)"),
        mistakes=("cache-in-wrong-order",),
    ),
    # `present` holds only the new keys, so the third piece does not see the first.
    PAST.wrong(
        "only the last piece is kept",
        (
            "        if layer_past is not None:\n",
            "        present = torch.stack((key, value))\n        if layer_past is not None:\n",
        ),
        (
            "            value = torch.cat((past_value, value), dim=-2)\n        present = torch.stack((key, value))\n",
            "            value = torch.cat((past_value, value), dim=-2)\n",
        ),
        mistakes=("cache-overwritten",),
    ),
    PAST.wrong(
        "past ignored",
        ("if layer_past is not None:", "if layer_past is not None and False:"),
        mistakes=("cache-ignored",),
    ),
    PAST.wrong(
        "new tokens do not see each other's past",
        (
            "b = torch.ones(ns, ns, dtype=torch.bool).tril()[ns - nd : ns, :ns]",
            "b = torch.ones(nd, ns, dtype=torch.bool) if ns > nd else torch.ones(nd, ns, dtype=torch.bool).tril()",
        ),
        mistakes=("square-mask-sliced-by-columns",),
    ),
    BOOK_CACHE.right(),
    BOOK_CACHE.wrong(
        "reset forgets nothing",
        ("        self.cache_k, self.cache_v = None, None\n        self.ptr", "        self.ptr"),
        mistakes=("stale-cache",),
    ),
    BOOK_CACHE.wrong(
        "pointer never moves",
        ("            self.ptr_current_pos += num_tokens_Q\n", ""),
        mistakes=("top-left-causal",),
    ),
    BOOK_CACHE.wrong(
        "pointer moves first",
        (
            "            start = self.ptr_current_pos\n",
            "            self.ptr_current_pos += num_tokens_Q\n            start = self.ptr_current_pos\n",
        ),
        ("            self.ptr_current_pos += num_tokens_Q\n        else", "        else"),
        mistakes=("square-mask-sliced-by-columns",),
    ),
    BOOK_CACHE.wrong(
        "cache replaced",
        ("self.cache_k = torch.cat([self.cache_k, keys_new], dim=1)", "self.cache_k = keys_new"),
        ("self.cache_v = torch.cat([self.cache_v, values_new], dim=1)", "self.cache_v = values_new"),
        ("            start = self.ptr_current_pos\n", "            start = 0\n"),
        mistakes=("cache-ignored",),
    ),
    SLOTS.right(),
    SLOTS.wrong(
        "written one slot on",
        ("k_out[:, :, input_pos] = k_val", "k_out[:, :, input_pos + 1] = k_val"),
        ("v_out[:, :, input_pos] = v_val", "v_out[:, :, input_pos + 1] = v_val"),
        mistakes=("cache-slot-off-by-one",),
    ),
    SLOTS.wrong(
        "values are not cached",
        ("        v_out[:, :, input_pos] = v_val\n", ""),
        mistakes=("cache-half-written",),
    ),
    SLOTS.wrong(
        "every slot visible",
        ("mask = causal[input_pos][:, : k.shape[2]]", "mask = None"),
        mistakes=("empty-slot-read",),
    ),
    OBJECT.right(),
    OBJECT.wrong(
        "positions restart",
        ("start = 0 if cache is None else len(cache)", "start = 0"),
        mistakes=("positions-restart",),
    ),
    OBJECT.wrong(
        "positions one ahead",
        ("else len(cache)\n", "else len(cache) + (len(cache) > 0)\n"),
        mistakes=("position-off-by-one",),
    ),
    # The keys are cached before the rotation and the whole is rotated from the new tokens' first position.
    OBJECT.wrong(
        "cached keys rotated by the new positions",
        (
            _OBJECT_ROTATE,
            "        q = apply_rotary(q, cos[start:], sin[start:])\n"
            "        if cache is not None:\n"
            "            k, v = cache.update(k, v)\n"
            "        k = apply_rotary(k, cos[: k.shape[2]], sin[: k.shape[2]])\n"
            "        if cache is not None:\n"
            "            cache.keys = k\n",
        ),
        mistakes=("keys-rotated-twice",),
    ),
    OBJECT.wrong(
        "queries rotated from 0, keys by the cache",
        (
            "        q = apply_rotary(q, cos[start:], sin[start:])",
            "        q = apply_rotary(q, cos[:T], sin[:T])",
        ),
        mistakes=("positions-restart",),
    ),
    OBJECT.wrong("is_causal with a cache", ("tril(diagonal=S - T)", "tril()"), mistakes=("top-left-causal",)),
    STREAM.right(),
    STREAM.wrong(
        "the new token does not see itself",
        (
            "        self.past_keys.append(k)\n        self.past_values.append(v)\n        k, v = torch.cat(self.past_keys, 2), torch.cat(self.past_values, 2)\n",
            "        new = (k, v)\n        if self.past_keys:\n            k, v = torch.cat(self.past_keys, 2), torch.cat(self.past_values, 2)\n"
            "        self.past_keys.append(new[0])\n        self.past_values.append(new[1])\n",
        ),
        mistakes=("new-token-unseen",),
    ),
    STREAM.wrong(
        "queries cached for keys",
        ("self.past_keys.append(k)", "self.past_keys.append(q)"),
        mistakes=("cache-roles-swapped",),
    ),
    STREAM.wrong(
        "is_causal in a step",
        (
            "y = F.scaled_dot_product_attention(q, k, v)\n",
            "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n",
        ),
        mistakes=("top-left-causal",),
    ),
    STREAM.wrong(
        "reset keeps the values",
        (
            "self.past_keys, self.past_values = [], []",
            "self.past_keys, self.past_values = getattr(self, 'past_keys', []), getattr(self, 'past_values', [])",
        ),
        mistakes=("stale-cache",),
    ),
    DICT.right(),
    DICT.wrong("top-left", ("triu(j - i + 1)", "triu(1)"), mistakes=("top-left-causal",)),
    DICT.wrong(
        "cached in front",
        ('torch.cat([kv_cache["k"], k], dim=2)', 'torch.cat([k, kv_cache["k"]], dim=2)'),
        ('torch.cat([kv_cache["v"], v], dim=2)', 'torch.cat([v, kv_cache["v"]], dim=2)'),
        mistakes=("cache-in-wrong-order",),
    ),
    DICT.wrong(
        "cache only of the new",
        (
            '            kv_cache["k"], kv_cache["v"] = k, v\n',
            '            kv_cache["k"], kv_cache["v"] = k[:, :, -x.shape[1] :], v[:, :, -x.shape[1] :]\n',
        ),
        mistakes=("cache-overwritten",),
    ),
]
