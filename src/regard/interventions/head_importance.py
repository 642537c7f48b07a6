"""`importance`: the effect of ablating every head of a model alone, as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from torch import nn

from regard.heads.tables.description import name_layer
from regard.heads.tables.table import HeadRow, HeadTable, Score, split_key
from regard.interventions.ablation import Replacement, ablate
from regard.interventions.effects import (
    PassCounter,
    check_causal,
    differences,
    evaluating,
    mean_interval,
    run_texts,
    token_ids,
)
from regard.interventions.metrics import Metric, TextMetric, TokenPositions
from regard.interventions.output_means import Text, text_inputs
from regard.recorder.context import capture
from regard.recorder.model_inputs import model_name
from regard.recorder.sources.compilation import original_model


def importance(
    model: nn.Module,
    texts: Text | Sequence[Text],
    metric: Metric = "loss",
    *,
    by: Replacement = "zero",
    tokenizer: Any = None,
    positions: TokenPositions | None = None,
    tokens: Sequence[int | str] | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> HeadTable:
    """Measure the effect of ablating every head of a model alone.

    The table has a score "importance" for every head: the mean over texts of the change of the metric, by
    default the rise of the loss in nats a token. Its 95% interval over texts holds for all heads together
    (Bonferroni), since the largest of many is looked at: of N heads each has an interval of 1 − 0.05 / N.
    Join it to other scores with `seen.heads().join(regard.importance(model, texts))`.

    - `model`: a causal language model that `regard.capture` serves. It runs in eval mode.
    - `texts`: strings, token ids (T,) or (B, T), or dicts of the model's arguments; read one at a time.
    - `metric`, `tokenizer`, `positions`, `tokens`: those of `regard.effect`.
    - `by`: what replaces a head's output, as in `regard.ablate`: "zero", or the means of
      `regard.interventions.mean_outputs`.
    - `report`: called with the number of forward passes done so far and of all: one for each text and head.
    """
    model = original_model(model)
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    measure = TextMetric(metric, positions=positions, tokens=tokens, tokenizer=tokenizer)
    inputs = list(text_inputs(model, texts, tokenizer))
    with evaluating(model):
        seen = capture(model, inputs=inputs[0])
        if metric == "loss":
            check_causal(model, seen)
        attention = [layer for layer in seen.layers if not layer.is_linear]  # edits do not reach the others
        keys, heads = [layer.key for layer in attention], [layer.heads for layer in attention]
        layers = [name_layer(i, layer.map, keys, heads) for i, layer in enumerate(attention)]
        progress = PassCounter(len(inputs) * (1 + sum(map(len, heads))), report)
        plain = run_texts(model, inputs, measure, [], progress)
        rows = []
        share = 1 - 0.05 / max(1, sum(map(len, heads)))
        for layer in layers:
            stack, number = split_key(layer.key)
            for head, kv_head in zip(layer.heads, layer.kv_heads, strict=True):
                edited = run_texts(model, inputs, measure, [ablate(layer.key, head, by)], progress)
                changes = differences(edited, plain)
                low, high = mean_interval(changes, share)
                score = Score(fmean(changes), math.nan, math.nan, low, high, math.nan)
                rows.append(HeadRow(number, head, kv_head, (), None, {"importance": score}, stack))
    total = sum(len(token_ids(arguments)) for arguments in inputs)
    return HeadTable(rows, len(inputs), total, model=model_name(model))
