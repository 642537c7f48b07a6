"""Entropy collapse and QK-norm (Zhai et al. 2023; Dehghani et al. 2023), in GPTs that learn too fast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from regard.gpt.training.evaluation import next_token_loss
from regard.monitor import Monitor, StepRecord
from regard.reproduce.chart import Chart
from regard.reproduce.models import make_gpt, read_corpus, windows
from regard.reproduce.record import Findings, RunOptions, counted, estimated

SMOOTH = 10  # steps of which the mean loss is taken


@dataclass
class CollapseRun:
    """One training."""

    losses: list[float]
    records: list[StepRecord]
    alarms: list[int]  # their steps

    def values(self, measure: str, reduce: Any) -> list[list[float]]:
        """One number of all heads, with its step, for every reading."""
        found = []
        for record in self.records:
            heads = [x for layer in record.layers.values() for x in layer.values[measure] if x is not None]
            found.append([float(record.step), float(reduce(heads))])
        return found

    def means(self) -> list[list[float]]:
        """The mean of the losses until each step, of ten at most."""
        windows = ((i, self.losses[max(0, i - SMOOTH + 1) : i + 1]) for i in range(len(self.losses)))
        return [[float(i), sum(window) / len(window)] for i, window in windows]


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Train every pair, and compare."""
    pairs = []
    for seed in range(options.seed, options.seed + sizes["seeds"]):
        pairs.append([train(options, sizes, seed, qk_norm) for qk_norm in (False, True)])
        plain, normed = (pair.losses[-1] for pair in pairs[-1])
        options.report(f"seed {seed}: loss without QK-norm {plain:.3f}, with it {normed:.3f}")
    return judge(pairs, sizes)


def train(options: RunOptions, sizes: dict[str, Any], seed: int, qk_norm: bool) -> CollapseRun:
    """Train one GPT while its learning rate rises, without clipping or weight decay."""
    corpus = read_corpus(sizes["context"], None, False, options.device)
    torch.manual_seed(seed)
    model = make_gpt(options, corpus, sizes, qk_norm=qk_norm)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    losses: list[float] = []
    alarms: list[int] = []
    every = sizes["every"]
    with Monitor(model, every, 32, quiet=True, alarm=lambda _: alarms.append(len(losses))) as monitor:
        for inputs, targets in windows(corpus, sizes["steps"], sizes["batch"], seed):
            optimizer.param_groups[0]["lr"] = sizes["rate"] * (len(losses) + 1) / sizes["steps"]
            loss = next_token_loss(model(inputs), targets)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                return CollapseRun(losses[:-1], monitor.history.records, alarms)
            loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's own stub
            optimizer.step()
            optimizer.zero_grad()
            monitor.step()
    return CollapseRun(losses, monitor.history.records, alarms)


def judge(pairs: list[list[CollapseRun]], sizes: dict[str, Any]) -> Findings:
    """Compare the runs of each pair."""
    over = f"{len(pairs)} seeds"
    entropies = [[x.values("relative_entropy", fmean)[-1][1] for x in pair] for pair in pairs]
    scores = [[math.log10(x.values("max_score", max)[-1][1]) for x in pair] for pair in pairs]
    losses = [[x.means()[-1][1] for x in pair] for pair in pairs]
    turns = [min(plain.means(), key=lambda x: x[1])[0] for plain, _ in pairs]
    first = [plain.alarms[0] if plain.alarms else sizes["steps"] for plain, _ in pairs]
    warned = [turn - alarm for turn, alarm in zip(turns, first, strict=True)]
    false = sum(len(normed.alarms) for _, normed in pairs)
    collapse = "mean relative entropy at the end, without QK-norm minus with"
    growth = "largest score at the end, without to with, as a power of ten"
    loss = "loss at the end, without minus with, in nats"
    warning = "steps from the first alarm until the loss stops falling, without QK-norm"
    checks = [
        estimated(collapse, [a - b for a, b in entropies], "<", 0.0, "no difference", over),
        estimated(growth, [a - b for a, b in scores], ">", 1.0, "ten times as large", over),
        estimated(loss, [a - b for a, b in losses], ">", 0.0, "no difference", over),
        estimated(warning, warned, ">", 0.0, "no warning ahead", over),
        counted("alarms with QK-norm", false, "<", 1, "one alarm"),
    ]
    names = dict(zip(("without QK-norm", "with"), pairs[0], strict=True))
    marks = {"first alarm": float(first[0])}
    least = {name: [[x, max(y, 1e-6)] for x, y in one.values("entropy", min)] for name, one in names.items()}
    top = {name: one.values("max_score", max) for name, one in names.items()}
    charts = [
        Chart(
            "Loss",
            "step",
            "nats",
            {name: one.means()[::5] for name, one in names.items()},
            marks=marks,
        ),
        Chart("Largest score", "step", "", top, marks=marks, log_y=True),
        Chart("Least entropy of a head", "step", "nats, from 10⁻⁶", least, marks=marks, log_y=True),
    ]
    note = f"First alarms at steps {first}, and least mean losses at steps {[int(x) for x in turns]}."
    return Findings(checks, charts, note, sizes)
