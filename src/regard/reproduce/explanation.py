"""Attention is (not) not explanation: other patterns with the same output (Jain & Wallace 2019)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.interventions import Edit, ablate
from regard.recorder import capture
from regard.reproduce.chart import Chart, points
from regard.reproduce.models import edited, open_model, read_texts
from regard.reproduce.record import Findings, RunOptions, counted, estimated

OTHER = 0.1  # total variation from which a pattern counts as another


class Replaced(NamedTuple):
    """What replacing the pattern of one layer's heads changes, in one text."""

    same_output: float  # total variation of the weights, where the output is equal
    same_change: float  # of the predictions, then
    dealt: float  # total variation of the weights, if they are dealt to other keys
    dealt_change: float


def run(options: RunOptions, sizes: dict[str, Any]) -> Findings:
    """Replace patterns in some layers of every text."""
    model = open_model(options)
    ids = read_texts(model, sizes["texts"], sizes["length"])
    layers = torch.linspace(0, model.config.num_layers - 1, sizes["layers"], device="cpu").long().tolist()
    found: list[list[Replaced]] = []
    for number, text in enumerate(ids):
        generator = torch.Generator().manual_seed(options.seed + number)
        found.append([])
        for layer in layers:  # a minute each on a CPU
            options.report(f"text {number + 1} of {len(ids)}, layer {layer}")
            found[-1].append(replace_layer(model, text, layer, generator))
    return judge(torch.tensor(found, device="cpu"), layers, sizes)


@torch.no_grad()
def replace_layer(model: GPT, text: Tensor, layer: int, generator: torch.Generator) -> Replaced:
    """Replace the last token's patterns in one layer, in both ways."""
    seen = capture(model, inputs=(text[None],), values=True)
    weights = seen[layer][0, :, -1].double().cpu()  # (H, S)
    values = seen.layers[layer].values
    assert values is not None
    v = values[0].double().cpu().repeat_interleave(len(weights) // values.shape[1], 0)  # (H, S, E)
    same = torch.stack([same_output(a, x) for a, x in zip(weights, v, strict=True)])
    dealt = weights[:, torch.randperm(weights.shape[1], generator=generator, device="cpu")]
    plain = predict(model, text)
    changes = []
    for pattern in (same, dealt):
        output = (pattern.unsqueeze(1) @ v).float()  # (H, 1, E)
        edit = ablate(layer, list(range(len(weights))), output[None].to(text.device), positions=len(text) - 1)
        weights_change = float((pattern - weights).abs().sum(-1).mean() / 2)
        changes += [weights_change, float((predict(model, text, edit) - plain).abs().sum() / 2)]
    return Replaced(*changes)


def same_output(weights: Tensor, values: Tensor) -> Tensor:
    """Other weights (S,) with the same sum and the same output, of E + 1 keys at most; values are (S, E)."""
    weights = weights.clone()
    conditions = torch.cat([values, values.new_ones(len(values), 1)], 1)  # (S, E + 1)
    keys = weights.nonzero().flatten()
    while len(keys) > conditions.shape[1]:
        # A direction among the largest weights in which neither the output nor the sum changes.
        chosen = keys[weights[keys].argsort(descending=True)[: conditions.shape[1] + 1]]
        direction = torch.linalg.svd(conditions[chosen].T, full_matrices=True).Vh[-1]
        direction = direction if direction[0] > 0 else -direction  # away from the largest weight
        falling = direction > 0
        steps = weights[chosen][falling] / direction[falling]
        weights[chosen] = (weights[chosen] - steps.min() * direction).clamp(min=0.0)
        weights[chosen[falling][steps.argmin()]] = 0.0
        keys = weights.nonzero().flatten()
    return weights


@torch.no_grad()
def predict(model: GPT, text: Tensor, *edits: Edit) -> Tensor:
    """The probabilities of the next token, (V,)."""
    with edited(model, edits):
        return model.logits(model.states(text[None])[0, -1]).double().softmax(-1).cpu()


def judge(found: Tensor, layers: list[int], sizes: dict[str, Any]) -> Findings:
    """Compare both replacements, (texts, layers, 4)."""
    same, same_change, dealt, dealt_change = found.mean(1).T  # (texts,) each
    texts = f"{sizes['texts']} texts"
    checks = [
        estimated("change of the weights at the same output", same, ">", OTHER, "another pattern", texts),
        counted("largest change of a prediction by it", float(found[..., 1].max()), "<", 1e-3, "nothing"),
        estimated(
            "change of the predictions by dealt weights", dealt_change, ">", 0.01, "one in a hundred", texts
        ),
    ]  # fmt: skip
    same_weights, same_predictions, dealt_weights, dealt_predictions = (
        points(x, layers) for x in found.mean(0).T
    )
    patterns = {"weights, same output": same_weights, "weights, dealt": dealt_weights}
    predictions = {"same output": same_predictions, "dealt": dealt_predictions}
    charts = [
        Chart("How different the patterns are", "layer", "total variation", patterns),
        Chart("What that changes of the prediction", "layer", "total variation", predictions),
    ]
    moved = [float(x.mean()) for x in (same, same_change, dealt, dealt_change)]
    note = (
        f"At the same output {moved[0]:.0%} of the weight and {moved[1]:.1g} of the prediction move; "
        f"if the weights are dealt, {moved[2]:.0%} and {moved[3]:.2g}."
    )
    return Findings(checks, charts, note, sizes)
