"""Surveys: the same bits however they are cut or stopped, and the examples that they keep."""

import random
import signal

import pytest
import torch

import regard
from regard.gpt import GPT, Config
from regard.heads import HeadRow, HeadTable, Score, SurveyResult, describe, read_survey
from regard.heads.corpus_survey.corpus import batches
from regard.heads.corpus_survey.examples import (
    EDGES,
    FIRST_QUERY,
    KEYS,
    LENGTH,
    add_examples,
    collect_examples,
)
from regard.heads.corpus_survey.survey import (
    Shard,
    SurveyModel,
    SurveyPlan,
    join_survey,
    survey,
    survey_shard,
)
from regard.heads.corpus_survey.survey_chunks import chunk_file, chunk_folder
from regard.heads.corpus_survey.survey_result import decode_words, result_path, write_result
from regard.heads.tables.description import LayerHeads
from regard.support.file_lock import InUseError
from regard.support.files import SurveyFileError
from regard.support.processes import Processes
from regard.support.safetensor_files import read_safetensors, write_safetensors
from tests.sampling import share

TEXT = "the sea was high and the wind was in the north so the ships came home to the land again\n"
RANKS = Processes(0, 1, torch.device("cpu"))
FILES = ["corpus.txt", "cut.csv", "cut.csv.examples"]
CHUNK = 2  # batches
CHUNKS = 6  # of the corpus


def letters(text):
    return [ord(letter) % 64 for letter in text]


def write_corpus(path):
    """Eleven windows of 32 letters."""
    draw = random.Random(0)
    path.write_text(" ".join(draw.choice(TEXT.split(" ")) for _ in range(75)))
    return path


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus.txt")


