"""The examples that a survey keeps, found again by hand, and files of them that anyone wrote."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.heads import SurveyResult, read_survey
from regard.heads.corpus_survey.examples import (
    EDGES,
    FIRST_QUERY,
    KEYS,
    LENGTH,
    add_examples,
    collect_examples,
)
from regard.heads.corpus_survey.survey_result import decode_words, result_path, write_result
from regard.heads.tables.description import LayerHeads
from regard.heads.tables.table import HeadRow, HeadTable, Score
from regard.maps import AttentionMap
from regard.support.files import SurveyFileError
from regard.support.safetensor_files import read_safetensors, write_safetensors

B, H, T, E = 5, 3, 40, 4


def windows(seed: int = 0, length: int = T) -> tuple[AttentionMap, Tensor]:
    torch.manual_seed(seed)
    q, k = torch.randn(2, B, H, length, 8).unbind()
    return regard.attention_map(2 * q, k, mask=regard.causal), torch.randint(0, 9, (B, length))


def make_result(m: AttentionMap, ids: Tensor) -> SurveyResult:
    examples = [collect_examples(m, ids, 0, E)]
    rows = [
        HeadRow(0, head, head, ("itself",), None, {"itself": Score(0.5, 0.1, 0.1, 0.4, 0.6, 0.5)})
        for head in range(H)
    ]
    table = HeadTable(rows, B, B * T, model="small")
    words = decode_words(examples, lambda ids: [f" <b>{n}\u202e" for n in ids.tolist()])
    return SurveyResult(table, [LayerHeads("0", list(range(H)), list(range(H)))], examples, words)


def test_the_strongest_weight_of_each_window_is_an_example() -> None:
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


def test_tokens_and_distances_add_up_the_strong_weights() -> None:
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


def test_parts_of_a_corpus_merge_to_the_whole() -> None:
    m, ids = windows()
    whole = collect_examples(m, ids, 0, E)
    parts = [collect_examples(m[b : b + 1], ids[b : b + 1], b, E) for b in range(B)]
    merged = parts[0]
    for part in parts[1:]:
        (merged,) = add_examples([merged], [part])
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(getattr(merged, name), tensor, msg=name)
    merged.check(H, E)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
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
def test_a_file_that_anyone_wrote(tmp_path: Path, name: str, tensor: Tensor, message: str) -> None:
    path = tmp_path / "survey.csv.examples"
    write_result(make_result(*windows()), path)
    content = read_safetensors(path, ["regard.examples 1"], SurveyFileError)
    tensors = {key: x.clone() for key, x in content.tensors.items()} | {
        name if name == "about" else f"examples.{name}": tensor
    }
    write_safetensors(path, tensors, content.metadata)
    with pytest.raises(SurveyFileError, match=message):
        read_survey(path)
