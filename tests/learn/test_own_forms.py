"""Lessons written otherwise than the solution is: whole matrices, loops, einsum, names of one's own.

A wrong way that the lessons know is planted in the solution by `test_hints`; here a form has one of these at
most, and what only its own lines can get wrong.
"""

import pytest

from tests.learn.hints import check_that_hints_lead_to_the_solution
from tests.learn.in_process import judge_form, with_form
from tests.sampling import share

LOOP_OVER_TOKENS = """
def simplified_self_attention(x):
    scores = torch.stack([torch.stack([a @ b for b in x]) for a in x])
    weights = torch.softmax(scores, dim=-1)
    return weights @ x, weights
"""
ONE_LINE = """
class UnscaledSelfAttention(nn.Module):
    def __init__(self, d_model, head_dim):
        super().__init__()
        self.W_q = nn.Linear(d_model, head_dim, bias=False)
        self.W_k = nn.Linear(d_model, head_dim, bias=False)
        self.W_v = nn.Linear(d_model, head_dim, bias=False)

    def forward(self, x):
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        weights = torch.softmax(q @ k.mT, dim=-1)
        return weights @ v, weights
"""
HEADS_BESIDE_EACH_OTHER = """
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
"""
EINSUM = f"""{HEADS_BESIDE_EACH_OTHER}\
        B, T, _ = x.shape
        H, D = self.H, self.D
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
MODULE_WITH_A_LOOP = f"""{HEADS_BESIDE_EACH_OTHER}\
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
PROJECTED = """(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.n, self.d = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
"""
LIST_OF_PROJECTIONS = f"""
class ProjectedMultiHeadAttention{PROJECTED}
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
DICTIONARY = f"""
class CachedMultiHeadAttention{PROJECTED}
    def forward(self, x, cache=None):
        B, T, C = x.shape
        q = self.W_q(x).view(B, T, self.n, -1).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.n, -1).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.n, -1).transpose(1, 2)
        past = 0
        if cache is not None:
            old_k, old_v = cache["k"], cache["v"]
            past = old_k.shape[2]
            k = torch.cat((old_k, k), 2)
            v = torch.cat((old_v, v), 2)
        new_cache = {{"k": k, "v": v}}
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
LOOP_OVER_HEADS = """
def grouped_attention(q, k, v):
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    out = torch.zeros(B, H, T, D)
    for h in range(H):
        g = h // (H // G)
        scores = q[:, h] @ k[:, g].mT / math.sqrt(D)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        out[:, h] = weights @ v[:, g]
    return out
"""
EINSUM_OVER_HEADS = """
def grouped_attention(q, k, v):
    B, H, T, D = q.shape
    G, S = k.shape[1:3]
    q = q.reshape(B, G, H // G, T, D)
    scores = torch.einsum("bgrtd,bgsd->bgrts", q, k) / math.sqrt(D)
    visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    return torch.einsum("bgrts,bgse->bgrte", weights, v).reshape(B, H, T, D)
"""
LOOP_OVER_GROUPS = """
def pool_heads(weight, num_heads, kv_heads):
    D, size = len(weight) // num_heads, num_heads // kv_heads
    rows = []
    for g in range(kv_heads):
        heads = [weight[h * D : (h + 1) * D] for h in range(g * size, (g + 1) * size)]
        rows.append(torch.stack(heads).mean(dim=0))
    return torch.cat(rows)
"""
LOOP_OVER_CELLS = """
def streaming_mask(T, S, window, sinks):
    rows = []
    for i in range(S - T, S):
        rows.append([j <= i and (j > i - window or j < sinks) for j in range(S)])
    return torch.tensor(rows)
"""
WHOLE_ROWS = """
def flash_attention(q, k, v, block_size):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    highest = scores.amax(dim=-1, keepdim=True)
    exponentials = torch.exp(scores - highest)
    total = exponentials.sum(dim=-1, keepdim=True)
    return exponentials @ v / total, (highest + torch.log(total)).squeeze(-1)
"""
OWN_BLOCKS = """
def flash_attention(q, k, v, block_size):
    S = k.shape[-2]
    m = torch.full(q.shape[:-1], -torch.inf)
    l = torch.zeros(q.shape[:-1])
    acc = torch.zeros(*q.shape[:-1], v.shape[-1])
    for i in range((S + block_size - 1) // block_size):
        kb = k[..., i * block_size : (i + 1) * block_size, :]
        vb = v[..., i * block_size : (i + 1) * block_size, :]
        s = q @ kb.mT / math.sqrt(q.shape[-1])
        m_new = torch.maximum(m, s.amax(dim=-1))
        p = torch.exp(s - m_new[..., None])
        a = torch.exp(m - m_new)
        l = l * a + p.sum(dim=-1)
        acc = acc * a[..., None] + p @ vb
        m = m_new
    return acc / l[..., None], m + torch.log(l)
"""
SOFTMAX_OF_TWO = """
def merge(out_a, lse_a, out_b, lse_b):
    both = torch.stack([lse_a, lse_b])
    a, b = torch.softmax(both, dim=0)[..., None]
    return a * out_a + b * out_b, torch.logsumexp(both, dim=0)
"""
WHOLE_MATRIX = """
def linear_attention(q, k, v):
    weights = torch.tril(feature(q) @ feature(k).mT)
    return weights @ v / weights.sum(dim=-1, keepdim=True)
"""
RUNNING_SUMS = """
def linear_attention(q, k, v):
    q, k = feature(q), feature(k)
    states = torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)
    totals = torch.cumsum(k, dim=0)
    return torch.einsum("td,tde->te", q, states) / (q * totals).sum(dim=-1, keepdim=True)
"""
PREALLOCATED = """
def linear_attention(q, k, v):
    q, k = feature(q), feature(k)
    out = torch.zeros_like(v)
    S, z = torch.zeros(q.shape[1], v.shape[1]), torch.zeros(q.shape[1])
    for t in range(len(q)):
        S += k[t][:, None] * v[t][None, :]
        z += k[t]
        out[t] = (q[t] @ S) / (q[t] * z).sum()
    return out
"""
ERASE_AND_WRITE = """
def delta_rule(q, k, v, beta):
    S = torch.zeros(k.shape[-1], v.shape[-1])
    eye = torch.eye(k.shape[-1])
    out = torch.zeros(len(q), v.shape[-1])
    for t in range(len(q)):
        kt = k[t][:, None]
        S = (eye - beta[t] * kt @ kt.mT) @ S + beta[t] * kt @ v[t][None]
        out[t] = q[t] @ S
    return out, S
"""
LOOP_OVER_BLOCKS = """
def block_bounds(q, k, block_size):
    columns = []
    for start in range(0, len(k), block_size):
        keys = k[start : start + block_size]
        low, high = keys.min(dim=0).values, keys.max(dim=0).values
        columns.append(torch.where(q > 0, q * high, q * low).sum(dim=-1))
    return torch.stack(columns, dim=1) / math.sqrt(q.shape[-1])
"""
LOOP_OVER_QUERIES = """
def selected_attention(q, k, v, block_size, count):
    bounds = block_bounds(q, k, block_size)
    outs, lses = [], []
    for i in range(len(q)):
        best = bounds[i].topk(count).indices.tolist()
        keys = [key for b in best for key in range(b * block_size, (b + 1) * block_size)]
        s = k[keys] @ q[i] / math.sqrt(q.shape[-1])
        outs.append(torch.softmax(s, dim=0) @ v[keys])
        lses.append(torch.logsumexp(s, dim=0))
    return torch.stack(outs), torch.stack(lses)
"""
# By lesson and form: what is replaced in it, by what, and a part of the answer: its name, message or hint.
MISTAKES = {
    (1, LOOP_OVER_TOKENS): (
        (
            "torch.stack([a @ b for b in x])",
            "torch.softmax([a @ b for b in x], dim=0)",
            "torch.stack(…) makes",
        ),
        ("torch.softmax(scores, dim=-1)", "torch.nn.Softmax(scores)", "is a module, Softmax"),
        ("a @ b", "math.exp(a @ b)", "`import math`"),
    ),
    (2, ONE_LINE): (
        ("weights @ v", "weights @ x", "a mix of the values"),
        ("q @ k.mT", "q * k", "needs q (…, T, D)"),
        ("nn.Linear(d_model, head_dim, bias=False)", "torch.rand(head_dim, d_model)", "self.W_q = nn.Linear"),
    ),
    (6, EINSUM): (
        ("H * D), probs", "H * D), logits", "do not sum to 1"),
        ("bhqk,bkhd->bqhd", "bhqk,bqhd->bqhd", "every token gets its own value"),
        ("y.reshape(B, T, H * D)", "y.sum(2)", "none of them added"),
        ("H * D), probs", "H * D), probs.mean(1)", "a map for each head"),
        (".reshape(B, T, H, D)", ".reshape(B, T, D, H).mT", ".view(B, T, H, head_dim) splits"),
        ("D**0.5", "H**0.5", "constant-scale"),
    ),
    (6, MODULE_WITH_A_LOOP): (
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
        ("nn.Linear(hidden, d_model))", "nn.Linear(hidden, d_model), nn.GELU())", "ends with its activation"),
        ("self.mlp =", "self.ffn =", "self.mlp = nn.Sequential"),
    ),
    (10, LOOP_OVER_PLACES): (("-logp", "logp", "the sign is lost"),),
    (10, RESHAPED): (
        (".reshape(-1, V), ids[:, 1:].reshape(-1)", ", ids[:, 1:]", "takes rows of logits"),
        ("logits[:, : T - 1]", "logits[:, : T - 1].mT", "torn apart"),
    ),
    (12, HALVES_SWAPPED): (
        ("[-x[..., half:], x[..., :half]]", "[x[..., half:], -x[..., :half]]", "turns the other way"),
        ("10000 **", "1000 **", "the first pair turns rightly"),
        ("x * angle.cos()", "x * angle.sin()", "the first token is changed"),
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
    (13, LOOP_OVER_HEADS): (
        ("h // (H // G)", "h % G", "grouped-heads-tiled"),
        ("weights @ v", "weights * v", "`@` is the product of matrices"),
        ("    return out", "    return out.transpose(1, 2)", "its axes stand in another order"),
        ("    return out", "    return 3 * out", "is 3 times what it should be"),
    ),
    (13, EINSUM_OVER_HEADS): (
        ("q.reshape(B, G, H // G, T, D)", "q.view(B, H // G, G, T, D).mT.mT", "one letter stands for"),
    ),
    (13, LOOP_OVER_GROUPS): (
        ("range(g * size, (g + 1) * size)", "range(g, num_heads, kv_heads)", "stand apart"),
        ("    return torch.cat(rows)", "    weight.zero_()\n    return torch.cat(rows)", "input-overwritten"),
    ),
    (14, LOOP_OVER_CELLS): (("j < sinks", "j <= sinks", "one sink too many"),),
    (15, WHOLE_ROWS): (
        (" / math.sqrt(q.shape[-1])", "", "no-scale"),
        ("exponentials @ v", "exponentials * v", "`@` is the product of matrices"),
    ),
    (15, OWN_BLOCKS): (
        ("(S + block_size - 1) // block_size", "S // block_size", "shorter than block_size"),
        ("(S + block_size - 1) // block_size", "S // block_size + 1", "a block is empty"),
        ("p @ vb", "p * vb", "`@` is the product of matrices"),
    ),
    (15, SOFTMAX_OF_TWO): (("a * out_a + b * out_b", "b * out_a + a * out_b", "the shares are exchanged"),),
    (16, WHOLE_MATRIX): (
        ("torch.tril(feature(q) @ feature(k).mT)", "feature(q) @ feature(k).mT", "no-mask"),
        ("weights @ v", "weights * v", "`@` is the product of matrices"),
        (
            "    return weights",
            "    v = v.clone()\n    v[-1] = 0\n    return weights",
            "all rows but the last",
        ),
    ),
    (16, RUNNING_SUMS): (
        (
            "torch.cumsum(k[:, :, None] * v[:, None, :], dim=0)",
            "k[:, :, None] * v[:, None, :]",
            "overwritten",
        ),
    ),
    (16, PREALLOCATED): (
        ("range(len(q))", "range(1, len(q))", "The loop begins at token 1"),
        ("range(len(q))", "range(len(q) - 1)", "all rows but the last"),
        ("out[t] =", "out[t - 1] =", "belongs in the row after"),
    ),
    (16, ERASE_AND_WRITE): (
        ("eye - beta[t] * kt @ kt.mT", "eye", "old-value-kept"),
        ("    return out, S", "    return out, S.mT", "its axes stand in another order"),
    ),
    (17, LOOP_OVER_BLOCKS): (
        ("len(k), block_size", "len(k) - block_size, block_size", "got (3, 3)"),
        ("start + block_size", "start + block_size - 1", "a block has no keys"),
        ("start + block_size", "start + max(block_size - 1, 1)", "the last key of every block is left out"),
    ),
    (17, LOOP_OVER_QUERIES): (
        ("bounds[i]", "bounds[0]", "the best blocks of the first one"),
        ("torch.stack(outs)", "torch.stack(outs, dim=1)", "its axes stand in another order"),
    ),
}
# Of forms of classes, which the checker judges for a second or more, a run has a share.
FORMS = [form for form in MISTAKES if "class " not in form[1]]
FORMS += share([form for form in MISTAKES if "class " in form[1]], 8)
CASES = [(number, form, swap, said) for (number, form), rows in MISTAKES.items() for *swap, said in rows]


@pytest.mark.parametrize(("number", "form"), FORMS)
def test_another_form_has_the_right_numbers(number, form):
    outcome = judge_form(number, form)
    rightly = ("the numbers are right", "It works on one text")
    assert outcome.status == "done" or outcome.message.startswith(rightly), outcome
    assert not outcome.mistake


@pytest.mark.parametrize(("number", "form", "swap", "said"), share(CASES, 12))
def test_a_mistake_is_known_in_every_form(number, form, swap, said):
    assert swap[0] in form
    lesson, task, program = with_form(number, form.replace(*swap))
    right = judge_form(number, form)
    check_that_hints_lead_to_the_solution(lesson, task, program, said, right=right)


@pytest.mark.parametrize(
    ("swap", "said", "never"),
    [
        # Lesson 13's table speaks of `repeat` in `grouped_attention`; `pool_heads` has no such call.
        (
            ("range(g * size, (g + 1) * size)", "range(g, num_heads, kv_heads)"),
            "grouped-heads-tiled",
            "repeat",
        ),
        (("range(kv_heads)", "range(head_dim)"), "'head_dim' is not defined", "__init__"),  # of a module
    ],
)
def test_no_hint_speaks_of_what_the_code_has_not(swap, said, never):
    outcome = judge_form(13, LOOP_OVER_GROUPS.replace(*swap))
    assert said in f"{outcome.mistake} {outcome.message}"
    assert not any(never in hint for hint in outcome.hints), outcome


@pytest.mark.parametrize(
    "body", ["    return False\n", "    return (attention(x)[0] == attention(x)[0]).all()\n"]
)
def test_no_hint_says_which_answer_to_return(body):
    outcome = judge_form(4, f"\ndef finds_leak(attention, x):\n{body}")
    assert outcome.status == "wrong"
    assert "return True" not in outcome.hint.partition("; line")[2]
