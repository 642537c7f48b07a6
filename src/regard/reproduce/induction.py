"""Induction heads and the phase change (Olsson et al. 2022), in a two-layer GPT that is trained here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.heads import probe, repeated
from regard.interventions import ablate, intervene
from regard.reproduce.chart import Chart, format_means, points
from regard.reproduce.models import make_gpt, read_corpus, token_losses, train_steps, windows
from regard.reproduce.record import Findings, RunOptions, counted, estimated


@dataclass
class InductionReading:
    """What is measured at one step."""

    step: int
    scores: Tensor  # prefix matching, (texts, layers, heads)
    null: float  # that of uniform attention
    first: Tensor  # loss of the first copies, (texts,)
    later: Tensor  # loss of the later copies, (texts,)

    @property
    def best(self) -> float:
        """The prefix matching of the best head."""
        return float(self.scores.mean(0).max())

    @property
    def gain(self) -> float:
        """How much lower the loss is where the tokens have been seen before."""
        return float((self.first - self.later).mean())


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Train, and read the heads along the way."""
    corpus = read_corpus(sizes["context"], sizes["vocabulary"], not options.quick, options.device)
    model = make_gpt(options, corpus, sizes)
    tokens = min(25, (sizes["context"] - 1) // 4)
    ids = repeated(corpus.vocab_size, start=0, tokens=tokens, draws=32, vary=tokens // 4).to(options.device)
    readings, weights = [], []
    batches = windows(corpus, sizes["steps"] + 1, sizes["batch"], options.seed)
    for step, loss in train_steps(model, batches, rate=2e-3):
        if step % sizes["every"] == 0:
            readings.append(read(model, ids, step))
            weights.append({name: x.detach().clone() for name, x in model.state_dict().items()})
            options.report(f"step {step}: loss {loss:.3f}, prefix matching {readings[-1].best:.3f}")
    return judge(model, ids, readings, weights, sizes)


def read(model: GPT, ids: Tensor, step: int = 0) -> InductionReading:
    """Score every head on repeated tokens, and take the loss of first and later copies."""
    layers, nulls = probe(model.maps, ids)
    scores = torch.stack([layer.induction for layer in layers], 1).cpu()
    null = float(torch.stack([layer.induction.nanmean() for layer in nulls]).mean())
    losses = token_losses(model, ids).cpu()
    tokens = ids.shape[1] // 4
    longest = tokens + tokens // 4  # the longest period of all texts: after it every token is a copy
    return InductionReading(step, scores, null, losses[:, : tokens // 2].mean(1), losses[:, longest:].mean(1))


def judge(
    model: GPT,
    ids: Tensor,
    readings: list[InductionReading],
    weights: list[dict[str, Tensor]],
    sizes: dict[str, Any],
) -> Findings:
    """Cut the best head before and after, and compare."""
    last, texts = readings[-1], f"{len(ids)} texts"
    layer, head = divmod(int(last.scores.mean(0).argmax()), sizes["heads"])
    begin, end = rise([reading.best for reading in readings])
    share = (readings[end].gain - readings[begin].gain) / max(last.gain - readings[0].gain, 1e-9)
    window = (readings[end].step - readings[begin].step) / last.step

    def cost(heads: list[int]) -> Tensor:
        """The rise of the loss of later copies in each text, the mean over heads that are cut one by one."""
        plain, rises = read(model, ids).later, []
        for number in heads:
            with intervene(model, ablate(layer, number)):
                rises.append(read(model, ids).later - plain)
        return torch.stack(rises).mean(0)

    after, control = cost([head]), cost([other for other in range(sizes["heads"]) if other != head])
    model.load_state_dict(weights[begin])
    before = cost([head])
    name, scores = f"{layer}.{head}", last.scores[:, layer, head]
    gained = "share of in-context learning gained while the score rises from 10 % to 90 %"
    cut = f"loss of repeated tokens if {name} is cut, beyond another head of its layer"
    checks = [
        estimated(f"prefix matching of head {name}", scores, ">", last.null, "uniform attention", texts),
        counted(gained, share, ">", window, "the share of the steps that this takes"),
        # clamp: if cutting other heads lowers the loss, a cut that changes nothing is no evidence.
        estimated(cut, after - control.clamp(min=0), ">", 0.0, "none", texts),
        estimated("the same beyond that cut before the change", after - before, ">", 0.0, "none", texts),
    ]
    marks = {"10 % of the rise": float(readings[begin].step), "90 %": float(readings[end].step)}
    steps = [reading.step for reading in readings]
    best = {"best head": points((reading.best for reading in readings), steps)}
    gains = {"first minus later copies": points((reading.gain for reading in readings), steps)}
    charts = [
        Chart("A head that matches prefixes", "step", "score", best, marks=marks, baseline=last.null),
        Chart("In-context learning", "step", "loss, nats", gains, marks=marks),
    ]
    costs = format_means(after, control, before)
    note = f"Nats that the cut costs for {name}, another head of its layer, and {name} before: {costs}."
    return Findings(checks, charts, note, sizes)


def rise(curve: list[float]) -> tuple[int, int]:
    """The last place at which a curve is below a tenth of its rise, and the first at nine tenths after it."""
    shares = [(x - curve[0]) / max(max(curve) - curve[0], 1e-9) for x in curve]
    begin = max(i for i, x in enumerate(shares) if x <= 0.1)
    return begin, next((i for i, x in enumerate(shares) if x >= 0.9 and i > begin), len(curve) - 1)
