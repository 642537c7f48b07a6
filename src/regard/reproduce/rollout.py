"""Attention rollout against raw attention, by what cutting a token changes (Abnar & Zuidema 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.recorder import capture
from regard.reproduce.chart import Chart
from regard.reproduce.record import Findings, PublishedResult, RunOptions, estimated
from regard.reproduce.trained_models import open_model, read_texts

ABOUT = PublishedResult(
    title="Rollout says more about the inputs than the attention of the last layer",
    papers=("Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, arXiv:2005.00928",),
    claim="""In higher layers tokens are mixed, and raw attention no longer says which inputs matter. Rollout,
which follows the attention through all layers, ranks them more like an ablation of the inputs does.""",
    method="""A trained model reads short pieces of Python's help topics. Each token but the last is
replaced by a line break in turn; how much the probabilities of the next token change (total variation) is its
importance. The ranks by rollout and by the last layer's attention, from the last token, are compared with it;
beside them the first layer's attention and the position alone.""",
    limits="""The paper's models are encoders that classify; this one is a decoder that predicts the next
token, whose first token gets much attention and whose nearest tokens matter most. A replaced token is not an
absent one. The position alone is the baseline that any method has to beat here.""",
)
QUICK = {"texts": 12, "length": 24}
FULL = {"texts": 100, "length": 48}
METHODS = ("rollout", "last layer", "first layer", "position")


def run(options: RunOptions) -> Findings:
    """Rank the tokens of every text in all ways."""
    sizes = QUICK if options.quick else FULL
    model = open_model(options)
    ids = read_texts(model, sizes["texts"], sizes["length"])
    found = []
    for number, text in enumerate(ids):
        truth = ablation(model, text)
        found.append([rank_correlation(scores, truth) for scores in explanations(model, text).values()])
        if number % 10 == 0:
            options.report(f"text {number} of {len(ids)}")
    return judge(torch.tensor(found, device="cpu"), sizes)


@torch.no_grad()
def ablation(model: GPT, text: Tensor) -> Tensor:
    """How much the prediction changes if each token but the last is replaced by a line break, (T − 1,)."""
    assert model.tokenizer is not None
    T = len(text)
    copies = text.repeat(T, 1)  # the last is the text itself
    copies[:-1].fill_diagonal_(model.tokenizer.encode("\n").ids[0])
    predictions = model.logits(model.states(copies)[:, -1]).double().softmax(-1)  # (T, V)
    return (predictions[:-1] - predictions[-1]).abs().sum(-1).cpu() / 2


@torch.no_grad()
def explanations(model: GPT, text: Tensor) -> dict[str, Tensor]:
    """What each method says of every token but the last, (T − 1,) each."""
    seen = capture(model, inputs=(text[None],))
    rows = {
        "rollout": seen.rollout(),
        "last layer": seen[len(seen) - 1][0, :, -1].mean(0),
        "first layer": seen[0][0, :, -1].mean(0),
        "position": torch.arange(len(text), device="cpu"),
    }
    return {name: rows[name][:-1].double().cpu() for name in METHODS}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two lists of numbers without ties.

    >>> rank_correlation(torch.tensor([1.0, 5.0, 7.0]), torch.tensor([0.1, 0.2, 0.9]))
    1.0
    """
    n = len(a)
    difference = a.argsort().argsort() - b.argsort().argsort()
    return 1.0 - 6.0 * float((difference.double() ** 2).sum()) / (n * (n * n - 1))


def judge(found: Tensor, sizes: dict[str, Any]) -> Findings:
    """Compare the methods (texts, methods), text by text."""
    rollout, last, _, position = found.T
    texts = f"{sizes['texts']} texts"
    checks = [
        estimated("rank correlation of rollout with the ablation", rollout, ">", 0.0, "chance", texts),
        estimated("the same beyond the last layer's attention", rollout - last, ">", 0.0, "none", texts),
        estimated("the same beyond the position alone", rollout - position, ">", 0.0, "none", texts),
    ]
    bars = {name: [[0.0, float(found[:, n].mean())]] for n, name in enumerate(METHODS)}
    ordered = {
        name: [[(n + 0.5) / len(found), float(x)] for n, x in enumerate(found[:, column].sort().values)]
        for column, name in enumerate(METHODS)
    }
    charts = [
        Chart("Rank correlation with ablation", "", "mean over texts", bars, kind="bars", places=("",)),
        Chart("Every text, in order", "share of the texts", "rank correlation", ordered, baseline=0.0),
    ]
    means = ", ".join(f"{name} {float(found[:, n].mean()):.2f}" for n, name in enumerate(METHODS))
    return Findings(checks, charts, f"Mean rank correlations with the ablation: {means}.", sizes)
