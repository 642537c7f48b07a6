"""Solutions in a form of their own with one mistake or two: the first of them is named."""

from __future__ import annotations

import pytest

from tests.learn.in_process import judge_form, judge_one, with_form
from tests.sampling import share

HEADS_BY_PERMUTE = """
class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, d_out, num_heads, dropout=0.1):
        super().__init__()
        self.n_heads = num_heads
        self.size = d_out // num_heads
        self.W_q = nn.Linear(d_model, d_out, bias=False)
        self.W_k = nn.Linear(d_model, d_out, bias=False)
        self.W_v = nn.Linear(d_model, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out, weights = self.attention(x)
        return out

    def attention(self, x):
        batch, length, width = x.shape
        shape = batch, length, self.n_heads, self.size
        queries = self.W_q(x).reshape(shape).permute(0, 2, 1, 3)
        keys = self.W_k(x).reshape(shape).permute(0, 2, 1, 3)
        values = self.W_v(x).reshape(shape).permute(0, 2, 1, 3)
        logits = torch.matmul(queries, keys.permute(0, 1, 3, 2)) / self.size**0.5
        mask = torch.triu(torch.ones(length, length), diagonal=1).bool()
        probs = nn.functional.softmax(logits.masked_fill(mask, float("-inf")), dim=3)
        context = torch.matmul(self.dropout(probs), values)
        return context.permute(0, 2, 1, 3).reshape(batch, length, -1), probs
"""
CACHE_BEFORE_SPLIT = """
class CachedMultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        keys, values, offset = self.W_k(x), self.W_v(x), 0
        if cache is not None:
            offset = cache[0].shape[1]
            keys = torch.cat([cache[0], keys], dim=1)
            values = torch.cat([cache[1], values], dim=1)
        S, D = offset + T, C // self.num_heads
        q = self.W_q(x).view(B, T, self.num_heads, D)
        k, v = (part.view(B, S, self.num_heads, D) for part in (keys, values))
        att = torch.einsum("bthd,bshd->bhts", q, k) / D**0.5
        mask = torch.zeros(T, S, dtype=torch.bool)
        for t in range(T):
            mask[t, offset + t + 1 :] = True
        att = self.drop(att.masked_fill(mask, -torch.inf).softmax(dim=-1))
        y = torch.einsum("bhts,bshd->bthd", att, v).reshape(B, T, C)
        return self.W_o(y), (keys, values)
"""
INDUCTION_BY_LOOPS = """
def induction_score(A, ids):
    scores = []
    for q in range(len(ids)):
        total, found = 0.0, False
        for k in range(1, q):
            if ids[k - 1] == ids[q]:
                total = total + A[q, k]
                found = True
        if found:
            scores.append(total)
    return sum(scores) / len(scores)
"""
PAIR_BY_PAIR = """
def rotate(x):
    T, D = x.shape[-2], x.shape[-1]
    out = torch.zeros_like(x)
    for i in range(D // 2):
        angle = torch.arange(T) * 10000 ** (-2 * i / D)
        a, b = x[..., i], x[..., i + D // 2]
        out[..., i] = a * torch.cos(angle) - b * torch.sin(angle)
        out[..., i + D // 2] = a * torch.sin(angle) + b * torch.cos(angle)
    return out
"""
BLOCKS_OF_THEIR_OWN = """
def flash_attention(q, k, v, block_size):
    m = l = acc = None
    for kb, vb in zip(k.split(block_size, dim=-2), v.split(block_size, dim=-2)):
        s = torch.einsum("...td,...sd->...ts", q, kb) / math.sqrt(q.size(-1))
        m_b = s.max(dim=-1).values
        p = torch.exp(s - m_b.unsqueeze(-1))
        l_b, o_b = p.sum(dim=-1), p @ vb
        if m is None:
            m, l, acc = m_b, l_b, o_b
            continue
        m_new = torch.maximum(m, m_b)
        old, new = torch.exp(m - m_new), torch.exp(m_b - m_new)
        l = l * old + l_b * new
        acc = acc * old.unsqueeze(-1) + o_b * new.unsqueeze(-1)
        m = m_new
    return acc / l.unsqueeze(-1), m + l.log()
"""
BOUNDS_BY_SIGN = """
def block_bounds(q, k, block_size):
    out = torch.empty(len(q), len(k) // block_size)
    for b in range(out.shape[1]):
        keys = k[b * block_size : (b + 1) * block_size]
        lo, hi = torch.min(keys, dim=0)[0], torch.max(keys, dim=0)[0]
        out[:, b] = (q.clamp(min=0) @ hi + q.clamp(max=0) @ lo) / math.sqrt(q.shape[1])
    return out
"""
ROWS_OF_A_MASK = """
def streaming_mask(T, S, window, sinks):
    mask = torch.zeros(T, S, dtype=torch.bool)
    for row in range(T):
        position = S - T + row
        mask[row, max(0, position - window + 1) : position + 1] = True
        mask[row, : min(sinks, position + 1)] = True
    return mask
"""
SCALE, MERGED = " / self.size**0.5", "context.permute(0, 2, 1, 3).reshape"
SUMS, MIXES = "l * old + l_b * new", "acc * old.unsqueeze(-1) + o_b * new.unsqueeze(-1)"
SINKS = "        mask[row, : min(sinks, position + 1)] = True\n"
BOUND = "q.clamp(min=0) @ hi + q.clamp(max=0) @ lo"
# By lesson and form: pairs of what is replaced and by what, and a part of what is said.
MISTAKES = {
    (6, HEADS_BY_PERMUTE): (
        ([("probs), values", "probs), keys")], "The values are made by W_k"),
        ([("d_out // num_heads", "d_model // num_heads")], "head_dim = d_out // num_heads"),
        ([("(mask, float", "(~mask, float"), ("dim=3", "dim=1")], "inverted-mask"),
        ([(SCALE, ""), (MERGED, "context.reshape")], "no-scale"),
    ),
    (9, CACHE_BEFORE_SPLIT): (
        ([("offset + t + 1 :", "offset + 1 :")], "sees one key only"),
        ([("offset + t + 1 :", "t + 1 :"), ("D**0.5", "C**0.5")], "scale-from-model-width"),
    ),
    (11, INDUCTION_BY_LOOPS): (
        ([("ids[k - 1] == ids[q]", "ids[k] == ids[q]")], "copy-itself-counted"),
        ([("A[q, k]", "A[q, k - 1]")], "copy-itself-counted"),
        ([("total = total + A", "total = A")], "only the last key"),
        ([("ids[k - 1] == ids[q]", "ids[k] == ids[q]"), ("len(scores)", "len(ids)")], "copy-itself-counted"),
    ),
    (12, PAIR_BY_PAIR): (
        ([("zeros_like(x)", "zeros_like(x)\n    out = x")], "input-overwritten"),
        ([("return out", "return x")], "nothing is turned"),
        ([("cos(angle) - b", "cos(angle) + b"), ("10000", "1000")], "the base of the frequencies"),
    ),
    (14, ROWS_OF_A_MASK): (
        ([("max(0, position - window + 1)", "position - window + 1")], "begins before the text"),
        ([("position - window + 1", "position - window"), (SINKS, "")], "window-off-by-one"),
    ),
    (15, BLOCKS_OF_THEIR_OWN): (
        ([(SUMS, "l + l_b"), (MIXES, "acc + o_b")], "its own largest score"),
        ([("        m = m_new\n", "")], "after the first block"),
        ([(" / math.sqrt(q.size(-1))", ""), (SUMS, "l * old + l_b")], "no-scale"),
    ),
    (17, BOUNDS_BY_SIGN): (
        ([("q.shape[1])", "block_size)")], "the number of keys in a block"),
        ([(BOUND, "q @ hi"), (" / math.sqrt(q.shape[1])", "")], "bound-of-one-sign"),
        ([(BOUND, "q @ keys.mean(0)"), ("math.sqrt(q.shape[1])", "q.shape[1]")], "block-judged-by-mean"),
    ),
}
CASES = [(number, form, swaps, said) for (number, form), rows in MISTAKES.items() for swaps, said in rows]


@pytest.mark.parametrize(("number", "form"), share(MISTAKES, 4))
def test_the_form_is_right(number: int, form: str) -> None:
    outcome = judge_form(number, form)
    assert outcome.status == "done", outcome


@pytest.mark.parametrize(("number", "form", "swaps", "said"), share(CASES, 3))
def test_the_first_mistake_is_named(number: int, form: str, swaps: list[tuple[str, str]], said: str) -> None:
    wrong = form
    for right, other in swaps:
        assert right in wrong
        wrong = wrong.replace(right, other)
    outcome = judge_one(*with_form(number, wrong))
    assert outcome.status == "wrong", outcome
    assert said in f"{outcome.mistake} {outcome.message} {outcome.hint}", outcome
