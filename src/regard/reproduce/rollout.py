"""Attention rollout against raw attention, by what replacing a token changes (Abnar & Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.recorder import capture
from regard.reproduce.chart import Chart, bar_chart, format_means, points
from regard.reproduce.models import cut_texts, help_topics, open_encoder, open_model, read_texts
from regard.reproduce.record import Findings, RunOptions, estimated

METHODS = ("rollout", "last layer", "first layer", "position", "rarity")


class Reader(NamedTuple):
    """A model whose answer to a text is explained."""

    model: Any
    answer: Callable[[Tensor], Tensor]  # the answers (B, N) to texts (B, T)
    distance: Callable[[Tensor, Tensor], Tensor]  # how far answers (B, N) are from one (N,)
    blank: int  # the token that replaces another
    tokens: slice  # the tokens that are replaced, and explained
    asks: int | None  # the position that the answer is read from, or None for the mean of all
    direction: int  # 1 if later tokens matter more, −1 if earlier ones do


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Rank the tokens of every text in all ways."""
    reader, ids = open_decoder(options, sizes) if options.quick else open_pooled(options, sizes)
    found = []
    for number, text in enumerate(ids):
        truth = ablation(reader, text)
        found.append([rank_correlation(scores, truth) for scores in explanations(reader, text).values()])
        if number % 10 == 0:
            options.report(f"text {number} of {len(ids)}")
    return judge(torch.tensor(found, device="cpu"), sizes)


def open_pooled(options: RunOptions, sizes: dict[str, int]) -> tuple[Reader, Tensor]:
    """An encoder whose answer is the mean of its last states, and texts between [CLS] and [SEP]."""
    model, tokenizer = open_encoder(options)
    whole = tokenizer.encode(help_topics(), add_special_tokens=False).ids
    ids = cut_texts(whole, sizes["texts"], sizes["length"] - 2)
    begin, end = (
        torch.full((len(ids), 1), tokenizer.token_to_id(x), device="cpu") for x in ("[CLS]", "[SEP]")
    )
    reader = Reader(
        model,
        lambda texts: model(texts).last_hidden_state.mean(1),
        lambda a, b: 1 - torch.cosine_similarity(a, b, -1),
        tokenizer.token_to_id("[MASK]"),
        slice(1, -1),
        None,
        -1,
    )
    return reader, torch.cat([begin, ids, end], 1).to(options.device)


def open_decoder(options: RunOptions, sizes: dict[str, int]) -> tuple[Reader, Tensor]:
    """The included model, whose answer is its probabilities of the next token, and texts."""
    model = open_model(options)
    assert model.tokenizer is not None
    reader = Reader(
        model,
        lambda texts: model.logits(model.states(texts)[:, -1]).softmax(-1),
        lambda a, b: (a - b).abs().sum(-1) / 2,  # total variation
        model.tokenizer.encode("\n").ids[0],
        slice(0, -1),
        -1,
        1,
    )
    return reader, read_texts(model, sizes["texts"], sizes["length"])


@torch.no_grad()
def ablation(reader: Reader, text: Tensor) -> Tensor:
    """How far the answer moves if each of the tokens is replaced in turn."""
    copies = text.repeat(len(text) + 1, 1)  # the last is the text itself
    copies[:-1].fill_diagonal_(reader.blank)
    answers = reader.answer(copies).double()
    return reader.distance(answers[:-1], answers[-1])[reader.tokens].cpu()


@torch.no_grad()
def explanations(reader: Reader, text: Tensor) -> dict[str, Tensor]:
    """What each method says of the tokens."""
    seen = capture(reader.model, inputs=(text[None],))
    asked = slice(reader.asks, None)  # the rows that the answer is read from: the last one, or all
    rows = {
        "rollout": seen.rollout(reader.asks),
        "last layer": seen[len(seen) - 1][0].to_dense()[:, asked].mean((0, 1)),
        "first layer": seen[0][0].to_dense()[:, asked].mean((0, 1)),
        "position": torch.arange(len(text), device="cpu") * reader.direction,
        "rarity": text,
    }
    return {name: rows[name][reader.tokens].double().cpu() for name in METHODS}


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation of two lists of numbers; equal ones have the mean of their ranks.

    >>> rank_correlation(torch.tensor([1.0, 5.0, 7.0]), torch.tensor([0.1, 0.2, 0.9]))
    1.0
    """
    ranks = [(x[:, None] > x).sum(1) - (x[:, None] < x).sum(1) for x in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks).double())[0, 1])


def judge(found: Tensor, sizes: dict[str, Any]) -> Findings:
    """Compare the methods (texts, methods), text by text."""
    methods, texts = dict(zip(METHODS, found.T, strict=True)), f"{sizes['texts']} texts"
    rollout = methods["rollout"]
    checks = [estimated("rank correlation of rollout with the ablation", rollout, ">", 0.0, "chance", texts)]
    for name in ("last layer", "position", "rarity"):
        what = f"rollout's correlation minus that of the {name}"
        checks.append(estimated(what, rollout - methods[name], ">", 0.0, "no difference", texts))
    share = [(n + 0.5) / len(found) for n in range(len(found))]
    ordered = {name: points(x.sort().values, share) for name, x in methods.items()}
    heights = {name: [x.mean()] for name, x in methods.items()}
    charts = [
        bar_chart("Rank correlation with ablation", "mean over texts", heights),
        Chart("Every text, in order", "share of the texts", "rank correlation", ordered, baseline=0.0),
    ]
    named = ", ".join(f"{name} {format_means(x, form='.2f')}" for name, x in methods.items())
    return Findings(checks, charts, f"Mean rank correlations with the ablation: {named}.", sizes)
