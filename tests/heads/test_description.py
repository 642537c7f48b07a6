"""The table of heads: against the definitions written out, with padding, across texts, across stacks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import alibi, attention_map, causal, padding, window
from regard.gpt import GPT, Config
from regard.heads import HeadScores, describe, probe, repeated, scores, study, uniform
from regard.heads.measures.query_scores import TextScorer
from tests.heads.made_heads import inducing, looking_at, previous, repeats
from tests.sampling import examples


def small():
    torch.manual_seed(3)
    return GPT(
        Config(vocab_size=40, context_length=128, num_layers=2, num_heads=4, d_model=16, num_kv_heads=2)
    ).eval()


def without(a, key):
    """Rows (T, S) renormalised without a column."""
    rest = a.clone()
    rest[:, key] = 0
    left = rest.sum(-1, keepdim=True)
    return (rest / left).where(left > 1e-9, torch.nan)  # next to nothing left beside the sink


WITHOUT_SINK = ("duplicate", "induction", "eviction", "local", "itself", "previous_token")
WHOLE = ("sink", "distance", "entropy", "normalised_entropy")


def by_definition(a, ids, seen, near, policy):
    """The scores of one head, a (T, T), by loops; `seen` says who may look at whom."""
    T, x = len(a), ids.tolist()
    rows = {name: [] for name in (*WITHOUT_SINK, *WHOLE)}
    for key in range(T):
        if seen[:, key].sum() >= min(16, T // 2 + 1):
            rows["sink"].append(a[seen[:, key], key].mean().item())
    rows["sink"] = [max(rows["sink"])] if rows["sink"] else []
    for q in range(T):
        if not a[q].isfinite().all():  # nothing left beside the sink
            continue
        copies = [k for k in range(q) if x[k] == x[q] and seen[q, k]]
        after = [p + 1 for p in range(q) if x[p] == x[q] and p + 1 < q and seen[q, p + 1]]
        lost = [k for k in range(T) if seen[q, k] and k >= policy[0] and k <= q - policy[1]]
        for name, places in (("duplicate", copies), ("induction", after), ("eviction", lost)):
            if places:
                rows[name].append(sum(a[q, k].item() for k in places))
        rows["local"].append(sum(a[q, k].item() for k in range(max(0, q - near + 1), q + 1)))
        rows["itself"].append(a[q, q].item())
        if q:
            rows["previous_token"].append(a[q, q - 1].item())
        rows["distance"].append(sum((q - k) * a[q, k].item() for k in range(q + 1)))
        rows["entropy"].append(-torch.special.xlogy(a[q], a[q]).sum().item())
        if seen[q].sum() > 1:
            rows["normalised_entropy"].append(rows["entropy"][-1] / seen[q].sum().log().item())
    return {name: sum(found) / len(found) if found else math.nan for name, found in rows.items()}


@settings(max_examples=examples(25))
@given(
    T=st.integers(3, 60),
    tokens=st.sampled_from([1, 3, 10]),
    mask=st.sampled_from(["causal", "window", "alibi"]),
    near=st.integers(1, 9),
    policy=st.tuples(st.integers(0, 4), st.integers(1, 9)),
    seed=st.integers(0, 999),
)
def test_scores_nulls_and_the_rest_are_their_definitions(T, tokens, mask, near, policy, seed):
    torch.manual_seed(seed)
    rule = {"causal": causal, "window": causal & window(7), "alibi": causal & alibi(4)}[mask]
    q, k = torch.randn(1, 4, T, 4, dtype=torch.float64), torch.randn(1, 2, T, 4, dtype=torch.float64)
    k[:, :, 1] += 2 * q[:, ::2].mean(2)  # a key that many look at
    ids = torch.randint(0, tokens, (1, T))
    m = attention_map(3 * q, k, mask=rule)
    table = describe([m], ids, near=near, policy=policy)
    seen = (causal & window(7) if mask == "window" else causal).to_dense(T)
    flat = seen.double() / seen.sum(-1, keepdim=True)
    for row in table:
        a = m.to_dense()[0, row.head]
        assert row.kv_head == row.head // 2
        wanted, null = (by_definition(x, ids[0], seen, near, policy) for x in (a, flat))
        key = row.sink_key
        if key is not None:  # of the keys that enough queries see, the one with the largest mean
            assert a[seen[:, key], key].mean().item() == pytest.approx(row.scores["sink"].value)
        sink = key is not None and row.scores["sink"].value > 0.3
        rest = (
            by_definition(without(a, key), ids[0], seen, near, policy) if sink and key is not None else wanted
        )
        for name, value in wanted.items():
            if math.isnan(value):
                assert name not in row.scores
                continue
            score = row.scores[name]
            assert score.value == pytest.approx(value, abs=1e-9), name
            assert score.null == pytest.approx(null[name], abs=1e-9), name
            if name in WITHOUT_SINK and (
                not sink or (1 - a[:, key] > 2e-3).logical_or(1 - a[:, key] < 1e-9).all()
            ):
                assert score.without_sink == pytest.approx(rest[name], abs=1e-6, nan_ok=True), name
            assert not score.low > score.value + 1e-12


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_count(side):
    """A padded text scores what it scores alone, even where the padding holds NaN."""
    torch.manual_seed(0)
    T, room = 40, 12
    q, k = torch.randn(1, 4, T, 8), torch.randn(1, 2, T, 8)
    ids = torch.randint(0, 6, (1, T))
    alone = describe([attention_map(q, k, mask=causal)], ids, policy=(3, 5))

    def padded(x, fill, dim):
        more = x.new_full((*x.shape[:dim], room, *x.shape[dim + 1 :]), fill)
        return torch.cat([more, x] if side == "left" else [x, more], dim)

    is_token = padded(torch.ones(1, T, dtype=torch.bool), False, 1)
    rule = causal & padding(is_token)
    # The log-sum-exp of the text; that of padding is anything.
    lse = padded(attention_map(q, k, mask=causal).lse, 0.5, 2)
    m = attention_map(padded(q, math.nan, 2), padded(k, math.nan, 2), mask=rule, lse=lse)
    table = describe([m], padded(ids, 3, 1), attention_mask=is_token, policy=(3, 5))
    assert table.tokens == T
    shift = room if side == "left" else 0
    for row, other in zip(table, alone, strict=True):
        assert row.sink_key == other.sink_key + shift
        assert row.scores.keys() == other.scores.keys()
        for name, score in row.scores.items():
            for part in ("value", "null", "without_sink"):
                wanted = getattr(other.scores[name], part)
                assert getattr(score, part) == pytest.approx(wanted, abs=1e-5, nan_ok=True), (name, part)


def test_a_list_of_texts_is_a_batch_and_the_interval_is_over_texts():
    model = small()
    ids = torch.randint(0, 40, (5, 30))
    batch = describe(model.maps(ids), ids)
    listed = describe([(model.maps(one[None]), one[None]) for one in ids])
    assert batch.texts == listed.texts == 5
    for row, other in zip(batch, listed, strict=True):
        for name, score in row.scores.items():
            assert score[:2] == pytest.approx(other.scores[name][:2], abs=1e-5)
            assert (score.low, score.high) == pytest.approx(
                (other.scores[name].low, other.scores[name].high), abs=1e-4
            )
    values = [describe(model.maps(one[None]), one[None])[0, 0].scores["itself"].value for one in ids]
    score = batch[0, 0].scores["itself"]
    error = torch.tensor(values).std().item() / 5**0.5
    assert score.value == pytest.approx(sum(values) / 5, abs=1e-5)
    assert score.high - score.value == pytest.approx(2.776 * error, rel=1e-2)


@settings(max_examples=examples(10))
@given(
    T=st.integers(2, 40),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    near=st.integers(1, 5),
    seed=st.integers(0, 99),
    biased=st.booleans(),
)
def test_scores_and_those_of_uniform_attention_are_those_of_each_text(T, heads, near, seed, biased):
    torch.manual_seed(seed)
    H, G = heads
    q, k = torch.randn(2, H, T, 4, dtype=torch.float64), torch.randn(2, G, T, 4, dtype=torch.float64)
    ids = torch.randint(0, 5, (2, T))
    m = attention_map(3 * q, k, mask=causal & alibi(H) if biased else causal)
    found = [scores(x, ids, near=near) for x in (m, uniform(m))]
    for text in range(2):
        for row in describe([m[text : text + 1]], ids[text : text + 1], near=near):
            for name in HeadScores._fields:
                expected = row.scores[name][:2] if name in row.scores else (math.nan, math.nan)
                numbers = [getattr(x, name)[text, row.head].item() for x in found]
                assert numbers == pytest.approx(expected, nan_ok=True), name


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Over many draws of texts about 95 in 100 intervals hold the mean of all."""
    torch.manual_seed(0)
    T, texts, draws, heads = 24, 6, 20, 20
    scores = torch.randn(texts * draws, heads, T, T)
    m = attention_map(scores, torch.eye(T).expand(texts * draws, heads, T, T), mask=causal, scale=1.0)
    truth = m.diagonal(-1).mean().item()
    held = 0
    for i in range(draws):
        some = m[i * texts : (i + 1) * texts]
        for row in describe([some], torch.arange(T).expand(texts, T)):
            score = row.scores["previous_token"]
            held += score.low <= truth <= score.high
    assert 0.9 < held / (draws * heads) < 0.99


