"""Lessons 6 to 12 written otherwise than the solutions are: einsum, loops over heads, names of one's own."""

from __future__ import annotations

import pytest

from tests.learn.hints import check_that_hints_lead_to_the_solution
from tests.learn.in_process import judge_form, with_form
from tests.sampling import share

EINSUM = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, d_out, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_q = nn.Linear(d_model, d_out, bias=False)
        self.W_k = nn.Linear(d_model, d_out, bias=False)
        self.W_v = nn.Linear(d_model, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.attention(x)[0]

    def attention(self, x):
        B, T, _ = x.shape
        H, D = self.num_heads, self.head_dim
        queries = self.W_q(x).reshape(B, T, H, D)
        keys = self.W_k(x).reshape(B, T, H, D)
        values = self.W_v(x).reshape(B, T, H, D)
        logits = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / D**0.5
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        logits = logits.masked_fill(future, float("-inf"))
        probs = self.dropout(logits.softmax(dim=-1))
        y = torch.einsum("bhqk,bkhd->bqhd", probs, values)
        return y.reshape(B, T, H * D), probs
"""
LOOP_OVER_HEADS = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, d_out, num_heads, dropout=0.1):
        super().__init__()
        self.H = num_heads
        self.D = d_out // num_heads
        self.W_q = nn.Linear(d_model, d_out, bias=False)
        self.W_k = nn.Linear(d_model, d_out, bias=False)
        self.W_v = nn.Linear(d_model, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.attention(x)[0]

    def attention(self, x):
        T = x.shape[-2]
        Q, K, V = self.W_q(x), self.W_k(x), self.W_v(x)
        outs, maps = [], []
        for h in range(self.H):
            part = slice(h * self.D, (h + 1) * self.D)
            s = Q[..., part] @ K[..., part].mT / math.sqrt(self.D)
            s = s.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
            w = self.dropout(torch.softmax(s, dim=-1))
            outs.append(w @ V[..., part])
            maps.append(w)
        return torch.cat(outs, dim=-1), torch.stack(maps, dim=-3)
"""
LIST_OF_PROJECTIONS = """
class ProjectedMultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.n, self.d = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out, _ = self.attention(x)
        return out

    def attention(self, x):
        B, T, C = x.shape
        three = self.W_q, self.W_k, self.W_v
        q, k, v = [W(x).view(B, T, self.n, self.d).permute(0, 2, 1, 3) for W in three]
        s = torch.einsum("bhtd,bhsd->bhts", q, k) * self.d**-0.5
        s = s + torch.full((T, T), -torch.inf).triu(1)
        w = self.dropout(s.softmax(-1))
        together = torch.einsum("bhts,bhsd->bthd", w, v).reshape(B, T, C)
        return self.W_o(together), w
"""
CROSS_EINSUM = """
class CrossAttention(nn.Module):
    def __init__(self, d_model, d_context=None):
        super().__init__()
        if d_context is None:
            d_context = d_model
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)
        self.W_v = nn.Linear(d_context, d_model, bias=False)

    def forward(self, x, context):
        queries = self.W_q(x)
        keys = self.W_k(context)
        values = self.W_v(context)
        sims = torch.einsum("btd,bsd->bts", queries, keys) / queries.shape[-1] ** 0.5
        probs = sims.softmax(dim=-1)
        return torch.einsum("bts,bsd->btd", probs, values), probs
"""
DICTIONARY = """
class CachedMultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.h = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q = self.W_q(x).view(B, T, self.h, -1).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.h, -1).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.h, -1).transpose(1, 2)
        past = 0
        if cache is not None:
            old_k, old_v = cache["k"], cache["v"]
            past = old_k.shape[2]
            k = torch.cat((old_k, k), 2)
            v = torch.cat((old_v, v), 2)
        new_cache = {"k": k, "v": v}
        i = torch.arange(past, past + T)[:, None]
        j = torch.arange(past + T)
        s = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        s = s.masked_fill(j > i, -torch.inf)
        w = self.dropout(s.softmax(-1))
        y = (w @ v).transpose(1, 2).reshape(B, T, C)
        return self.W_o(y), new_cache
"""
BLOCK_IN_STEPS = """
class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.mlp_norm = nn.LayerNorm(d_model)
        hidden = 4 * d_model
        self.mlp = nn.Sequential(nn.Linear(d_model, hidden), nn.GELU(), nn.Linear(hidden, d_model))

    def forward(self, x):
        a = self.attention(self.attention_norm(x))
        h = x + a
        b = self.mlp(self.mlp_norm(h))
        return h + b
"""
LOOP_OVER_PLACES = """
def next_token_loss(logits, ids):
    logp = torch.log_softmax(logits, dim=-1)
    losses = []
    for b in range(len(ids)):
        for t in range(ids.shape[1] - 1):
            losses.append(-logp[b, t, ids[b, t + 1]])
    return torch.stack(losses).mean()
"""
RESHAPED = """
def next_token_loss(logits, ids):
    B, T, V = logits.shape
    return F.cross_entropy(logits[:, : T - 1].reshape(-1, V), ids[:, 1:].reshape(-1))
"""
HALVES_SWAPPED = """
def rotate(x):
    T, D = x.shape[-2:]
    half = D // 2
    theta = torch.tensor([10000 ** (-2 * i / D) for i in range(half)])
    angle = torch.outer(torch.arange(T).float(), theta)
    angle = torch.cat([angle, angle], dim=-1)
    swapped = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * angle.cos() + swapped * angle.sin()
"""
EINSUM_OF_A_MODEL = """
class TrainedAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        H, D = self.num_heads, self.head_dim
        Q = rotate(self.W_q(x).view(B, T, H, D).transpose(1, 2))
        K = rotate(self.W_k(x).view(B, T, H, D).transpose(1, 2))
        V = self.W_v(x).view(B, T, H, D).transpose(1, 2)
        S = torch.einsum("bhtd,bhsd->bhts", Q, K) / D**0.5
        A = S.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf).softmax(-1)
        O = torch.einsum("bhts,bhsd->bthd", A, V).reshape(B, T, C)
        return self.W_o(O), A
"""
ROWS_OF_QKV = """
def take_weights(mine, attention):
    d = mine.W_q.weight.shape[0]
    big = attention.qkv.weight.detach()
    for i, name in enumerate(["W_q", "W_k", "W_v"]):
        getattr(mine, name).weight.data = big[i * d : (i + 1) * d].clone()
    mine.W_o.weight.data = attention.out.weight.detach().clone()
"""
DICTIONARY_OF_INPUTS = """
def layer_input(model, ids, layer):
    caught = {}

    def remember(module, args):
        caught["x"] = args[0].detach()

    handle = model.blocks[layer].attention.register_forward_pre_hook(remember)
    model(ids)
    handle.remove()
    return caught["x"]
"""

# By lesson and form: what is replaced in it, by what, and a part of the answer: its name, message or hint.
MISTAKES = {
    (6, EINSUM): (
        ("H * D), probs", "H * D), logits", "do not sum to 1"),
        ("bhqk,bkhd->bqhd", "bhqk,bqhd->bqhd", "every token gets its own value"),
        ("y.reshape(B, T, H * D)", "y.sum(2)", "none of them added"),
        ("H * D), probs", "H * D), probs.mean(1)", "a map for each head"),
        (".reshape(B, T, H, D)", ".reshape(B, T, D, H).mT", ".view(B, T, H, head_dim) splits"),
        ("D**0.5", "H**0.5", "constant-scale"),
    ),
    (6, LOOP_OVER_HEADS): (
        ("dim=-3", "dim=0", "a map for each head"),
        ("V[..., part]", "V[..., : self.D]", "takes the values of head 0"),
        ("K[..., part]", "K[..., : self.D]", "takes the keys of head 0"),
        ("Q[..., part]", "Q[..., : self.D]", "takes the queries of head 0"),
        ("torch.cat(outs, dim=-1)", "sum(outs)", "none of them added"),
        ("slice(h * self.D, (h + 1) * self.D)", "slice(h, None, self.H)", "heads-interleaved"),
    ),
    (7, LIST_OF_PROJECTIONS): (
        ("self.W_o(together), w", "together, w", "output-projection-skipped"),
        ("self.W_o(together)", "together @ self.W_o.weight", "call it: self.W_o(heads)"),
        ("self.W_o(together)", "x + self.W_o(together)", "belongs to the block"),
        ("together), w", "together), s", "do not sum to 1"),
    ),
    (7, CROSS_EINSUM): (
        ("values), probs", "values), sims", "do not sum to 1"),
        ("self.W_v(context)", "self.W_v(x)", "context-ignored"),
    ),
    (9, DICTIONARY): (
        ("(old_k, k), 2", "(k, old_k), 2", "the keys in the cache are not those"),
        ("past = old_k.shape[2]", "past = 1", "mask is (T, S)"),
        ("torch.arange(past, past + T)", "torch.arange(T)", "top-left-causal"),
    ),
    (10, BLOCK_IN_STEPS): (
        ("return h + b", "return x + b", "what attention has added is lost"),
        ("return h + b", "return x + a + x + b", "is added twice"),
        ("return h + b", "return self.mlp_norm(h + b)", "The stream itself is normalised"),
        ("h = x + a", "h = self.attention_norm(x) + a", "The stream itself is normalised"),
        ("self.mlp_norm(h)", "self.attention_norm(h)", "`mlp_norm` is never used"),
        ("self.attention(self.attention_norm(x))", "self.attention_norm(self.attention(x))", "norm-missing"),
        ("nn.Linear(hidden, d_model))", "nn.Linear(hidden, d_model), nn.GELU())", "ends with its activation"),
        ("self.mlp =", "self.ffn =", "self.mlp = nn.Sequential"),
    ),
    (10, LOOP_OVER_PLACES): (
        ("-logp", "logp", "the sign is lost"),
        (".mean()", ".sum()", "the loss is their mean"),
        ("torch.stack(losses).mean()", "sum(losses) / ids.numel()", "divided by all places"),
        ("torch.stack(losses).mean()", "torch.stack(losses)", ".mean()"),
        ("dim=-1", "dim=1", "along a wrong axis"),
        ("torch.log_softmax", "torch.softmax", "without their logarithm"),
        ("-logp[", "-logits[", "the logits themselves"),
        ("t + 1]]", "t - 1]]", "targets-shifted-back"),
        ("ids.shape[1] - 1", "len(ids) - 1", "the number of texts"),
    ),
    (10, RESHAPED): (
        (".reshape(-1, V), ids[:, 1:].reshape(-1)", ", ids[:, 1:]", "takes rows of logits"),
        ("logits[:, : T - 1]", "logits[:, : T - 1].mT", "torn apart"),
        (
            "logits[:, : T - 1].reshape(-1, V), ids[:, 1:]",
            "logits.reshape(-1, V), ids.roll(-1, 1)",
            ".roll goes",
        ),
    ),
    (12, HALVES_SWAPPED): (
        ("[-x[..., half:], x[..., :half]]", "[x[..., half:], -x[..., :half]]", "turns the other way"),
        ("-2 * i / D", "-i / D", "half what they should be"),
        ("-2 * i / D", "2 * i / D", "the minus of the exponent"),
        ("-2 * i / D", "-2 * i / half", "twice what they should be"),
        ("10000 **", "1000 **", "the first pair turns rightly"),
        ("torch.arange(T)", "torch.arange(1, T + 1)", "positions begin at 1"),
        ("x * angle.cos()", "x * angle.sin()", "the first token is changed"),
    ),
    (12, EINSUM_OF_A_MODEL): (
        (
            "rotate(self.W_q(x).view(B, T, H, D).transpose(1, 2))",
            "rotate(self.W_q(x)).view(B, T, H, D).transpose(1, 2)",
            "all heads in one",
        ),
        (
            "rotate(self.W_q(x).view(B, T, H, D).transpose(1, 2))",
            "rotate(self.W_q(x).view(B, T, H, D)).transpose(1, 2)",
            "the heads where the tokens should be",
        ),
        ("triu(1)", "triu()", "missing-diagonal"),
    ),
    (12, ROWS_OF_QKV): (
        ("    mine.W_o.weight.data = attention.out.weight.detach().clone()\n", "", "W_o does not hold"),
        ("out.weight.detach()", "out.weight.detach().mT", "they are transposed"),
        ("big[i * d : (i + 1) * d]", "big[i::3]", "every third row"),
        ("big[i * d : (i + 1) * d]", "big[:d]", "those of the queries"),
    ),
    (12, DICTIONARY_OF_INPUTS): (
        ("blocks[layer].attention", "blocks[0].attention", "what layer 0 got"),
        ("    handle.remove()\n", "", "the hook is still there"),
        ("register_forward_pre_hook", "register_forward_hook", "register_forward_pre_hook calls"),
        ("    model(ids)\n", "", "nothing was kept"),
    ),
}
CASES = [(number, form, swap, said) for (number, form), rows in MISTAKES.items() for *swap, said in rows]


@pytest.mark.parametrize(("number", "form"), share(MISTAKES, 8))
def test_another_form_is_right(number: int, form: str) -> None:
    outcome = judge_form(number, form)
    assert outcome.status == "done", outcome


@pytest.mark.parametrize(("number", "form", "swap", "said"), share(CASES, 16))
def test_a_mistake_in_another_form_is_explained(number: int, form: str, swap: list[str], said: str) -> None:
    assert swap[0] in form
    lesson, task, program = with_form(number, form.replace(*swap))
    right = judge_form(number, form)
    check_that_hints_lead_to_the_solution(lesson, task, program, said, right=right)
