"""Position, distance, token id and copies: heads that attend by one of them are not labelled by another."""

import os

import pytest
import torch
from torch.nn.functional import one_hot

from regard import attention_map, causal
from regard.heads import HeadTable, describe, repeated, study
from tests.heads.made_heads import looking_at, sinking
from tests.sampling import combine, share

VOCAB = 200
HEADS = int(os.environ.get("REGARD_MADE_HEADS", "20"))  # 200 take minutes


def texts(n=4, T=128, seed=0):
    return torch.randint(0, VOCAB, (n, T), generator=torch.Generator().manual_seed(seed))


def by_scores(scores):
    """A model whose heads have the scores (H, T, T) that `scores(ids)` gives for a text, ten in a layer."""

    def run(ids):
        T = ids.shape[1]
        layers = torch.stack([scores(row) for row in ids]).split(10, 1)
        keys = torch.eye(T)[None, None]
        return [attention_map(q, keys.expand(*q.shape), mask=causal, scale=1.0) for q in layers]

    return run


def positional(offsets, strengths):
    """Heads that attend n tokens back, whatever is there."""

    def scores(ids):
        T = len(ids)
        places = (torch.arange(T) - offsets.view(-1, 1)).clamp(min=0)
        return one_hot(places, T) * strengths.view(-1, 1, 1)

    return by_scores(scores)


def labels(table):
    return {label for row in table for label in row.labels}


@pytest.mark.parametrize("start", share([None, 0], 2))
def test_no_head_at_a_fixed_offset_is_called_induction_or_duplicate(start):
    generator = torch.Generator().manual_seed(1)
    offsets = torch.randint(1, 61, (HEADS,), generator=generator)
    strengths = 3 + 12 * torch.rand(HEADS, generator=generator)
    run = positional(offsets, strengths)
    table = study(run, texts(), VOCAB, start=start)
    assert not labels(table) & {"induction", "duplicate"}
    for row, offset, strength in zip(table, offsets.tolist(), strengths.tolist(), strict=True):
        if strength > 8:
            assert ("previous_token" if offset == 1 else "fixed_offset") in row.labels, (offset, row.labels)
            assert offset == 1 or row.offset == offset
    # Nor on a text in which everything stands at one distance.
    one_period = repeated(VOCAB, start=0)
    run = positional(torch.tensor([24, 49, 74]), torch.full((3,), 15.0))
    for row in describe(run(one_period), one_period):
        assert "induction" not in row.labels


@pytest.mark.parametrize("start", [None, 0])
def test_a_head_at_a_fixed_offset_says_how_far_it_looks(start):
    run = positional(torch.tensor([24, 25, 2]), torch.full((3,), 15.0))
    table = study(run, texts(), VOCAB, start=start)
    assert [row.label for row in table] == ["fixed_offset"] * 3
    assert all(f"looks {n} back" in str(table) for n in (24, 25, 2))
    assert "on the token 24 back, whatever it is" in table[0, 0].sentence
    assert HeadTable.from_json(table.to_json())[0, 0].offset == 24


def test_an_induction_head_looks_at_no_fixed_offset_even_where_the_text_has_one_period():
    def scores(ids):
        after = (ids.view(-1, 1) == ids.roll(1)) & (torch.arange(len(ids)) > 0)
        return 15.0 * (after | (torch.arange(len(ids)) == 0)).float()[None]

    ids = repeated(VOCAB, start=0)
    for table in (describe(by_scores(scores)(ids), ids), study(by_scores(scores), texts(), VOCAB, start=0)):
        assert table[0, 0].label == "induction"
        assert "fixed_offset" not in table[0, 0].labels


@pytest.mark.parametrize(("n", "seed"), share([(1, 3), (4, 0), (4, 1), (10, 2)], 2))
def test_a_head_that_follows_a_token_is_no_sink(n, seed):
    ids = texts(n, seed=seed)
    ids[:, 30] = 7  # every text has it, the shuffled ones elsewhere
    run = by_scores(lambda row: 15.0 * (row == 7).float().expand(1, len(row), -1))
    row = study(run, ids, VOCAB, start=0)[0, 0]
    assert row.labels[0] == "one_token"
    assert "sink" not in row.labels
    assert row.token == 7
    assert "token id 7" in row.sentence
    named = study(run, ids, VOCAB, start=0).with_token_texts({7: " the"}.__getitem__)
    assert 'attends to "·the"' in str(named)


@pytest.mark.parametrize("key", [0, 1, 5])
@pytest.mark.parametrize("n", [1, 4])
def test_a_sink_is_a_position_whatever_token_is_there(key, n):
    run = by_scores(lambda row: 15.0 * (torch.arange(len(row)) == key).float().expand(1, len(row), -1))
    row = study(run, texts(n), VOCAB, start=0 if key == 0 else None)[0, 0]
    assert row.label == "sink"
    assert row.sink_key == key
    assert "one_token" not in row.labels


RANDOM = ["noise", "tokens", "positions"] if HEADS > 20 else ["noise", "tokens"]


@pytest.mark.parametrize(("by", "sharpness"), combine(RANDOM, [3.0, 12.0, 1.0, 6.0]))
def test_random_heads_have_no_label(by, sharpness):
    generator = torch.Generator().manual_seed(0)
    H, D = HEADS, 16
    q_table, k_table = torch.randn(2, VOCAB, H, D, generator=generator)

    def scores(ids):
        if by == "noise":
            return sharpness * torch.randn(H, len(ids), len(ids), generator=generator)
        places = ids if by == "tokens" else torch.arange(len(ids))
        q, k = q_table[places].transpose(0, 1), k_table[places].transpose(0, 1)  # (H, T, D)
        return sharpness * q @ k.mT / D**0.5

    table = study(by_scores(scores), texts(), VOCAB, start=0)
    assert [(row.place, row.labels) for row in table if row.labels] == []


@pytest.mark.parametrize("kind", ["sink", "fixed_offset"])
@pytest.mark.parametrize("places", [(3, 3), (3, 9), (3, 9, 15, 20)])
def test_texts_that_have_no_place_in_common_give_no_label(kind, places):
    T, texts = 60, []
    for place in places:
        found = sinking(place, T) if kind == "sink" else (torch.arange(T) - place).clamp(min=0)
        texts.append(([looking_at(found)], torch.randperm(5000)[:T][None]))
    (row,) = describe(texts)
    assert row.scores[kind].value > 0.9
    assert (row.labels[0] if row.labels else None) == (kind if len(set(places)) == 1 else None)


@pytest.mark.parametrize("common", [True, False])
def test_one_token_is_in_all_texts(common):
    T, texts = 60, []
    for place in (5, 12, 20, 31):
        ids = torch.randperm(5000)[:T][None]
        if common:
            ids[0, place] = 7777
        texts.append(([looking_at(sinking(place, T))], ids))
    (row,) = describe(texts)
    assert row.labels == (("one_token",) if common else ())
    assert row.token == 7777 or not common
