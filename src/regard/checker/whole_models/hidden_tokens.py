"""Whether padding reaches the outputs of a model's real tokens, whichever way its mask is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from regard.checker.reports.report import Check, Report
from regard.checker.subject import vocabulary
from regard.checker.subject.call_tensors import in_dtype
from regard.checker.whole_models.differences import add_mistake, where_differ
from regard.checker.whole_models.model_run import ModelRun, with_targets


def padding_argument(run: ModelRun) -> str | None:
    """Return the argument of a model of tokens that hides padding by a mask (B, T); None if it has none."""
    names = inspect.signature(run.module.forward).parameters
    name = next((n for n in names if n == "attention_mask" or vocabulary.argument(n) == "padding"), None)
    return None if name is None or "len" in name or run.draw(0).is_floating_point() else name


def meanings(name: str) -> list[Callable[[Tensor], Tensor]]:
    """Return the ways to write which tokens are visible, given as (B, T) with 1 for a visible token.

    In `attention_mask` 1 is a token. True in `key_padding_mask` hides in PyTorch, and shows in flash-attn.
    """
    if name == "attention_mask":
        return [lambda visible: visible]
    return [lambda visible: visible == 0, lambda visible: visible == 1]


def check_padding(report: Report, run: ModelRun) -> None:
    """Hide a token of each sequence by the model's padding mask, and change it: no other output may change.

    Each sequence hides another token, since a model may use the first one's mask for all. A model that was
    built here runs in float64, where `(1 - mask.float()) * torch.finfo(x.dtype).min` is NaN, and its users do
    not: NaN counts if it is there in float32, too.
    """
    name = padding_argument(run)
    if name is None:
        return
    problems = [_padding_problem(run, name, meaning) for meaning in meanings(name)]
    if "" not in problems and any(p and p.endswith("NaN") for p in problems) and not run.own:
        in_dtype(run.module, torch.float32)
        narrow = replace(run, call=partial(run.call, dtype=torch.float32), dtype=torch.float32)
        problems = [_padding_problem(narrow, name, meaning) for meaning in meanings(name)]
        in_dtype(run.module, run.dtype)
    if "" in problems:
        report.checks.append(Check("padding", "passed", f"a token that `{name}` hides changes nothing"))
    elif detail := next((problem for problem in problems if problem), None):
        add_mistake(report, "padding", detail, "" if detail.endswith("NaN") else "padded-keys-leak")
    else:
        report.checks.append(Check("padding", "skipped", f"`{name}` does not take (B, T) with 1 for a token"))


def _padding_problem(run: ModelRun, name: str, meaning: Callable[[Tensor], Tensor]) -> str | None:
    """Return what is wrong with a padding mask; "" if nothing is, None if the model does not take it."""
    names = inspect.signature(run.module.forward).parameters
    x = run.draw(4)
    B, T = x.shape
    hidden = torch.tensor([T // 2, min(T // 2 + 2, T - 1)], device=x.device)
    items = torch.arange(B, device=x.device)
    other, visible = x.clone(), torch.ones_like(x)
    # The other token is one of those that were drawn, which the model takes.
    other[items, hidden] = (x[items, hidden] + 1).where(x[items, hidden] < x.max(), x.min())
    visible[items, hidden] = 0
    more = with_targets(run, x)
    plain = None if more is None else run.outputs(x, **more)
    if plain is None or more is None:
        return None
    has_encoder = "decoder_input_ids" in names  # the mask is that of the encoder's text
    texts = [(x, {"input_ids": y}) if has_encoder else (y, {}) for y in (x, other)]
    unmasked, before, after = (
        run.outputs(y, **more, **text, **{name: meaning(mask)})
        for (y, text), mask in ((texts[0], torch.ones_like(x)), (texts[0], visible), (texts[1], visible))
    )
    if before is None or after is None:
        return None
    own = torch.zeros_like(visible, dtype=torch.bool) if has_encoder else visible == 0
    for outputs, number in ((unmasked, "no token"), (before, "one token")):
        if outputs is not None and bool((outputs.isnan().flatten(2).any(-1) & ~own).any()):
            return None if plain.isnan().any() else f"with `{name}` hiding {number}, its output is NaN"
    places = (where_differ(before, after) & ~own).nonzero()
    if not len(places):
        return ""
    item, row = places[0].tolist()
    return f"token {int(hidden[item])}, hidden by `{name}`, changes output {row}"