def test_a_map_of_one_text_on_another_has_only_what_makes_sense():
    torch.manual_seed(0)
    maps = [attention_map(torch.randn(1, 2, 9, 4), torch.randn(1, 2, n, 4)) for n in (14, 9)]
    table = describe(maps, keys=["cross.0", "cross.1"])
    assert {name for row in table for name in row.scores} == {"sink", "entropy", "normalised_entropy"}
    whole = maps[0].to_dense()[0, 1]
    assert table["cross.0", 1].scores["sink"].value == pytest.approx(whole.mean(0).max().item(), abs=1e-5)
    assert table["cross.0", 1].sink_key == int(whole.mean(0).argmax())


def test_tokens_shuffled_by_label_and_by_the_model():
    torch.manual_seed(0)
    ids = repeats(20, 100)
    m = looking_at(inducing(ids))
    by_label = describe([m], ids)
    assert by_label.shuffled == "labels"
    score = by_label[0, 0].scores["induction"]
    assert score.value == pytest.approx(1)
    assert score.shuffled < 0.2
    assert math.isnan(by_label[0, 0].scores["previous_token"].shuffled)
    mixed = ids[:, torch.randperm(100)]
    by_model = describe([m], ids, shuffled=([looking_at(inducing(mixed))], mixed))
    assert by_model.shuffled == "text"
    # What finds copies in any text finds them in a shuffled one: that is no reason against the label.
    assert by_model[0, 0].scores["induction"].shuffled == pytest.approx(1)
    assert by_model[0, 0].label == "induction"


