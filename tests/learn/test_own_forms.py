"""Lessons written otherwise than the solution is: whole matrices, loops, names of one's own."""

from __future__ import annotations

import pytest

from tests.learn.hints import check_that_hints_lead_to_the_solution
from tests.learn.in_process import judge_form, with_form
from tests.sampling import share

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
LARGEST_SCORES = """
def block_bounds(q, k, block_size):
    blocks = k.view(-1, block_size, k.shape[-1])
    products = torch.maximum(q[:, None] * blocks.amin(dim=1), q[:, None] * blocks.amax(dim=1))
    return products.sum(dim=-1) / math.sqrt(q.shape[-1])
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
LOOP_OVER_CELLS = """
def streaming_mask(T, S, window, sinks):
    rows = []
    for i in range(S - T, S):
        rows.append([j <= i and (j > i - window or j < sinks) for j in range(S)])
    return torch.tensor(rows)
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
ALL_AT_ONCE = """
def lost_weight(lse_kept, lse):
    return 1 - torch.exp(lse_kept - lse)
"""
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
    (13, LOOP_OVER_HEADS): (
        ("h // (H // G)", "h % G", "grouped-heads-tiled"),
        ("h // (H // G)", "0", "first-group-for-all"),
        ("h // (H // G)", "h // G", "reads key/value head h // (H // G)"),
        ("v[:, g]", "v[:, 0]", "the values of head 0"),
        ("v[:, g]", "v[:, h % G]", "values are of the wrong group"),
        ("k[:, g]", "k[:, h % G]", "keys are of the wrong group"),
        ("k[:, g]", "k[:, 0]", "the keys of head 0"),
        ("tril(S - T)", "tril()", "top-left-causal"),
        ("tril(S - T)", "tril(S - T - 1)", "missing-diagonal"),
        ("math.sqrt(D)", "1", "no-scale"),
        ("weights @ v", "weights * v", "`@` is the product of matrices"),
        ("h // (H // G)", "min((h + 1) * G // H, G - 1)", "one query head too early"),
        ("tril(S - T)", "tril(T - S)", "S and T are exchanged"),
        ("    return out", "    return out.transpose(1, 2)", "its axes stand in another order"),
        ("    return out", "    return 3 * out", "is 3 times what it should be"),
    ),
    (13, EINSUM_OVER_HEADS): (
        ("q.reshape(B, G, H // G, T, D)", "q.view(B, H // G, G, T, D).mT.mT", "one letter stands for"),
    ),
    (13, LOOP_OVER_GROUPS): (
        ("range(g * size, (g + 1) * size)", "range(g, num_heads, kv_heads)", "stand apart"),
        ("range(g * size, (g + 1) * size)", "range(size)", "the mean of the first group"),
        ("torch.stack(heads).mean(dim=0)", "heads[0]", "only the first head"),
        ("torch.stack(heads).mean(dim=0)", "sum(heads)", "not their mean"),
        ("range(g * size, (g + 1) * size)", "range(g, g + size)", "the groups overlap"),
        ("    return torch.cat(rows)", "    weight.zero_()\n    return torch.cat(rows)", "input-overwritten"),
    ),
    (15, WHOLE_ROWS): (
        (" / math.sqrt(q.shape[-1])", "", "no-scale"),
        ("math.sqrt(q.shape[-1])", "q.shape[-1]", "scaled-by-width"),
        ("scores.amax(dim=-1, keepdim=True)", "torch.zeros(1)", "softmax-overflow"),
        ("scores.amax(dim=-1, keepdim=True)", "scores.max()", "a largest score of its own"),
        ("@ v / total", "@ v", "sum-not-divided"),
        ("(highest + torch.log(total))", "torch.log(total)", "has to be added again"),
        ("(highest + torch.log(total))", "total", "without its logarithm"),
        ("(highest + torch.log(total))", "highest", "the largest score alone"),
        ("torch.log(total)", "torch.log2(total)", "lse-base-2"),
        ("exponentials @ v", "exponentials * v", "`@` is the product of matrices"),
    ),
    (15, OWN_BLOCKS): (
        ("(S + block_size - 1) // block_size", "S // block_size", "shorter than block_size"),
        ("(S + block_size - 1) // block_size", "S // block_size + 1", "a block is empty"),
        ("-torch.inf", "0.0", "begins at 0"),
        ("torch.maximum(m, s.amax(dim=-1))", "s.amax(dim=-1)", "of this block alone"),
        ("torch.exp(m - m_new)", "torch.exp(m_new - m)", "Every number is NaN"),
        ("l * a + p", "l + p", "block-not-rescaled"),
        ("acc * a[..., None] +", "acc +", "block-not-rescaled"),
        ("acc / l[..., None]", "acc", "sum-not-divided"),
        ("s - m_new[..., None]", "s", "as if it were"),
        ("p @ vb", "torch.softmax(s, dim=-1) @ vb", "divided by their own sum"),
        ("p.sum(dim=-1)", "p.mean(dim=-1)", "gets the mean of the exponentials"),
        ("p @ vb", "p * vb", "`@` is the product of matrices"),
        ("acc * a[..., None] + p @ vb", "(acc + p @ vb) * a[..., None]", "multiplied by it, too, in `mixed`"),
        (
            "        m = m_new",
            "        acc = acc / l[..., None]\n        m = m_new",
            "divided again after it",
        ),
        ("p @ vb", "p @ vb / l[..., None]", "of the block is divided by the total inside the loop"),
    ),
    (15, SOFTMAX_OF_TWO): (
        ("a * out_a + b * out_b", "b * out_a + a * out_b", "the shares are exchanged"),
        ("a * out_a + b * out_b", "out_a + out_b", "The outputs are added"),
        ("a * out_a + b * out_b", "(out_a + out_b) / 2", "merge-without-lse"),
        ("torch.logsumexp(both, dim=0)", "lse_a + lse_b", "the logarithm of a product"),
        ("torch.logsumexp(both, dim=0)", "both.amax(dim=0)", "the smaller part belongs to the sum"),
        ("torch.logsumexp(both, dim=0)", "torch.log(both.exp().sum(dim=0))", "overflows where lse"),
        (
            "torch.logsumexp(both, dim=0)",
            "both.amax(dim=0) + torch.exp(both - both.amax(dim=0)).sum(dim=0)",
            "its logarithm belongs there",
        ),
        (
            "torch.logsumexp(both, dim=0)",
            "both.amax(dim=0) + torch.log1p(torch.exp(lse_b - both.amax(dim=0)))",
            "part a counts as 1",
        ),
    ),
    (16, WHOLE_MATRIX): (
        ("torch.tril(feature(q) @ feature(k).mT)", "feature(q) @ feature(k).mT", "no-mask"),
        ("torch.tril", "torch.triu", "transposed-mask"),
        (".mT)", ".mT, -1)", "new-token-unseen"),
        (" / weights.sum(dim=-1, keepdim=True)", "", "sum-not-divided"),
        (
            "weights @ v / weights.sum(dim=-1, keepdim=True)",
            "weights / weights.sum(dim=0) @ v",
            "Each column",
        ),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum()", "one sum for all tokens"),
        ("feature(q) @ feature(k).mT", "q @ k.mT", "`feature` is not used"),
        ("feature(q) @ feature(k).mT", "feature(q @ k.mT)", "taken of the score"),
        ("feature(q) @ feature(k).mT", "torch.exp(q @ k.mT)", "the weights of softmax"),
        ("weights @ v", "weights * v", "`@` is the product of matrices"),
        ("feature(q) @ feature(k).mT", "q @ feature(k).mT", "not taken of q"),
        ("feature(q) @ feature(k).mT", "feature(q) @ k.mT", "not taken of k"),
        ("feature(q) @ feature(k).mT", "q.exp() @ k.exp().mT", "another feature"),
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
        ("torch.cumsum(k, dim=0)", "k", "the key of token t alone"),
        ("torch.cumsum(k, dim=0)", "k.sum(dim=0)", "of the whole text"),
        ("torch.cumsum(k, dim=0)", "torch.cumsum(k, dim=0) - k", "lacks the key of token t"),
        ("(q * totals)", "totals", "the sum of the keys alone"),
        ("v[:, None, :], dim=0", "v[:, None, :], dim=1", "of the states runs along the channels"),
        ("v[:, None, :], dim=0", "v[:, None, :], dim=-1", "of the states runs along the channels"),
        ("torch.cumsum(k, dim=0)", "torch.cumsum(k, dim=1)", "of the keys runs along the channels"),
        ("dim=0", "dim=1", "both sums have to run along the tokens"),
        ("dim=0", "dim=-1", "each running sum runs along the channels"),
    ),
    (16, PREALLOCATED): (
        ("range(len(q))", "range(1, len(q))", "The loop begins at token 1"),
        ("range(len(q))", "range(len(q) - 1)", "all rows but the last"),
        ("out[t] =", "out[t - 1] =", "belongs in the row after"),
        ("S += k", "S = k", "state-overwritten"),
    ),
    (16, ERASE_AND_WRITE): (
        ("eye - beta[t] * kt @ kt.mT", "eye", "old-value-kept"),
        ("eye - beta[t] * kt @ kt.mT", "eye - kt @ kt.mT", "taken out whatever beta is"),
        ("eye - beta[t] * kt @ kt.mT", "1 - beta[t]) * (eye", "the whole state fades"),
        ("@ S + beta[t] * kt @ v[t][None]", "@ (S + beta[t] * kt @ v[t][None])", "taken out as well"),
        ("q[t] @ S", "k[t] @ S", "read with the key"),
        ("range(len(q))", "range(1, len(q))", "The loop begins at token 1"),
        ("q[t] @ S", "feature(q[t]) @ S", "belongs to linear attention"),
        ("beta[t]", "beta[0]", "the beta of the first one"),
        ("    return out, S", "    return out, S.mT", "its axes stand in another order"),
    ),
    (17, LOOP_OVER_BLOCKS): (
        ("len(k), block_size", "len(k) - block_size, block_size", "got (3, 3)"),
        ("start + block_size", "start + block_size - 1", "a block has no keys"),
        ("start + block_size", "start + max(block_size - 1, 1)", "the last key of every block is left out"),
    ),
    (17, LARGEST_SCORES): (
        (" / math.sqrt(q.shape[-1])", "", "no-scale"),
        ("math.sqrt(q.shape[-1])", "q.shape[-1]", "scaled-by-width"),
        (
            "products = torch.maximum(q[:, None] * blocks.amin(dim=1), q[:, None] * blocks.amax(dim=1))",
            "products = q.abs()[:, None] * blocks.abs().amax(dim=1)",
            "a loose one",
        ),
        (
            "return products.sum(dim=-1)",
            "return (q @ k.mT).unflatten(-1, (-1, block_size)).amax(dim=-1)",
            "every key was read for it",
        ),
    ),
    (14, LOOP_OVER_CELLS): (
        ("j < sinks", "j <= sinks", "one sink too many"),
        ("j <= i", "j < i", "missing-diagonal"),
        ("range(S - T, S)", "range(T)", "top-left-causal"),
        ("i - window", "i - window - 1", "window-off-by-one"),
    ),
    (17, LOOP_OVER_QUERIES): (
        ("bounds[i]", "bounds[0]", "the best blocks of the first one"),
        ("bounds[i].topk(count).indices", "torch.arange(count)", "the first blocks are read"),
        ("(b + 1) * block_size", "(b + 1) * block_size - 1", "the last key of every block is not read"),
        ("range(b * block_size", "range(b * block_size + 1", "the first key of every block is not read"),
        ("torch.logsumexp(s, dim=0)", "s.exp().sum()", "its logarithm is missing"),
        ("torch.logsumexp(s, dim=0)", "s.max()", "the largest score that was kept"),
        ("torch.stack(outs)", "torch.stack(outs, dim=1)", "its axes stand in another order"),
    ),
    (17, ALL_AT_ONCE): (
        (
            "1 - torch.exp(lse_kept - lse)",
            "torch.exp(lse) - torch.exp(lse_kept)",
            "is divided by the sum of all",
        ),
        ("1 - torch.exp(lse_kept - lse)", "100 * (1 - torch.exp(lse_kept - lse))", "in percent"),
    ),
}
CASES = [(number, form, swap, said) for (number, form), rows in MISTAKES.items() for *swap, said in rows]


