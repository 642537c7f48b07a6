"""A survey in shards: joined, it has the bytes of the survey that one process makes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.gpt import GPT, Config
from regard.heads.corpus_survey.survey import (
    Shard,
    SurveyModel,
    SurveyPlan,
    join_survey,
    survey,
    survey_shard,
)
from regard.heads.corpus_survey.survey_chunks import chunk_file, chunk_folder
from regard.heads.corpus_survey.survey_result import result_path
from regard.support.files import SurveyFileError
from regard.support.processes import Processes
from tests.sampling import share

ALONE = Processes(0, 1, torch.device("cpu"))
CHUNK = 2  # batches
SIZES = {"length": 16, "batch": 2}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.heads.corpus_survey.survey.CHUNK", CHUNK)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text of 3 chunks and a half."""
    draw = random.Random(0)
    path = tmp_path / "corpus.txt"
    path.write_text("".join(draw.choice("the sea was high\n") for _ in range(15 * 2 * CHUNK * 7 // 2)))
    return path


@pytest.fixture
def reader() -> SurveyModel:
    torch.manual_seed(1)
    model = GPT(Config(vocab_size=64, context_length=16, num_layers=2, num_heads=2, d_model=8)).eval()
    return SurveyModel("small", model.maps, lambda text: [ord(x) % 64 for x in text], 0, "weights")


def results(out: Path) -> tuple[bytes, bytes]:
    return out.read_bytes(), result_path(out).read_bytes()


@pytest.mark.parametrize("shards", share([3, 1, 5], 3))
def test_joined_shards_have_the_bytes_of_one_survey(
    corpus: Path, reader: SurveyModel, tmp_path: Path, shards: int
) -> None:
    survey(reader, SurveyPlan(corpus, **SIZES), tmp_path / "whole.csv", ranks=ALONE)
    out, plan = tmp_path / "joined.csv", SurveyPlan(corpus, **SIZES)
    counts = [survey_shard(reader, plan, out, Shard(i, shards)) for i in reversed(range(shards))]
    assert sum(counts) == 4
    join_survey(reader, plan, out)
    assert results(out) == results(tmp_path / "whole.csv")
    assert not chunk_folder(out).exists()


def test_a_shard_goes_on_after_the_chunks_that_are_there(
    corpus: Path, reader: SurveyModel, tmp_path: Path
) -> None:
    out, plan = tmp_path / "joined.csv", SurveyPlan(corpus, **SIZES)

    def stop(progress: Any, bytes_read: int) -> None:
        if chunk_file(out, 1).exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey_shard(reader, plan, out, Shard(0, 1), report=stop)
    with pytest.raises(SurveyFileError, match=r"expected 4 chunks, and 2 are missing \(2, 3\)"):
        join_survey(reader, plan, out)
    before = chunk_file(out, 0).stat().st_mtime_ns
    survey_shard(reader, plan, out, Shard(0, 2))
    survey_shard(reader, plan, out, Shard(1, 2))  # also in another number of shards
    assert chunk_file(out, 0).stat().st_mtime_ns == before
    join_survey(reader, plan, out)
    survey(reader, SurveyPlan(corpus, **SIZES), tmp_path / "whole.csv", ranks=ALONE)
    assert results(out) == results(tmp_path / "whole.csv")


def test_chunks_of_another_survey_are_refused(corpus: Path, reader: SurveyModel, tmp_path: Path) -> None:
    out, plan = tmp_path / "joined.csv", SurveyPlan(corpus, **SIZES)
    survey_shard(reader, plan, out, Shard(0, 1))
    other = plan._replace(length=8)
    for action in (
        lambda: survey_shard(reader, other, out, Shard(0, 1)),
        lambda: _join_three(reader, other, out),
    ):
        with pytest.raises(SurveyFileError, match="is of a survey with another length"):
            action()
    survey_shard(reader, plan, out, Shard(0, 1), fresh=True)
    content = chunk_file(out, 2).read_bytes()
    chunk_file(out, 2).write_bytes(content[: len(content) // 2])
    with pytest.raises(SurveyFileError, match=r"chunk-000002\.safetensors"):
        join_survey(reader, plan, out)


def _join_three(reader: SurveyModel, plan: SurveyPlan, out: Path) -> None:
    join_survey(reader, plan._replace(max_windows=3 * CHUNK * 2), out)


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "-1/2", "0/0", "0/99999999", "1/2/3", ""])
def test_what_is_no_shard(text: str) -> None:
    with pytest.raises(ValueError, match=r"shard: expected i/n, with i from 0 to n - 1, such as 0/4"):
        Shard.parse(text)
