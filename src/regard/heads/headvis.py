"""A survey as the tree of files that HeadVis reads, the public viewer of attention heads.

https://github.com/anthropics/headvis: its `data_pipeline.py` describes the files. HeadVis skips the first
query and the first key of a sequence, which are here the first token of the window. A sequence is an excerpt:
"…" stands before a token that follows a gap. What a survey does not keep is left out: sequences of the lower
intervals, and projections of queries and keys.
"""

from __future__ import annotations

import json
import math
import tempfile
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.heads.corpus_survey.examples import EDGES, TENTHS, LayerExamples
from regard.heads.corpus_survey.survey_result import SurveyResult
from regard.heads.tables.head_sentence import describe_head, head_title
from regard.heads.tables.score_words import SCORE_WORDS
from regard.heads.tables.table import HeadRow
from regard.support.files import check_folder_writable

NAMES = {
    "itself": "self_attention_score",
    "previous_token": "previous_token_score",
    "entropy": "pattern_entropy",
    "distance": "qk_distance",
    "induction": "induction_score",
}
"""The scores for which HeadVis has names of its own."""
INTERVALS = 10  # of strongest weights, of which the last has the strongest
TOP_TOKENS = 50
DIGITS = 4  # after the point of a number in a file


def write_headvis(result: SurveyResult, folder: str | PathLike[str]) -> None:
    """Write what a survey found as the tree of files that HeadVis reads as its `data` folder.

    ValueError says if HeadVis cannot show the model, or if the folder is not empty.

    Arguments:
        result: the survey, as `read_survey` reads it.
        folder: a folder that is new or empty. It is complete when it appears.
    """
    folder = Path(folder)
    check_headvis(folder)
    if stacks := sorted({row.stack for row in result.table if row.stack}):
        raise ValueError(
            f"survey: expected one stack of layers, since HeadVis numbers them, got {', '.join(stacks)}"
        )
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as temporary:
        data = Path(temporary) / folder.name
        for name in ("heads", "attributions/qk", "attributions/ov", "custom_sequences"):
            (data / name).mkdir(parents=True)
        _write(data / "config.json", _config(result))
        _write(data / "scatter_data.json", [_metrics(row) for row in result.table])
        _write(data / "server_config.json", {})  # there is no server
        _write(data / "attributions" / "manifest.json", {})
        for row in result.table:
            examples, index = result.place(row.key, row.head)
            file = data / "heads" / f"L{row.layer}H{row.head}.json"
            windows = int(examples.peaks[index].sum())
            words = {"label": head_title(row), "sentence": describe_head(row), "windows": windows}
            _write(file, {**_head(result, examples, index), "statistics": words})
        if folder.exists():
            folder.rmdir()
        data.rename(folder)


def check_headvis(folder: Path) -> None:
    """Raise an error, before any work is done, unless the tree can be written to a folder."""
    if folder.is_dir() and not any(folder.iterdir()):
        pass
    elif folder.exists() or folder.is_symlink():
        raise ValueError(f"headvis: expected a folder that is new or empty, got {str(folder)!r}")
    elif not folder.absolute().parent.is_dir():
        raise ValueError(f"headvis: there is no folder {str(folder.parent)!r}: make it first")
    check_folder_writable("headvis", folder.absolute().parent)


def _write(path: Path, content: Any) -> None:
    # ASCII and no NaN, since a browser's JSON.parse reads the file.
    path.write_text(json.dumps(content, allow_nan=False), encoding="ascii")


def _config(result: SurveyResult) -> dict[str, Any]:
    table = result.table
    about = {score.name: score.about for score in SCORE_WORDS}
    return {
        "model_name": table.model,
        "heads": [[row.layer, row.head] for row in table],
        "n_layers": len(result.layers),
        "n_heads": max(len(layer.heads) for layer in result.layers),
        "n_intervals": INTERVALS,
        "metrics": [NAMES.get(name, name) for name in table.names],
        "metric_descriptions": {NAMES.get(name, name): about.get(name, "") for name in table.names},
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": False,
        "umap_heads": [],
        "custom_plots": [{"key": "qk_distance_histogram", "label": "Q-K distance"}],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Top query tokens"},
            {"key": "top_key_tokens", "label": "Top key tokens"},
        ],
        "statistics_display": {
            "label": {"label": "Label", "format": "default"},
            "sentence": {"label": "What it does", "format": "default"},
            "windows": {"label": "Windows", "format": "default"},
        },
    }


def _metrics(row: HeadRow) -> dict[str, Any]:
    """The scores of a head that are defined."""
    values = {NAMES.get(name, name): round(x.value, DIGITS) for name, x in row.scores.items()}
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return {"layer": row.layer, "head": row.head, **finite}


def _head(result: SurveyResult, examples: LayerExamples, index: int) -> dict[str, Any]:
    windows = examples.window[index]
    return {
        "sequences": [
            _sequence(result, examples, index, n) for n in range(len(windows)) if int(windows[n]) >= 0
        ],
        "qk_distance_histogram": _distance_histogram(examples.distances[index]),
        "top_query_tokens": _tokens(result, examples.query_ids[index], examples.query_mass[index]),
        "top_key_tokens": _tokens(result, examples.key_ids[index], examples.key_mass[index]),
        "histogram": {
            "bin_edges": [n / TENTHS for n in range(TENTHS + 1)],
            "bin_values": examples.peaks[index].tolist(),
        },
    }


def _sequence(result: SurveyResult, examples: LayerExamples, index: int, n: int) -> dict[str, Any]:
    """One example, with the weights among its tokens as flat indices and values."""
    positions = [p for p in examples.positions[index, n].tolist() if p >= 0]
    length = len(positions)
    words = [result.word(token) for token in examples.ids[index, n, :length].tolist()]
    after_gap = [False, *(b > a + 1 for a, b in pairwise(positions))]
    cells = {
        query * length + key: round(float(weight), DIGITS)
        for query in range(length)
        for key, weight in zip(
            examples.keys[index, n, query].tolist(), examples.weights[index, n, query].tolist(), strict=True
        )
        if key >= 0
    }
    # As HeadVis does, without the first query and the first key.
    inner = [weight for cell, weight in cells.items() if cell >= length and cell % length]
    return {
        "sequence_id": int(examples.window[index, n]),
        "interval": INTERVALS,
        "tokens": [f"…{word}" if gap else word for word, gap in zip(words, after_gap, strict=True)],
        "attention_indices": sorted(cells),
        "attention_values": [cells[cell] for cell in sorted(cells)],
        "seq_len": length,
        "max_activation": max(inner, default=0.0),
    }


def _distance_histogram(mass: Tensor) -> dict[str, Any]:
    """The weight at each distance, up to the largest that there is."""
    values = [round(x, DIGITS) for x in mass.tolist()]
    bins = max((n + 1 for n, x in enumerate(values) if x > 0), default=1)
    return {"bin_edges": list(EDGES[: bins + 1]), "bin_values": values[:bins]}


def _tokens(result: SurveyResult, ids: Tensor, mass: Tensor) -> list[dict[str, Any]]:
    """The heaviest tokens, with their shares of the weight of all that are kept."""
    total = float(mass.sum()) or 1.0
    heaviest = list(zip(ids.tolist(), mass.tolist(), strict=True))
    return [
        {"token": result.word(token), "weight": round(weight / total, DIGITS)}
        for token, weight in heaviest[:TOP_TOKENS]
        if token >= 0
    ]