@pytest.mark.parametrize(("number", "form"), MISTAKES)
def test_another_form_has_the_right_numbers(number: int, form: str) -> None:
    outcome = judge_form(number, form)
    rightly = ("the numbers are right", "It works on one text")
    assert outcome.status == "done" or outcome.message.startswith(rightly), outcome
    assert not outcome.mistake


@pytest.mark.parametrize(("number", "form", "swap", "said"), share(CASES, 12))
def test_a_mistake_is_known_in_every_form(number: int, form: str, swap: list[str], said: str) -> None:
    assert swap[0] in form
    lesson, task, program = with_form(number, form.replace(*swap))
    right = judge_form(number, form)
    check_that_hints_lead_to_the_solution(lesson, task, program, said, right=right)


def test_what_is_usual_in_another_task_is_not_asked() -> None:
    """Lesson 13's table speaks of `repeat` in `grouped_attention`; `pool_heads` has no such call."""
    apart = LOOP_OVER_GROUPS.replace("range(g * size, (g + 1) * size)", "range(g, num_heads, kv_heads)")
    outcome = judge_form(13, apart)
    assert outcome.mistake == "grouped-heads-tiled"
    assert not any("repeat" in hint for hint in outcome.hints), outcome


def test_no_hint_for_a_function_speaks_of_a_module() -> None:
    form = LOOP_OVER_GROUPS.replace("range(kv_heads)", "range(head_dim)")
    outcome = judge_form(13, form)
    assert "'head_dim' is not defined" in outcome.message
    assert not any("__init__" in hint for hint in outcome.hints), outcome


@pytest.mark.parametrize(
    "body", ["    return False\n", "    return (attention(x)[0] == attention(x)[0]).all()\n"]
)
def test_no_hint_says_which_answer_to_return(body: str) -> None:
    outcome = judge_form(4, f"\ndef finds_leak(attention, x):\n{body}")
    assert outcome.status == "wrong"
    assert "return True" not in outcome.hint.partition("; line")[2]
