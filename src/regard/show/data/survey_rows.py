"""What a survey found, as plain data for the page: every head's scores, and one head's examples.

This file knows `SurveyResult`; it does not know captures.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from regard.heads import SurveyResult
from regard.heads.corpus_survey.examples import EDGES, LayerExamples
from regard.heads.tables.head_sentence import describe_head, label_title

TOP_TOKENS = 10
DIGITS = 5  # of a weight that count: the page shows four


def describe_survey(result: SurveyResult) -> dict[str, Any]:
    """Return what the page needs before it asks for a head: scores, labels and sentences of all."""
    table = result.table.with_token_texts(lambda token: result.words.get(token, ""))
    return {
        "model": table.model,
        "windows": table.texts,
        "tokens": table.tokens,
        "names": table.names,
        "heads": [
            {
                "layer": row.key,
                "head": row.head,
                "label": row.label,
                "labels": list(row.labels),
                "label_words": [label_title(row, name) for name in row.labels],
                "sentence": describe_head(row),
                "scores": {
                    name: score.value for name, score in row.scores.items() if not math.isnan(score.value)
                },
            }
            for row in table
        ],
    }


def describe_survey_head(result: SurveyResult, layer: str, head: int) -> dict[str, Any]:
    """Return the examples, top tokens and distances of one head; KeyError if the survey has no such head."""
    examples, index = result.place(layer, head)
    return {
        "examples": [
            _example(result, examples, index, n)
            for n, window in enumerate(examples.window[index].tolist())
            if window >= 0
        ],
        "queries": _tokens(result, examples.query_ids[index], examples.query_mass[index]),
        "keys": _tokens(result, examples.key_ids[index], examples.key_mass[index]),
        "distances": _distances(examples.distances[index]),
    }


def describe_survey_heads(result: SurveyResult) -> dict[str, dict[str, Any]]:
    """Return the same of every head, by layer/head, as a saved page holds it."""
    return {f"{row.key}/{row.head}": describe_survey_head(result, row.key, row.head) for row in result.table}


def _example(result: SurveyResult, examples: LayerExamples, index: int, n: int) -> dict[str, Any]:
    """One example: the tokens of its excerpt, its query, and the query's weights on keys in it."""
    query = int(examples.query[index, n])
    ids, positions = examples.ids[index, n].tolist(), examples.positions[index, n].tolist()
    length = sum(position >= 0 for position in positions)
    pairs = zip(
        examples.keys[index, n, query].tolist(), examples.weights[index, n, query].tolist(), strict=True
    )
    return {
        "window": int(examples.window[index, n]),
        "weight": _round(float(examples.weight[index, n])),
        "query": query,
        "positions": positions[:length],
        "tokens": [result.word(token) for token in ids[:length]],
        "keys": [[key, _round(weight)] for key, weight in pairs if 0 <= key < length],
    }


def _tokens(result: SurveyResult, ids: Tensor, mass: Tensor) -> list[dict[str, Any]]:
    """The heaviest tokens, with their shares of the weight of all that were kept."""
    # or 1.0: a head without any examples has mass 0, and its shares are 0.
    total = float(mass.sum()) or 1.0
    pairs = zip(ids[:TOP_TOKENS].tolist(), mass[:TOP_TOKENS].tolist(), strict=True)
    return [
        {"token": result.word(token), "share": _round(weight / total)}
        for token, weight in pairs
        if token >= 0
    ]


def _distances(mass: Tensor) -> list[dict[str, Any]]:
    """The share of the weight at each distance, [from, below], up to the largest that there is."""
    total = float(mass.sum()) or 1.0
    shares = [_round(x / total) for x in mass.tolist()]
    bins = max((n + 1 for n, share in enumerate(shares) if share > 0), default=0)
    return [{"from": EDGES[n], "below": EDGES[n + 1], "share": shares[n]} for n in range(bins)]


def _round(x: float) -> float:
    return float(f"{x:.{DIGITS}g}")
