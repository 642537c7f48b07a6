"""`HeadTable`: rows that print, sort and come back from files; its summary, and the difference of two."""

import csv
import json
import math
from dataclasses import replace

import pytest
import torch

from regard import attention_map, causal
from regard.heads import HeadRow, HeadTable, Score, describe
from regard.heads.tables.table_text import summary_text
from tests.heads.made_heads import inducing, looking_at, previous, repeats, sinking


@pytest.fixture
def table():
    torch.manual_seed(0)
    ids = repeats(15, 60)
    made = [looking_at(x) for x in (inducing(ids), previous(60), sinking(4, 60), torch.arange(60))]
    q = torch.cat([m.q for m in made], 1)
    same = attention_map(q, made[0].k, mask=causal, scale=1.0)  # four query heads, one key/value head
    grouped = attention_map(q, made[0].k.expand(1, 2, 60, 60), mask=causal, scale=1.0)
    idle = attention_map(0 * q, made[0].k, mask=causal)
    return describe([same, grouped, idle], ids, model="made by hand")


def test_labels_and_key_value_heads(table):
    assert [row.label for row in table] == ["induction", "previous_token", "sink", "itself"] * 2 + [None] * 4
    assert [row.kv_head for row in table] == [0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert table[1, 2].sink_key == 4
    assert table[1, 2].place == "1.2"


def test_json_is_what_the_page_reads_and_comes_back(table, tmp_path):
    rows = json.loads(table.to_json(tmp_path / "heads.json"))
    assert [row["label"] for row in rows] == [row.label for row in table]
    assert {"layer", "head", "kv_head", "label", "scores"} <= rows[0].keys()
    assert (rows[4]["layer"], rows[4]["head"], rows[6]["kv_head"]) == (1, 0, 1)
    for score in rows[0]["scores"].values():
        assert {"value", "null", "shuffled", "low", "high"} <= score.keys()
    assert rows[0]["scores"]["previous_token"]["shuffled"] is None
    assert rows[0]["scores"]["induction"]["shuffled"] is not None
    again = HeadTable.from_json(tmp_path / "heads.json")
    assert again.to_json() == HeadTable.from_json(table.to_json()).to_json() == table.to_json()
    assert rows[0]["shuffled"] == again.shuffled == "labels"
    assert math.isnan(again[0, 0].scores["previous_token"].shuffled)
    with pytest.raises(ValueError, match="JSON of a table of heads"):
        HeadTable.from_json('[{"layer": 1}]')


def test_best_where_and_sorted(table):
    assert [row.place for row in table.best("induction", 2)] == ["0.0", "1.0"]
    assert [row.place for row in table.where(label="previous token")] == ["0.1", "1.1"]
    assert [row.place for row in table.where(label="self", layer=1)] == ["1.3"]
    assert len(table.where(labelled=True)) == 8
    values = [row.scores["sink"].value for row in table.sorted("sink")]
    assert values == sorted(values, reverse=True)
    with pytest.raises(ValueError, match="name: expected one of previous_token"):
        table.best("inductoin")
    with pytest.raises(KeyError, match=r"expected a layer \(0, 1, 2\) and a head"):
        table[9, 0]
    assert table.best("normalized entropy", 1).rows == table.best("normalised_entropy", 1).rows


def test_layers_are_numbers_and_stacks_have_names():
    q = torch.randn(1, 1, 6, 4)
    m = attention_map(q, q, mask=causal)
    many = describe([m] * 12, torch.arange(6)[None])
    assert (many[10, 0].layer, many[10, 0].stack, many[10, 0].key) == (10, "", "10")
    assert many["10", 0] is many[10, 0]
    frame = many.to_pandas().sort_values("layer", ascending=False)
    assert frame["layer"].tolist() == list(range(11, -1, -1))
    stacks = describe([m] * 3, keys=["encoder.0", "decoder.0", "cross.0"])
    assert [(row.stack, row.layer) for row in stacks] == [("encoder", 0), ("decoder", 0), ("cross", 0)]
    assert stacks["decoder.0", 0].place == "decoder.0.0"
    assert [row.key for row in stacks.where(layer="cross.0")] == ["cross.0"]
    assert len(stacks.where(layer=0)) == 3
    assert stacks.to_pandas()["stack"].tolist() == ["encoder", "decoder", "cross"]
    assert [row.key for row in HeadTable.from_json(stacks.to_json())] == [row.key for row in stacks]
    assert "decoder.0" in str(stacks)
    with pytest.raises(KeyError, match=r"expected a layer \(encoder\.0, decoder\.0, cross\.0\)"):
        stacks[0, 0]
    with pytest.raises(ValueError, match=r"keys: expected the number of a layer.*got 'last'"):
        describe([m], keys=["last"])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_hold_every_number(table, tmp_path, kind):
    path = tmp_path / f"heads.{kind}"
    table.save(path)
    columns = table.columns()
    if kind == "csv":
        with path.open(newline="") as opened:
            read = list(csv.DictReader(opened))
        assert [float(row["induction"]) for row in read] == columns["induction"]
        assert read[0]["previous_token_shuffled"] == read[-1]["label"] == ""
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        found = parquet.read_table(path).to_pydict()
        assert found["induction"] == columns["induction"]
        assert found["label"] == columns["label"]
        assert found["layer"] == columns["layer"]


def test_it_prints_within_80_columns_under_its_key_value_heads(table):
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in str(table)
    assert lines[0].split()[:4] == ["layer", "kv", "head", "does"]
    assert any(line.split()[:4] == ["1", "0", "0", "induction"] for line in lines)
    assert any("sink on 4" in line for line in lines)
    assert sum(line.strip().startswith(("0", "1", "2", "3")) for line in lines) >= 12
    assert repr(table) == "HeadTable(12 heads)"


def test_tables_are_joined_head_by_head(table):
    score = Score(0.9, 0.01, math.nan, 0.8, 1.0, math.nan)
    extra = HeadTable([HeadRow(1, 0, 0, ("retrieval",), None, {"retrieval": score})])
    joined = table.join(extra)
    assert len(joined) == len(table)
    assert joined[1, 0].labels == ("induction", "retrieval")  # induction is 1, which is further above chance
    assert joined[1, 0].scores == table[1, 0].scores | {"retrieval": score}
    assert joined[0, 0] == table[0, 0]
    assert "retrieval" in str(joined)
    assert HeadTable.from_json(joined.to_json())[1, 0].scores["retrieval"].value == 0.9
    weak = HeadTable([HeadRow(1, 2, 1, ("retrieval",), None, {"retrieval": score})])
    assert table.join(weak)[1, 2].labels == ("retrieval", "sink")  # a sink counts half
    with pytest.raises(ValueError, match=r"expected a table of the same heads, got one with the head 9\.0"):
        table.join(HeadTable([HeadRow(9, 0, 0, (), None, {})]))


def score(value, reach=0.02, null=0.03):
    return Score(value, null, 0.1, value - reach, value + reach, value)


def head(layer, number, sink_key=None, **scores):
    """A head that has a label for each of its scores; one on repeats has that of the score on text."""
    labels = tuple(dict.fromkeys(name.removesuffix("_on_repeats") for name in scores))
    return HeadRow(layer, number, number, labels, sink_key, scores)


def printed(kinds, **options):
    return summary_text(kinds, **options).splitlines()


@pytest.fixture
def kinds():
    rows = [
        head(0, 0, 0, sink=score(0.5)),
        head(0, 1, 0, sink=score(0.6)),
        head(0, 2, 7, sink=score(0.4), previous_token=score(0.3)),
        head(1, 0, induction=score(0.4)),
        head(1, 1, induction=score(0.5, reach=0.3)),  # higher, and less certain
        head(1, 2, induction=score(0.2), induction_on_repeats=score(0.9)),
        head(1, 3),
    ]
    return HeadTable(rows)


def test_kinds_have_an_order_and_the_rest_is_counted(kinds):
    lines = printed(kinds, top=2, key_texts={0: "Once", 7: " the"})
    assert [line.split(":")[0] for line in lines if ": attention on" in line] == [
        "induction",
        "previous token",
    ]  # those that were measured
    start = next(i for i, line in enumerate(lines) if line.startswith("induction"))
    assert [line.split()[:2] for line in lines[start + 1 : start + 3]] == [["1.2", "0.90*"], ["1.0", "0.40"]]
    assert lines[start + 3] == "  and 1 more: --label induction"
    assert "2 heads are sinks on token 0 ('Once'), 1 on token 7 (' the'): --label sink" in lines
    assert "1 head has no label: --all" in lines
    assert "*: on random tokens, repeated" in lines
    assert max(map(len, lines)) <= 80


def test_sinks_on_many_keys_are_not_all_named():
    keys = [5, 5, 5, 5, 4, 4, 4, 3, 3, 2, 1]
    lines = printed(HeadTable([head(0, i, key, sink=score(0.5)) for i, key in enumerate(keys)]))
    sinks = next(line for line in lines if "sink" in line and "token 5" in line)
    assert sinks == "4 heads are sinks on token 5, 3 on token 4, 4 on other tokens: --label sink"


def scored(head, value, low, high, labels=()):
    score = Score(value, 0.1, 0.1, low, high, value)
    return HeadRow(3, head, 0, labels, None, {"induction": score})


BEFORE = HeadTable(
    [
        scored(0, 0.2, 0.1, 0.5),
        scored(1, 0.6, 0.5, 0.7, ("induction", "sink")),
        scored(2, 0.3, 0.2, 0.4),
    ]
)
AFTER = HeadTable(
    [
        scored(1, 0.1, 0.06, 0.2, ("sink",)),
        scored(0, 0.8, 0.4, 0.9, ("induction",)),
        scored(5, 0.3, 0.2, 0.4),
    ]
)


def test_the_interval_of_a_difference_comes_from_both():
    found = BEFORE.compare(AFTER)
    score = found[3, 0].scores["induction"]
    assert (score.before, score.after, score.difference) == (0.2, 0.8, pytest.approx(0.6))
    assert score.low == pytest.approx(0.6 - math.hypot(0.8 - 0.4, 0.5 - 0.2))
    assert score.high == pytest.approx(0.6 + math.hypot(0.9 - 0.8, 0.2 - 0.1))
    assert score.is_clear
    back = AFTER.compare(BEFORE)[3, 0].scores["induction"]
    assert (back.difference, back.low, back.high) == pytest.approx((-0.6, -score.high, -score.low))


def test_labels_that_are_gained_and_lost():
    found = BEFORE.compare(AFTER)
    assert repr(found) == "TableDifference(2 heads, 2 with other labels)"
    assert [(x.place, x.gained, x.lost) for x in found] == [
        ("3.0", ("induction",), ()),
        ("3.1", (), ("induction",)),
    ]
    assert found.left_out == ["3.2", "3.5"]
    assert str(found).splitlines()[1:] == [
        "   3.0 + induction: 0.20 → 0.80 (+0.10 to +0.74)",
        "   3.1 − induction: 0.60 → 0.10 (-0.61 to -0.36)",
    ]
    assert len(BEFORE.compare(BEFORE).changed) == 0


def test_it_is_sorted_by_the_size_of_a_change():
    found = BEFORE.compare(AFTER).sorted("induction")
    assert [x.place for x in found] == ["3.0", "3.1"]
    with pytest.raises(ValueError, match="name: expected one of induction, got 'local'"):
        found.sorted("local")
    with pytest.raises(KeyError, match="expected a layer and a head of both tables, got"):
        found[3, 2]
    assert found[1].place == "3.1"
    assert found.to_pandas()["difference"].tolist() == pytest.approx([0.6, -0.5])


def test_tables_without_a_common_head_are_refused():
    with pytest.raises(ValueError, match="other: expected a table with some of the same heads, got 1 heads"):
        BEFORE.compare(HeadTable([replace(BEFORE.rows[0], layer=9)]))