def test_study_reads_texts_shuffled_texts_and_repeats():
    seen = []

    def run(ids):
        seen.append(ids)
        T = ids.shape[1]
        rows = [looking_at(inducing(row[None])) for row in ids]
        q, k = torch.cat([m.q for m in rows]), torch.cat([m.k for m in rows])
        return [
            attention_map(q, k, mask=causal, scale=1.0),
            *(looking_at(previous(T)) for _ in range(len(ids) == 1)),
        ][:1]

    ids = torch.cat([torch.tensor([7]), torch.randint(8, 90, (60,))])
    table = study(run, [ids], vocab_size=100, start=7, draws=4)
    text, shuffled, probe = seen
    assert torch.equal(text[0], ids)
    assert shuffled[0, 0] == 7
    assert sorted(shuffled[0].tolist()) == sorted(ids.tolist())
    assert not torch.equal(shuffled, text)
    assert probe.shape == (4, 101)
    row = table[0, 0]
    assert row.label == "induction"
    assert row.scores["induction_on_repeats"].value == pytest.approx(1, abs=1e-4)
    assert row.scores["induction_on_repeats"].null < 0.1


def test_a_head_that_looks_after_the_last_copy_scores_one_and_its_null_does_not():
    def maps(ids):
        T = ids.shape[1]
        keys = torch.eye(T).expand(len(ids), 1, T, T)
        after = torch.arange(T).sub(24).clamp(min=0)
        inducing = attention_map(300.0 * keys[:, :, after], keys, mask=causal, scale=1.0)
        idle = attention_map(0 * keys, keys, mask=causal)
        return [idle, inducing]

    found, nulls = probe(maps, repeated(1000, start=0))
    assert found[1].induction.mean().item() == pytest.approx(1, abs=1e-4)
    assert found[0].induction.mean().item() == pytest.approx(nulls[0].induction.mean().item())
    # From the second round on one, two or three places among all that came before.
    rounds = range(26, 101)
    wanted = sum(((q - 1) // 25) / (q + 1) for q in rounds) / len(rounds)
    assert nulls[0].induction.mean().item() == pytest.approx(wanted)


def test_what_does_not_fit_is_named():
    q = torch.zeros(2, 1, 4, 2)
    m = attention_map(q, q, mask=causal)
    with pytest.raises(ValueError, match=r"ids: expected whole numbers \(2, 4\)"):
        describe([m], torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"ids: expected \(2, 4\), a token for each key"):
        describe([m], torch.zeros(2, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"attention_mask: expected booleans \(2, 4\)"):
        describe([m], torch.zeros(2, 4, dtype=torch.long), attention_mask=torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"maps: expected \(B, H, T, S\) each"):
        describe([m[0]], torch.zeros(2, 4, dtype=torch.long))


@pytest.mark.parametrize("options", [{}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "softcap": 5.0}])
def test_the_baseline_that_is_scored_with_the_first_map_is_the_baseline(options):
    is_token = torch.arange(40) >= torch.tensor([[0], [9]])
    ids = torch.randint(0, 7, (2, 40))
    q, k = torch.randn(2, 4, 40, 8), torch.randn(2, 2, 40, 8)
    m = attention_map(q, k, mask=causal & padding(is_token), **options)
    apart, together = (TextScorer(m, ids, is_token) for _ in range(2))
    together.joins_baseline = True  # as on a GPU
    for scorers in ((apart, together), (apart.relabelled, together.relabelled)):
        one, other = (x.score(m) for x in scorers)
        for name, score in (one.scores | {f"null of {n}": s for n, s in scorers[0].null.items()}).items():
            found = (other.scores | {f"null of {n}": s for n, s in scorers[1].null.items()})[name]
            assert torch.equal(
                found.defined.expand_as(found.values), score.defined.expand_as(score.values)
            ), name
            assert torch.allclose(
                found.values.where(found.defined, 0.0), score.values.where(score.defined, 0.0), atol=1e-6
            ), name
        assert torch.equal(one.sink_key, other.sink_key)
        assert torch.allclose(one.tallies.tokens, other.tallies.tokens)
        assert torch.allclose(one.tallies.offsets, other.tallies.offsets)
    of_tokens = [x.relabelled.token_scores(m)["induction"].values for x in (apart, together)]
    assert torch.allclose(*of_tokens, atol=1e-6)
