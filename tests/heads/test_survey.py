"""Surveys: the same to the last bit for one process or two, and for one that was killed and went on."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import torch

from regard.gpt import GPT, Config
from regard.heads import HeadTable, describe, read_survey
from regard.heads.corpus_survey.corpus import batches
from regard.heads.corpus_survey.survey import SurveyModel, SurveyPlan, survey
from regard.heads.corpus_survey.survey_chunks import chunk_file, chunk_folder
from regard.heads.corpus_survey.survey_result import result_path
from regard.support.file_lock import InUseError
from regard.support.processes import Processes
from tests.sampling import share

TEXT = "the sea was high and the wind was in the north so the ships came home to the land again\n"
RANKS = Processes(0, 1, torch.device("cpu"))
FILES = ["corpus.txt", "cut.csv", "cut.csv.examples"]
CHUNK = 2  # batches


def letters(text: str) -> list[int]:
    return [ord(letter) % 64 for letter in text]


def write_corpus(path: Path, words: int) -> Path:
    draw = random.Random(0)
    path.write_text(" ".join(draw.choice(TEXT.split(" ")) for _ in range(words)))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Ten windows of 32 letters."""
    return write_corpus(tmp_path / "corpus.txt", 75)


@pytest.fixture(scope="module")
def reader() -> SurveyModel:
    torch.manual_seed(1)
    model = GPT(
        Config(vocab_size=64, context_length=64, num_layers=2, num_heads=4, d_model=16, num_kv_heads=2)
    ).eval()
    return SurveyModel("small", model.maps, letters, 0, "weights")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of few batches, so that a short corpus has several."""
    monkeypatch.setattr("regard.heads.corpus_survey.survey.CHUNK", CHUNK)


@pytest.fixture(scope="module")
def whole(reader: SurveyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a survey of `corpus` with small chunks writes if nothing stops it."""
    folder = tmp_path_factory.mktemp("whole")
    corpus, out = write_corpus(folder / "corpus.txt", 75), folder / "whole.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.heads.corpus_survey.survey.CHUNK", CHUNK)
        survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS)
    return out


def test_windows_hold_the_corpus_in_order(corpus: Path) -> None:
    text = letters(corpus.read_text())
    found = list(batches(corpus, letters, 33, 3, start=0))
    assert [len(batch.ids) for batch in found[:-1]] == [3] * (len(found) - 1)
    rows = torch.cat([batch.ids for batch in found])
    assert (rows[:, 0] == 0).all()
    whole = len(text) // 32 * 32
    assert rows[:, 1:].flatten().tolist() == text[:whole]
    assert found[-1].bytes_read <= corpus.stat().st_size
    assert sum(len(batch.ids) for batch in batches(corpus, letters, 33, 2, max_windows=5)) == 5


def test_a_survey_is_what_describe_says_of_all_windows(
    corpus: Path, reader: SurveyModel, tmp_path: Path
) -> None:
    table = survey(reader, SurveyPlan(corpus, length=32, batch=3), tmp_path / "out.json", ranks=RANKS)
    texts = [(list(reader.run(ids)), ids) for ids, _ in batches(corpus, letters, 32, 3, start=0)]
    wanted = describe(texts)
    assert table.to_json() == wanted.to_json()
    assert read_survey(tmp_path / "out.json").table.to_json() == wanted.to_json()
    assert HeadTable.from_json(tmp_path / "out.json").to_json() == table.to_json()
    assert table.texts == sum(len(ids) for _, ids in texts)


def assert_same(out: Path, other: Path) -> None:
    """Both surveys wrote the same table and the same examples, to the last bit."""
    assert out.read_bytes() == other.read_bytes()
    assert result_path(out).read_bytes() == result_path(other).read_bytes()


class KilledError(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("after", share([2, 1, 5], 3))
def test_a_survey_that_was_killed_goes_on_to_the_same_bits(
    corpus: Path, reader: SurveyModel, small_chunks: None, whole: Path, tmp_path: Path, after: int
) -> None:
    plan, cut = SurveyPlan(corpus, length=32), tmp_path / "cut.csv"

    def stop(windows: int, read: int) -> None:
        if windows > after:
            raise KilledError

    with pytest.raises(KilledError):
        survey(reader, plan, cut, ranks=RANKS, report=stop)
    assert not cut.exists()
    begun: list[int] = []
    table = survey(reader, plan, cut, ranks=RANKS, report=lambda windows, _: begun.append(windows))
    assert table is not None
    assert begun[0] == after // CHUNK * CHUNK + 1  # after the chunks that were complete
    assert table.to_json() == read_survey(whole).table.to_json()
    assert_same(cut, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


@pytest.mark.parametrize("number", share([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 3))
def test_a_signal_stops_it_and_the_survey_goes_on_to_the_same_bits(
    corpus: Path, reader: SurveyModel, small_chunks: None, whole: Path, tmp_path: Path, number: int
) -> None:
    plan, cut = SurveyPlan(corpus, length=32), tmp_path / "cut.csv"

    def report(windows: int, read: int) -> None:
        if windows == 5:
            signal.raise_signal(number)
            signal.raise_signal(number)  # as `timeout` sends it

    with pytest.raises(KeyboardInterrupt):
        survey(reader, plan, cut, ranks=RANKS, report=report)
    chunks = [chunk_file(cut, 0), chunk_file(cut, 1)]
    assert sorted(chunk_folder(cut).iterdir()) == chunks
    chunks[1].write_bytes(chunks[1].read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"chunk-000001.* is not a complete .*: remove it, or start again"):
        survey(reader, plan, cut, ranks=RANKS)
    chunks[1].unlink()
    survey(reader, plan, cut, ranks=RANKS)
    assert_same(cut, whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_second_survey_is_refused(corpus: Path, reader: SurveyModel, tmp_path: Path) -> None:
    out, refused = tmp_path / "out.csv", []

    def second(windows: int, read: int) -> None:
        if windows == 2:
            with pytest.raises(InUseError, match="is in use by process") as error:
                survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS)
            refused.append(error)

    survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS, report=second)
    assert len(refused) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "out.csv", "out.csv.examples"]


def test_another_survey_is_not_continued(
    corpus: Path, reader: SurveyModel, small_chunks: None, tmp_path: Path
) -> None:
    def stop(windows: int, read: int) -> None:
        if windows > 2:
            raise KilledError

    out = tmp_path / "out.csv"
    with pytest.raises(KilledError):
        survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS, report=stop)
    with pytest.raises(ValueError, match="another length"):
        survey(reader, SurveyPlan(corpus, length=16), out, ranks=RANKS)
    corpus.write_text(corpus.read_text() + "more")
    with pytest.raises(ValueError, match="another corpus"):
        survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS)
    chunk_file(out, 0).write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"not a complete safetensors file.*--fresh"):
        survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS)
    survey(reader, SurveyPlan(corpus, length=32), out, ranks=RANKS, fresh=True)
    assert out.exists()
