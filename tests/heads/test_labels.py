"""Labels: never for attention that looks everywhere alike, always for a head made to do one thing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import attention_map, causal, chunks, documents, full, prefix, window
from regard.heads import describe
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
def test_looking_everywhere_alike_is_never_labelled(
    T: int, mask: str, spread: float, tokens: int, texts: int, seed: int
) -> None:
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
def test_heads_made_to_do_one_thing_are_called_by_it(
    T: int, noise: float, seed: int, data: st.DataObject
) -> None:
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


def test_a_head_with_a_sink_is_called_by_what_it_does_with_the_rest() -> None:
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


def test_few_occasions_earn_no_label() -> None:
    ids = torch.arange(40)[None].clone()
    ids[0, 30] = ids[0, 5]
    row = describe([looking_at(inducing(ids))], ids)[0, 0]
    assert row.scores["induction"].value == pytest.approx(1)
    assert row.labels == ("sink",)
