"""Span tables are sums over the dense matrix, sink apart, beside uniform attention; means have intervals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.gpt import GPT
from regard.maps import Spans
from regard.recorder import Capture
from tests.captures import captured, layer_of
from tests.maps import drawn_maps
from tests.recorder.text_models import TEXTS, made, words

T_OF_FOUR = 2.7764451  # the 97.5% quantile of Student's t with four degrees of freedom


def dense_table(A, rows, cols):
    """The mass of weights A (H, T, S) and of uniform attention, one head, row and column at a time."""
    H, _, S = A.shape
    visible = A > 0
    U = visible.double() / visible.sum(-1, keepdim=True).clamp(min=1)
    rest = [j for j in range(S) if not any(col.start <= j < col.stop for col in cols)]
    keys = [list(range(col.start, col.stop)) for col in cols]
    found = torch.zeros(2, H, len(rows), len(cols) + 1 + bool(rest), dtype=torch.float64)
    for h in range(H):
        active = int(visible[h].any(-1).sum())
        seeing = visible[h].sum(0)
        enough = [j for j in range(S) if seeing[j] > 0 and seeing[j] >= min(active // 2 + 1, 16)]
        means = {j: float(A[h, :, j].sum() / seeing[j]) for j in enough}
        best = max(means, key=lambda j: means[j], default=-1)
        sink = {best} if means.get(best, 0.0) > 0.3 else set()
        for r, row in enumerate(rows):
            queries = slice(row.start, row.stop)
            for c, part in enumerate([*keys, sink, *([rest] if rest else [])]):
                members = [j for j in part if j not in sink or part is sink]
                for number, weights in enumerate((A, U)):
                    found[number, h, r, c] = weights[h, queries][:, members].sum(-1).mean()
    return found[0], found[1]


@given(data=st.data(), drawn=drawn_maps.maps())
def test_a_table_is_the_sums_of_the_dense_matrix(data, drawn):
    m, A, _ = drawn
    B, H, T, S = m.matrix
    rows, cols = data.draw(drawn_maps.spans(T)), data.draw(drawn_maps.spans(S))
    b = data.draw(st.integers(0, B - 1))
    seen = Capture([layer_of(m, 0, "cross"), layer_of(m, 1, "cross")])
    table = seen.spans(rows, cols, batch=b)
    mass, uniform = dense_table(A[b], rows, cols)
    assert table.rows == rows.names
    assert table.cols[: len(cols)] == cols.names
    assert table.places == tuple((f"cross.{number}", head) for number in (0, 1) for head in range(H))
    for of_table, dense in ((table, mass), (table.uniform, uniform)):
        torch.testing.assert_close(of_table.heads[:H], dense, atol=1e-10, rtol=0)
        torch.testing.assert_close(of_table.layers, dense.mean(0).expand(2, -1, -1), atol=1e-10, rtol=0)
        torch.testing.assert_close(of_table.mean, dense.mean(0), atol=1e-10, rtol=0)
    torch.testing.assert_close(table["cross.1", H - 1], mass[-1], atol=1e-10, rtol=0)


def test_the_sink_has_a_column_of_its_own():
    q, k = torch.randn(2, 1, 4, 60, 8)
    q[..., 0], k[..., 0, 0] = 3.0, 5.0  # every query of every head attends to the first key
    seen = Capture([layer_of(regard.attention_map(q, k, mask=regard.causal))])
    table = seen.spans([1, 30, 60])
    assert table.cols == ("1–29", "30–59", "[sink]", "[rest]")  # the sink is the first token, in no span
    assert float(table.mean[:, 3].max()) < 1e-6
    A = seen[0].to_dense()[0].double()
    torch.testing.assert_close(table.heads[:, 0, 2], A[:, 1:30, 0].mean(-1), atol=1e-6, rtol=0)
    torch.testing.assert_close(table.mean.sum(-1), torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
    rest = A[:, 1:30, 1:30].sum(-1).mean(-1) / (1 - A[:, 1:30, 0].mean(-1))
    torch.testing.assert_close(table.without_sink.heads[:, 0, 0], rest, atol=1e-5, rtol=0)
    assert table.without_sink.cols == ("1–29", "30–59", "[rest]")


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "GPT"])
def test_a_text_of_a_padded_batch_has_the_table_that_it_has_alone(name):
    model = made(name)
    together = regard.capture(model, text=TEXTS, tokenizer=words())
    for b, text in enumerate(TEXTS):
        alone = regard.capture(model, text=text, tokenizer=words())
        parts = regard.spans.words(words(), text)
        one, other = together.spans(parts, batch=b), alone.spans(parts)
        assert one.cols == other.cols
        torch.testing.assert_close(one.heads, other.heads, atol=2e-6, rtol=0)
        torch.testing.assert_close(one.uniform.heads, other.uniform.heads, atol=2e-6, rtol=0)
    with pytest.raises(ValueError, match="batch: expected which of the 3 texts of this capture"):
        together.spans([0, 2])
    with pytest.raises(ValueError, match="batch: expected the number of a text, from 0 to 2, got 3"):
        together.spans([0, 2], batch=3)


def test_wrong_spans_are_refused():
    seen = captured(20, layers=1)
    with pytest.raises(
        ValueError, match=r"cols: expected spans of the text's 20 tokens.*are they of another text"
    ):
        seen.spans([0, 20], [0, 21])
    with pytest.raises(ValueError, match="rows: expected at least two increasing positions"):
        seen.spans([3, 3])
    with pytest.raises(ValueError, match=r"rows: expected spans .*got 'words': write regard.spans.words"):
        seen.spans("words")
    with pytest.raises(ValueError, match="rows: expected at least one span, got none"):
        seen.spans(Spans([], []))
    with pytest.raises(ValueError, match="this capture has no layer"):
        Capture().spans([0, 1])
    table = seen.spans([0, 10, 20])
    with pytest.raises(
        KeyError, match=r"col: expected the name of one span .*got 'x', which is none of them"
    ):
        table.best("x")
    with pytest.raises(KeyError, match="expected a layer and a head of the table"):
        table[9, 0]
    with pytest.raises(ValueError, match="of: expected 'mean', 'layers' or 'heads'"):
        table.interval("head")


def test_the_best_heads_are_furthest_above_uniform_attention():
    table = captured(40).spans(Spans([20], [40], ["answer"]), Spans([0, 4], [4, 20], ["start", "text"]))
    best = table.best("text", 3, row="answer")
    excess = (table.heads - table.uniform.heads)[:, 0, 1]
    assert [(x.layer, x.head) for x in best] == [
        table.places[i] for i in sorted(range(8), key=lambda i: -float(excess[i]))[:3]
    ]
    assert best[0].mass - best[0].uniform == pytest.approx(float(excess.max()))
    assert best == table.best("text", 3)


def tables(n):
    captures = [captured(20 + 3 * number, layers=2, heads=2, seed=number) for number in range(n)]
    spans = [
        Spans.from_edges([0, 5 + number, 20 + 3 * number], ["question", "answer"]) for number in range(n)
    ]
    return captures, spans


def test_the_mean_over_texts_has_students_interval():
    captures, spans = tables(5)
    table = regard.spans.mean(captures, spans=spans)
    single = [seen.spans(own) for seen, own in zip(captures, spans, strict=True)]
    assert (table.texts, table.rows, table.cols) == (
        5,
        ("question", "answer"),
        ("question", "answer", "[sink]"),
    )
    for of, values in (
        ("heads", torch.stack([x.heads for x in single])),
        ("layers", torch.stack([x.layers for x in single])),
        ("mean", torch.stack([x.mean for x in single])),
    ):
        torch.testing.assert_close(getattr(table, of), values.mean(0))
        low, high = table.interval(of)
        reach = T_OF_FOUR * values.std(0) / 5**0.5
        torch.testing.assert_close((high + low) / 2, values.mean(0))
        torch.testing.assert_close((high - low) / 2, reach, atol=1e-9, rtol=3e-3)
    assert "95%" in str(table)
    same = regard.spans.mean(iter(captures), spans=lambda seen: spans[captures.index(seen)])
    assert torch.equal(same.masses, table.masses)
    assert bool(single[0].interval().low.isnan().all())


def test_a_text_without_a_span_does_not_count_for_it():
    captures, spans = tables(3)
    short = Spans([2], [9], ["question"])
    table = regard.spans.mean(captures, spans=[*spans[:2], (short, short)])
    assert table.cols == ("question", "answer", "[sink]", "[rest]")
    first = [seen.spans(own).mean for seen, own in zip(captures[:2], spans[:2], strict=True)]
    torch.testing.assert_close(table.mean[1, :3], torch.stack(first).mean(0)[1])
    alone = captures[2].spans(short)
    rest = alone.cols.index("[rest]")
    torch.testing.assert_close(table.mean[0, 3], alone.mean[0, rest] / 3)


def test_captures_that_have_no_mean_are_refused():
    captures, spans = tables(2)
    for given_captures, given_spans, message in (
        ([], [], "captures: expected at least one, got none"),
        (captures, spans[:1], "spans: expected spans for every capture, got none for number 1"),
        (captures[:1], spans, "spans: expected one for each of the 1 captures, got more"),
        (captures[:1], [Spans([0, 3], [2, 5], ["a", "a"])], "spans: expected rows with different names"),
        ([captures[0], captured(23, heads=4)], spans, "captures: expected the same layers and heads in each"),
    ):
        with pytest.raises(ValueError, match=message):
            regard.spans.mean(given_captures, spans=given_spans)
    batch = regard.capture(made("GPT"), text=TEXTS, tokenizer=words())
    with pytest.raises(ValueError, match="captures: expected one text in each, got 3 in number 0"):
        regard.spans.mean([batch], spans=spans)


def test_an_induction_head_of_the_included_model_reads_the_sentence_asked_about():
    model = GPT.from_pretrained("default")
    text = "Mary Ellis kept the lamp at Farrow Point. The ships came home. Mary Ellis kept the lamp"
    sentences = regard.spans.sentences(model.tokenizer, text)
    names = ["start", "told", "between", "asked"]
    parts = regard.spans.custom([*sentences.starts, sentences.stops[-1]], names)
    seen = regard.capture(model, text=text)
    table = seen.spans(parts)
    best = table.without_sink.best("told", 1, row="asked")[0]
    found = regard.capture(model, text=f"{text}. " * 3).heads()[best.layer, best.head]
    assert "induction" in found.labels
    assert best.mass > 0.8 > best.uniform
