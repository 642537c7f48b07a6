"""Causal models without position encodings know the order (Haviv et al. 2022), in GPTs trained here."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.reproduce.chart import Chart, format_means, points
from regard.reproduce.models import make_gpt, read_corpus, token_losses, train_curve, windows
from regard.reproduce.record import Findings, RunOptions, estimated

GAP = 0.1  # nats by which the loss without positions may be higher and still count as nearly as good


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Train both, shuffle the context of one, and probe its states."""
    corpus = read_corpus(sizes["context"], None, not options.quick, options.device)
    T, texts = sizes["context"], sizes["texts"]
    starts = torch.linspace(0, len(corpus.validation) - T - 1, texts, device="cpu").long().tolist()
    ids = torch.stack([corpus.validation[start : start + T] for start in starts]).long()
    models: dict[str, GPT] = {}
    curves: dict[str, list[list[float]]] = {}
    for name in ("learned", "none"):
        torch.manual_seed(options.seed)
        model = make_gpt(options, corpus, sizes, positions="learned")
        if name == "none" and model.position_embedding is not None:
            torch.nn.init.zeros_(model.position_embedding.weight)  # and they stay so
            model.position_embedding.weight.requires_grad_(False)
        untrained = probe_errors(model.eval(), ids) if name == "none" else torch.zeros(0, device="cpu")
        batches = windows(corpus, sizes["steps"], sizes["batch"], options.seed)
        curves[name] = train_curve(model, batches, sizes["steps"])
        models[name] = model.eval()
        options.report(f"positions {name}: training loss {curves[name][-1][1]:.3f}")
    losses = {name: token_losses(model, ids).cpu() for name, model in models.items()}
    shuffled = token_losses(models["none"], shuffle_start(ids)).cpu()
    half = T // 2
    rise = shuffled[:, half:].mean(1) - losses["none"][:, half:].mean(1)
    gap = losses["none"].mean(1) - losses["learned"].mean(1)
    errors = probe_errors(models["none"], ids)
    over, held = f"{texts} texts", f"{len(errors)} held-out texts"
    noticed = "rise of the later half's loss if the earlier half is shuffled, without positions"
    read = "error of a position read from the last states, as a share of the length"
    checks = [
        estimated(noticed, rise, ">", 0.0, "a bag of tokens", over),
        estimated(read, errors.mean(1), "<", 0.25, "guessing the middle", held),
        estimated(
            "the same beyond the untrained model", (errors - untrained).mean(1), "<", 0.0, "none", held
        ),
        estimated("loss without positions minus with, in nats", gap, "<", GAP, "nearly as good", over),
    ]
    by_place = {name: points(loss.mean(0)) for name, loss in losses.items()}
    probe = {"trained": points(errors.mean(0)), "untrained": points(untrained.mean(0))}
    charts = [
        Chart("Training loss by positions", "step", "nats", curves),
        Chart("Loss by place in the text", "token", "nats", by_place),
        Chart("Error of a probe for the position", "token", "share of the length", probe, baseline=0.25),
    ]
    note = f"""Without positions the loss is {format_means(losses["none"])}, with learned ones
{format_means(losses["learned"])}; shuffling the earlier half adds {format_means(rise)} to the later one's."""
    return Findings(checks, charts, note, sizes)


def shuffle_start(ids: Tensor) -> Tensor:
    """The same tokens, the earlier half of each text in another order."""
    half = ids.shape[1] // 2
    order = torch.randperm(half, generator=torch.Generator().manual_seed(0), device="cpu").to(ids.device)
    return torch.cat([ids[:, :half][:, order], ids[:, half:]], 1)


@torch.no_grad()
def probe_errors(model: GPT, ids: Tensor) -> Tensor:
    """The error (texts, T) of a ridge regression from states to positions, fitted on other texts."""
    states = model.states(ids).double().cpu()  # (texts, T, d_model)
    states = torch.cat([states, torch.ones_like(states[..., :1])], -1)
    T = ids.shape[1]
    places = torch.linspace(0, 1, T, dtype=torch.float64, device="cpu").expand(states.shape[:2])
    half = len(ids) // 2
    x, y = states[:half].flatten(0, 1), places[:half].flatten()
    ridge = 1e-3 * len(x) * torch.eye(x.shape[1], dtype=torch.float64, device="cpu")
    weights = torch.linalg.solve(x.T @ x + ridge, x.T @ y)
    errors: Tensor = states[half:] @ weights - places[half:]
    return errors.abs()