@pytest.fixture
def plan(corpus):
    return SurveyPlan(corpus, length=32)


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(1)
    model = GPT(
        Config(vocab_size=64, context_length=64, num_layers=2, num_heads=4, d_model=16, num_kv_heads=2)
    ).eval()
    return SurveyModel("small", model.maps, letters, 0, "weights")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of few batches, so that a short corpus has several."""
    monkeypatch.setattr("regard.heads.corpus_survey.survey.CHUNK", CHUNK)


@pytest.fixture(scope="module")
def whole(reader, tmp_path_factory):
    """What a survey of `corpus` with small chunks writes if nothing stops it."""
    folder = tmp_path_factory.mktemp("whole")
    corpus, out = write_corpus(folder / "corpus.txt"), folder / "whole.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.heads.corpus_survey.survey.CHUNK", CHUNK)
        survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS)
    return out


def test_windows_hold_the_corpus_in_order(corpus):
    text = letters(corpus.read_text())
    found = list(batches(corpus, letters, 33, 3, start=0))
    assert [len(batch.ids) for batch in found[:-1]] == [3] * (len(found) - 1)
    rows = torch.cat([batch.ids for batch in found])
    assert (rows[:, 0] == 0).all()
    whole = len(text) // 32 * 32
    assert rows[:, 1:].flatten().tolist() == text[:whole]
    assert found[-1].bytes_read <= corpus.stat().st_size
    assert sum(len(batch.ids) for batch in batches(corpus, letters, 33, 2, max_windows=5)) == 5


def test_a_survey_is_what_describe_says_of_all_windows(corpus, reader, tmp_path):
    table = survey(reader, SurveyPlan(corpus, length=32, batch=3), tmp_path / "out.json", ranks=RANKS)
    texts = [(list(reader.run(ids)), ids) for ids, _ in batches(corpus, letters, 32, 3, start=0)]
    wanted = describe(texts)
    assert table.to_json() == wanted.to_json()
    assert read_survey(tmp_path / "out.json").table.to_json() == wanted.to_json()
    assert HeadTable.from_json(tmp_path / "out.json").to_json() == table.to_json()
    assert table.texts == sum(len(ids) for _, ids in texts)


def assert_same(out, other):
    """Both surveys wrote the same table and the same examples, to the last bit."""
    assert out.read_bytes() == other.read_bytes()
    assert result_path(out).read_bytes() == result_path(other).read_bytes()


class KilledError(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("after", share([2, 1, 5], 3))
@pytest.mark.parametrize("by", share(["a kill", signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 2))
def test_a_survey_that_was_stopped_goes_on_to_the_same_bits(
    reader, small_chunks, plan, whole, tmp_path, after, by
):
    cut = tmp_path / "cut.csv"

    def stop(windows, read):
        if windows > after and not isinstance(by, signal.Signals):
            raise KilledError
        if windows == after + 1:
            signal.raise_signal(by)
            signal.raise_signal(by)  # as `timeout` sends it

    with pytest.raises((KilledError, KeyboardInterrupt)):
        survey(reader, plan, cut, ranks=RANKS, report=stop)
    assert not cut.exists()
    begun = []
    survey(reader, plan, cut, ranks=RANKS, report=lambda windows, _: begun.append(windows))
    assert begun[0] == after // CHUNK * CHUNK + 1  # after the chunks that were complete
    assert_same(cut, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_second_survey_is_refused(reader, plan, tmp_path):
    out, refused = tmp_path / "out.csv", []

    def second(windows, read):
        if windows == 2:
            with pytest.raises(InUseError, match="is in use by process") as error:
                survey(reader, plan, out, ranks=RANKS)
            refused.append(error)

    survey(reader, plan, out, ranks=RANKS, report=second)
    assert len(refused) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "out.csv", "out.csv.examples"]


@pytest.mark.parametrize("shards", share([3, 1, 7], 3))
def test_joined_shards_have_the_bytes_of_one_survey(reader, small_chunks, plan, whole, tmp_path, shards):
    out = tmp_path / "joined.csv"
    counts = [survey_shard(reader, plan, out, Shard(i, shards)) for i in reversed(range(shards))]
    assert sum(counts) == CHUNKS
    join_survey(reader, plan, out)
    assert_same(out, whole)
    assert not chunk_folder(out).exists()


def test_a_shard_goes_on_after_the_chunks_that_are_there(reader, small_chunks, plan, whole, tmp_path):
    out = tmp_path / "joined.csv"
    survey_shard(reader, plan, out, Shard(0, 2))
    with pytest.raises(SurveyFileError, match=r"expected 6 chunks, and 3 are missing \(1, 3, 5\)"):
        join_survey(reader, plan, out)
    before = chunk_file(out, 0).stat().st_mtime_ns
    survey_shard(reader, plan, out, Shard(0, 1))  # also in another number of shards
    assert chunk_file(out, 0).stat().st_mtime_ns == before
    join_survey(reader, plan, out)
    assert_same(out, whole)


def test_chunks_of_another_survey_are_refused(reader, small_chunks, plan, corpus, tmp_path):
    out = tmp_path / "out.csv"
    survey_shard(reader, plan, out, Shard(0, 1))
    with pytest.raises(ValueError, match="is of a survey with another length"):
        survey(reader, plan._replace(length=16), out, ranks=RANKS)
    with pytest.raises(ValueError, match="is of a survey with another max_windows"):
        join_survey(reader, plan._replace(max_windows=3), out)
    corpus.write_text(corpus.read_text() + "more")
    with pytest.raises(ValueError, match="another corpus"):
        survey_shard(reader, plan, out, Shard(0, 1))
    survey_shard(reader, plan, out, Shard(0, 1), fresh=True)
    content = chunk_file(out, 2).read_bytes()
    chunk_file(out, 2).write_bytes(content[: len(content) // 2])
    with pytest.raises(
        SurveyFileError, match=r"chunk-000002.* is not a complete .*: remove it, or start again"
    ):
        join_survey(reader, plan, out)
    survey(reader, plan, out, ranks=RANKS, fresh=True)
    assert out.exists()


@pytest.mark.parametrize("text", ["4/4", "1", "-1/2", "0/0", "0/99999999", "1/2/3", ""])
def test_what_is_no_shard(text):
    with pytest.raises(ValueError, match=r"shard: expected i/n, with i from 0 to n - 1, such as 0/4"):
        Shard.parse(text)


B, H, T, E = 5, 3, 40, 4


def windows(seed=0, length=T):
    torch.manual_seed(seed)
    q, k = torch.randn(2, B, H, length, 8).unbind()
    return regard.attention_map(2 * q, k, mask=regard.causal), torch.randint(0, 9, (B, length))


def make_result(m, ids):
    examples = [collect_examples(m, ids, 0, E)]
    rows = [
        HeadRow(0, head, head, ("itself",), None, {"itself": Score(0.5, 0.1, 0.1, 0.4, 0.6, 0.5)})
        for head in range(H)
    ]
    table = HeadTable(rows, B, B * T, model="small")
    words = decode_words(examples, lambda ids: [f" <b>{n}\u202e" for n in ids.tolist()])
    return SurveyResult(table, [LayerHeads("0", list(range(H)), list(range(H)))], examples, words)


def test_the_strongest_weight_of_each_window_is_an_example():
    m, ids = windows()
    dense = m.to_dense().double()
    allowed = dense.clone()
    allowed[:, :, :FIRST_QUERY] = 0
    allowed[..., 0] = 0
    peaks = allowed.flatten(2).max(-1)  # (B, H)
    found = collect_examples(m, ids, 100, E)
    for head in range(H):
        order = peaks.values[:, head].argsort(descending=True)[:E]
        torch.testing.assert_close(found.weight[head], peaks.values[order, head], atol=1e-6, rtol=1e-6)
        assert found.window[head].tolist() == (order + 100).tolist()
        for n, window in enumerate(order.tolist()):
            query, key = divmod(int(peaks.indices[window, head]), T)
            positions = [p for p in found.positions[head, n].tolist() if p >= 0]
            assert positions == sorted(set(positions))
            assert {0, query, key} <= set(positions)
            place = int(found.query[head, n])
            assert positions[place] == query
            assert found.ids[head, n, : len(positions)].tolist() == ids[window, positions].tolist()
            for row, position in enumerate(positions):
                for at, weight in zip(found.keys[head, n, row], found.weights[head, n, row], strict=True):
                    expected = float(dense[window, head, position, positions[at]]) if at >= 0 else 0.0
                    assert float(weight) == pytest.approx(expected, abs=1e-6)


def test_tokens_and_distances_add_up_the_strong_weights():
    m, ids = windows()
    top = m.to_dense().double().topk(KEYS)
    distances, queries, keys = torch.zeros(H, len(EDGES) - 1), torch.zeros(H, 9), torch.zeros(H, 9)
    for b, h, q in [(b, h, q) for b in range(B) for h in range(H) for q in range(1, T)]:
        for weight, key in zip(top.values[b, h, q].tolist(), top.indices[b, h, q].tolist(), strict=True):
            if key:
                distances[h, (q - key).bit_length()] += weight
                queries[h, ids[b, q]] += weight
                keys[h, ids[b, key]] += weight
    found = collect_examples(m, ids, 0, E)
    torch.testing.assert_close(found.distances.float(), distances, atol=1e-4, rtol=1e-4)
    for masses, found_ids, found_mass in (
        (queries, found.query_ids, found.query_mass),
        (keys, found.key_ids, found.key_mass),
    ):
        for head in range(H):
            kept = found_ids[head][found_ids[head] >= 0].long()
            assert sorted(kept.tolist()) == list(range(9))
            torch.testing.assert_close(
                found_mass[head, : len(kept)].float(), masses[head, kept], atol=1e-4, rtol=1e-4
            )


def test_parts_of_a_corpus_merge_to_the_whole():
    m, ids = windows()
    whole = collect_examples(m, ids, 0, E)
    parts = [collect_examples(m[b : b + 1], ids[b : b + 1], b, E) for b in range(B)]
    merged = parts[0]
    for part in parts[1:]:
        (merged,) = add_examples([merged], [part])
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(getattr(merged, name), tensor, msg=name)
    merged.check(H, E)


def test_a_file_gives_back_what_was_written(tmp_path):
    result = make_result(*windows())
    write_result(result, result_path(tmp_path / "survey.csv"))
    for path in (tmp_path / "survey.csv", tmp_path / "survey.csv.examples"):
        found = read_survey(path)
        assert found.table == result.table
        assert found.words == result.words
        for name, tensor in result.examples[0].tensors.items():
            assert torch.equal(getattr(found.examples[0], name), tensor), name
    with pytest.raises(SurveyFileError, match=r"got no file .*other\.csv\.examples"):
        read_survey(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("query.0", torch.full((H, E), LENGTH, dtype=torch.int16), "query: expected finite numbers"),
        ("query.0", torch.full((H, E), LENGTH - 1, dtype=torch.int16), "query: expected the place"),
        (
            "keys.0",
            torch.full((H, E, LENGTH, KEYS), 300, dtype=torch.int16),
            "keys: expected finite numbers",
        ),
        (
            "weight.0",
            torch.full((H, E), torch.nan, dtype=torch.float64),
            "weight: expected finite numbers",
        ),
        ("positions.0", torch.zeros(H, E, LENGTH, dtype=torch.int32), "positions: expected increasing"),
        ("keys.0", torch.full((H, E, LENGTH, KEYS), LENGTH - 1, dtype=torch.int16), "keys: expected places"),
        ("more.0", torch.zeros(1), "tensors: expected those of the examples"),
        ("ids.0", torch.zeros(1, 1, dtype=torch.int32), "ids: expected"),
        ("about", torch.zeros(3), "about: expected bytes"),
        ("about", torch.tensor(list(b'{"windows": 1}'), dtype=torch.uint8), "tokens: expected"),
    ],
)
def test_a_file_that_anyone_wrote(tmp_path, name, tensor, message):
    path = tmp_path / "survey.csv.examples"
    write_result(make_result(*windows()), path)
    content = read_safetensors(path, ["regard.examples 1"], SurveyFileError)
    tensors = {key: x.clone() for key, x in content.tensors.items()} | {
        name if name == "about" else f"examples.{name}": tensor
    }
    write_safetensors(path, tensors, content.metadata)
    with pytest.raises(SurveyFileError, match=message):
        read_survey(path)
