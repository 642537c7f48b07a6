"""Retrieval heads: the few heads that copy from far back (Wu et al. 2024)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.heads import needle
from regard.heads.needle_texts import FILLER, NEEDLES, Needle
from regard.reproduce.chart import Chart, bar_chart, format_means, points
from regard.reproduce.models import cut_heads, draw_heads, edited, open_model, token_losses
from regard.reproduce.record import Findings, RunOptions, counted, estimated

DEPTHS = (0.1, 0.5, 0.9)
SCORE = 0.1  # from which a head retrieves, as in the paper


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Score the heads on some needles, and cut them on others."""
    model = open_model(options)
    options.report("scoring the heads")
    test = needle(model, needles=NEEDLES[::2], lengths=(sizes["length"],), depths=DEPTHS)
    scores = {(row.layer, row.head): row.scores["retrieval"].value for row in test.table}
    ranked = sorted(scores, key=lambda head: -scores[head])
    top = ranked[: sizes["cut"]]
    others = [hide(model, one, sizes["length"]) for one in NEEDLES[1::2]]
    plain = answer_losses(model, others)
    cut = answer_losses(model, others, top) - plain
    random = []
    for draw in range(sizes["draws"]):
        heads = draw_heads(model, sizes["cut"], options.seed + draw, without=top)
        random.append(answer_losses(model, others, heads) - plain)
        options.report(f"random heads {draw}: {random[-1].mean():+.3f}, the top heads {cut.mean():+.3f}")
    return judge([scores[head] for head in ranked], cut, torch.stack(random), float(plain.mean()), sizes)


class AskedContext(NamedTuple):
    """A context with a needle, its beginning again at the end, and the answer."""

    ids: Tensor  # (1, T)
    answer: int  # tokens at the end


def hide(model: GPT, one: Needle, length: int) -> list[AskedContext]:
    """Contexts of about `length` tokens with a needle at every depth."""
    assert model.tokenizer is not None
    encode = model.tokenizer.encode
    room, filler = length - 2 * len(encode(one.prompt + one.answer).ids), list[str]()
    while room > 0:
        filler.append(FILLER[len(filler) % len(FILLER)])
        room -= len(encode(filler[-1]).ids)
    found = []
    for depth in DEPTHS:
        place = round(depth * len(filler))
        text = [*filler[:place], one.prompt + one.answer, *filler[place:], one.prompt + one.answer]
        ids = torch.tensor([encode("".join(text)).ids], device=model.device)
        found.append(AskedContext(ids, len(encode(one.answer).ids)))
    return found


def answer_losses(
    model: GPT, contexts: list[list[AskedContext]], heads: list[tuple[int, int]] | None = None
) -> Tensor:
    """The loss of each needle's answer, the mean over its contexts, with some heads cut: (needles,)."""
    with edited(model, [] if heads is None else [cut_heads(heads)]):
        losses = [
            torch.stack([token_losses(model, one.ids)[0, -one.answer :].mean() for one in depths]).mean()
            for depths in contexts
        ]
    return torch.stack(losses).cpu()


def judge(ranked: list[float], cut: Tensor, random: Tensor, plain: float, sizes: dict[str, Any]) -> Findings:
    """Compare the highest heads with random ones, needle by needle."""
    share = sum(score >= SCORE for score in ranked) / len(ranked)
    needles = f"{len(cut)} needles"
    most = cut - random.mean(0)
    checks = [
        counted(f"share of heads with a score of {SCORE} or more", share, "<", 0.05, "one in twenty"),
        estimated("loss of the answer without the highest heads", cut, ">", 0.0, "all heads", needles),
        estimated("the same beyond as many random heads", most, ">", 0.0, "random heads", needles),
        counted(
            "loss without the highest heads, above the worst draw of random heads",
            float(cut.mean()), ">", float(random.mean(1).max()), "the worst draw",
        ),
    ]  # fmt: skip
    heads = {"retrieval score": points(ranked)}
    heights = {"highest": [cut.mean()], "random": [random.mean()]}
    charts = [
        Chart("Every head, by its score", "rank", "score", heads, baseline=SCORE),
        bar_chart("Rise of the answer's loss", "nats", heights, ("heads cut",)),
    ]
    costs = [format_means(x, form="+.3f") for x in (cut, random)]
    note = f"""The answer costs {plain:.3f} nats a token with all heads, {costs[0]} without the {sizes["cut"]}
highest and {costs[1]} without as many random ones."""
    return Findings(checks, charts, note, sizes)
