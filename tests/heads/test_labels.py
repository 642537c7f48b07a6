"""Labels: never for uniform attention, always for a head made to do one thing; their sentences."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import attention_map, causal, chunks, documents, full, prefix, window
from regard.heads import HeadRow, Score, describe
from regard.heads.labels import MIN_SCORES
from regard.heads.tables.head_sentence import describe_head, head_title
from regard.heads.telling_head import find_selective_head, find_telling_head
from regard.pictures.patch_layout import PatchAxes, PatchLayout, PatchSpan
from tests.heads.made_heads import duplicating, inducing, looking_at, previous, repeats, sinking
from tests.sampling import examples

MASKS = {
    "causal": lambda T: causal,
    "a window of two": lambda T: causal & window(2),
    "a window": lambda T: causal & window(16),
    "everything": lambda T: full,
    "documents": lambda T: causal & documents(torch.arange(T) // 7),
    "chunks": lambda T: causal & chunks(5),
    "a prefix": lambda T: causal | prefix(min(3, T)),
}


@settings(max_examples=examples(60))
@given(
    T=st.integers(1, 90),
    mask=st.sampled_from(sorted(MASKS)),
    spread=st.sampled_from([0.0, 0.05, 0.3]),
    tokens=st.sampled_from([1, 2, 5, 40]),
    texts=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_looking_everywhere_alike_is_never_labelled(T, mask, spread, tokens, texts, seed):
    torch.manual_seed(seed)
    q, k = spread * torch.randn(texts, 8, T, 16), torch.randn(texts, 8, T, 16)
    table = describe([attention_map(q, k, mask=MASKS[mask](T))], torch.randint(0, tokens, (texts, T)))
    assert [row.labels for row in table] == [()] * 8


@settings(max_examples=examples(40))
@given(
    T=st.sampled_from([12, 20, 33, 64, 150]),
    noise=st.sampled_from([0.0, 1.0, 2.0]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_heads_made_to_do_one_thing_are_called_by_it(T, noise, seed, data):
    torch.manual_seed(seed)
    ids = repeats(data.draw(st.integers(3, T // 4 + 2)), T)
    # Strong enough that most of every row goes where it should, whatever the noise.
    strength = 200.0 if not noise else torch.tensor(float(T)).log().item() + 3 + 5.5 * noise
    made = {
        "previous_token": previous(T),
        "itself": torch.arange(T),
        "sink": sinking(data.draw(st.integers(0, T // 3)), T),
        "induction": inducing(ids),
        "duplicate": duplicating(ids),
    }
    for label, places in made.items():
        table = describe([looking_at(places, strength=strength, noise=noise)], ids)
        assert table[0, 0].label == label, table


def test_a_head_with_a_sink_is_called_by_what_it_does_with_the_rest():
    T = 100
    half = looking_at(previous(T)).to_dense()[0, 0] * 0.45 + 0.45 * looking_at(sinking(0, T)).to_dense()[0, 0]
    scores = (half + 0.1 / T).log()
    m = attention_map(scores.view(1, 1, T, T), torch.eye(T).view(1, 1, T, T), mask=causal, scale=1.0)
    row = describe([m], torch.arange(T)[None])[0, 0]
    assert row.labels[:2] == ("previous_token", "sink")
    assert row.sink_key == 0
    a = m.to_dense()[0, 0, 1:]  # the first query sees only the sink
    score = row.scores["previous_token"]
    assert score.value == pytest.approx(a.diagonal().mean().item(), abs=1e-5)
    a[:, 0] = 0
    rest = (a / a.sum(-1, keepdim=True)).diagonal()
    assert score.without_sink == pytest.approx(rest.mean().item(), abs=1e-4)
    assert score.value < 0.5 < 0.85 < score.without_sink


def test_few_occasions_earn_no_label():
    ids = torch.arange(40)[None].clone()
    ids[0, 30] = ids[0, 5]
    row = describe([looking_at(inducing(ids))], ids)[0, 0]
    assert row.scores["induction"].value == pytest.approx(1)
    assert row.labels == ("sink",)


def layers(ids, *places):
    return [(looking_at(place, noise=0.1), ids[0]) for place in places]


def test_induction_comes_before_duplicates_and_these_before_the_previous_token():
    T = 90
    ids = repeats(20, T)
    kinds = [sinking(0, T), previous(T), duplicating(ids), inducing(ids)]
    for last in range(1, 5):
        made = layers(ids, *kinds[:last])
        assert find_telling_head(made) == (last - 1, 0)


def test_without_tokens_it_is_the_head_whose_queries_differ_the_most():
    T = 40
    places = torch.randperm(T)
    made = [(looking_at(place, mask=full), None) for place in (torch.full((T,), 7), places)]
    uniform = torch.zeros(1, 2, T, 4)
    assert find_telling_head([(attention_map(uniform, uniform), None), *made]) == (2, 0)
    assert find_telling_head([]) is None


def test_of_a_vision_transformer_it_is_the_head_whose_cls_is_selective_among_patches():
    patches = PatchLayout((PatchSpan(0, 2, 2, 2, (0, 1, 2, 3)),), {0: "CLS", 1: "register 1"})
    q = torch.zeros(1, 3, 6, 6)
    q[0, 0, 0, 1] = 30.0  # CLS of head 0 attends to the register
    q[0, 1, 0, 4] = 30.0  # CLS of head 1 attends to one patch
    q[0, 2, 1:] = 30 * torch.eye(6)[1:]  # the other queries of head 2 attend to themselves, CLS to everything
    m = attention_map(q, torch.eye(6).expand(1, 3, 6, 6), scale=1.0)
    axes = PatchAxes(patches, patches)
    assert find_selective_head([(m[:, :1], axes), (m, axes)]) == (1, 1)
    assert find_selective_head([(m, None)]) is None
    assert find_selective_head([(m, PatchAxes(PatchLayout(patches.spans), patches))]) is None


def score(value, null=0.02):
    return Score(value, null, math.nan, value - 0.01, value + 0.01, value)


def head(*labels, sink_key=None, **scores):
    return HeadRow(1, 2, 2, labels, sink_key, scores)


@pytest.mark.parametrize("label", list(MIN_SCORES))
def test_every_label_has_a_sentence_with_both_numbers(label):
    row = HeadRow(1, 2, 2, (label,), None, {label: score(0.42)}, offset=24, token=7)
    assert row.sentence.startswith(("It puts 42% of its attention on ", "In 42% of the steps"))
    assert "; uniform attention would" in row.sentence
    assert "2%" in row.sentence.split(";")[1]
    assert (row.sentence.count("."), row.sentence[-1]) == (1, ".")


def test_the_first_label_counts_and_a_sink_names_its_token():
    row = head("sink", "local", sink_key=7, sink=score(0.6), local=score(0.9))
    assert row.sentence.startswith("It puts 60% of its attention on token 7, whatever the query; ")
    assert "on token 7 (“a b”), whatever" in describe_head(row, " a\nb")
    assert len(describe_head(row, "x" * 10_000)) < 160
    assert head_title(row) == "sink"


def test_a_score_on_repeats_says_so_where_it_is_the_higher_one():
    row = head("induction", induction=score(0.2), induction_on_repeats=score(0.9))
    assert row.sentence.startswith("On random tokens, repeated: it puts 90% of its attention on what came ")


def test_without_a_label_the_highest_score_above_uniform_attention_is_named():
    row = head(previous_token=score(0.15), itself=score(0.05), normalised_entropy=score(0.6, 1.0))
    assert row.sentence == (
        "Not clear enough for a label: it puts 15% of its attention on the token before; uniform attention "
        "would put 2% there."
    )
    assert head_title(row) == "no clear pattern"


def test_a_high_score_without_a_label_says_why_it_has_none():
    """A label needs a minimum, a margin and an interval: a sentence never says "nothing" of 66%."""

    def sentence(value, low, high):
        return head(induction=Score(value, 0.09, math.nan, low, high, value)).sentence

    assert sentence(0.66, 0.087, 1.0).startswith(
        "Too few tokens to be sure: it puts 66% (95% interval 9–100%) of its attention on what came after "
    )
    assert sentence(0.66, math.nan, math.nan).startswith("Too few tokens to be sure: it puts 66% of its ")
    assert sentence(0.66, 0.6, 0.7).startswith("Not clear enough for a label: it puts 66% of its ")
    assert sentence(0.15, 0.14, 0.16).startswith("Nothing stands out: it puts 15% of its ")


def test_offset_and_token_are_named():
    row = HeadRow(1, 2, 2, ("fixed_offset",), None, {"fixed_offset": score(0.42)}, offset=24)
    assert head_title(row) == "looks 24 back"
    row = HeadRow(1, 2, 2, ("one_token",), None, {"one_token": score(0.42)}, token=7)
    assert head_title(row) == "attends to token id 7"
    assert head_title(replace(row, token_text=" the")) == 'attends to "·the"'
