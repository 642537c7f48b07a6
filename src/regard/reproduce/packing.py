"""What leaking documents do to a model (Zhao et al. 2024): two GPTs, packed with and without isolation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.attention.masks.named_masks import documents
from regard.gpt import GPT
from regard.gpt.training.evaluation import next_token_loss
from regard.reproduce.chart import Chart, bar_chart
from regard.reproduce.record import Findings, PublishedResult, RunOptions, estimated
from regard.reproduce.small_gpt import make_gpt, read_corpus, token_losses, train_steps

ABOUT = PublishedResult(
    title="A model that is trained on packed documents without isolation is distracted by them",
    papers=(
        "Zhao et al. 2024, Analysing The Impact of Sequence Composition on Language Model Pre-Training, "
        "arXiv:2402.13991",
    ),
    claim="""Under plain causal masking, documents that are packed into one sequence are attended to across
their borders, which distracts the model; masking other documents improves it.""",
    method="""Two GPTs from the same seed see the same packed windows of PyTorch's sources: unrelated
pieces of equal length, once with attention across pieces and once isolated by a mask. Both are tested on
held-out pieces, alone and after other pieces; and on a piece after a copy of itself.""",
    limits="""Small models and one text. Pieces are cut at equal lengths, so that a border can be learned
from the position; the paper packs documents of any length, and its models are a thousand times larger. The
intervals are over texts, for one pair of models: another training of the pair may give another verdict, since
the first two differences are a few hundredths of a nat. The isolated model has never seen a key further back
than a piece: that it gains less from a copy shows that it cannot use one, not that the other has learned to
copy.""",
)
QUICK = {"steps": 200, "layers": 2, "width": 32, "piece": 24, "pieces": 3, "batch": 8, "texts": 48}
FULL = {"steps": 3000, "layers": 6, "width": 256, "piece": 64, "pieces": 4, "batch": 64, "texts": 256}


def run(options: RunOptions) -> Findings:
    """Train both models on the same windows, and compare them on held-out pieces."""
    sizes = QUICK if options.quick else FULL
    length, count = sizes["piece"], sizes["pieces"]
    corpus = read_corpus(length, None, not options.quick, options.device)
    owner = torch.arange(count, device=options.device).repeat_interleave(length)
    mask = documents(owner.expand(sizes["batch"], -1))
    models: dict[str, GPT] = {}
    curves: dict[str, list[list[float]]] = {}
    for name in ("leaking", "isolated"):
        torch.manual_seed(options.seed)
        model = make_gpt(
            options.device,
            vocab_size=corpus.vocab_size,
            context_length=length * count,
            num_layers=sizes["layers"],
            num_heads=4,
            d_model=sizes["width"],
        )

        def loss_of(ids: Tensor, targets: Tensor, model: GPT = model, name: str = name) -> Tensor:
            return next_token_loss(model(ids, mask=mask if name == "isolated" else None), targets)

        batches = (
            pack(corpus.train, sizes["batch"], sizes, options.seed, step) for step in range(sizes["steps"])
        )
        curves[name] = []
        for step, loss in train_steps(model, batches, 1e-3, loss_of):
            if step % max(sizes["steps"] // 100, 1) == 0:
                curves[name].append([float(step), loss])
        models[name] = model.eval()
        options.report(f"{name}: training loss {curves[name][-1][1]:.3f}")
    return judge(models, corpus.validation, curves, sizes, options.seed)


def pack(tokens: Tensor, batch: int, sizes: dict[str, Any], seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, pieces · length): pieces from random places, each with its own next tokens."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
    places = torch.randint(
        len(tokens) - sizes["piece"] - 1, (batch * sizes["pieces"], 1), generator=draw, device="cpu"
    )
    offsets = torch.arange(sizes["piece"] + 1, device="cpu")
    ids = tokens[(places + offsets).to(tokens.device)].long()
    return ids[:, :-1].reshape(batch, -1), ids[:, 1:].reshape(batch, -1)


def judge(
    models: dict[str, GPT], tokens: Tensor, curves: dict[str, Any], sizes: dict[str, Any], seed: int
) -> Findings:
    """The loss of a piece alone, after other pieces and after its own copy, for both models."""
    length, texts = sizes["piece"], sizes["texts"]
    ids, _ = pack(tokens, texts, sizes, seed, 10_000_000)
    last = ids[:, -length:]
    inputs = {"alone": last, "after other pieces": ids, "after its copy": torch.cat([last, last], 1)}
    losses = {
        name: {kind: token_losses(model, x)[:, 1 - length :].mean(1).cpu() for kind, x in inputs.items()}
        for name, model in models.items()
    }
    leaking, isolated = losses["leaking"], losses["isolated"]
    across = across_share(models["leaking"], ids, length)
    over = f"{texts} texts"
    quality = "loss of a piece alone, trained with leaks minus isolated"
    mixed = "loss after other pieces minus alone, of the model that was trained with leaks"
    copied = "loss of a piece alone minus after its copy, trained with leaks beyond isolated"
    gain = {name: found["alone"] - found["after its copy"] for name, found in losses.items()}
    checks = [
        estimated(quality, leaking["alone"] - isolated["alone"], ">", 0.0, "no difference", over),
        estimated(mixed, leaking["after other pieces"] - leaking["alone"], ">", 0.0, "no distraction", over),
        estimated(copied, gain["leaking"] - gain["isolated"], ">", 0.0, "no difference", over),
    ]
    heights = {name: [x.mean() for x in found.values()] for name, found in losses.items()}
    charts = [
        Chart("Training loss", "step", "nats", curves),
        bar_chart("Loss of a held-out piece", "nats", heights, tuple(inputs)),
    ]
    note = f"""Trained with leaks, {float(across.mean()):.0%} of the attention of a last piece goes to other
pieces, and its loss alone is {float(leaking["alone"].mean()):.3f}, isolated
{float(isolated["alone"].mean()):.3f}."""
    return Findings(checks, charts, note, sizes)


@torch.no_grad()
def across_share(model: GPT, ids: Tensor, length: int) -> Tensor:
    """The share (texts,) of the last piece's attention that goes to earlier pieces, over layers and heads."""
    shares = []
    for text in ids:
        maps = model.maps(text[None])
        shares.append(
            torch.stack([m.to_dense()[..., -length:, :-length].sum(-1).mean() for m in maps]).mean()
        )
    return torch.stack(shares).cpu()
