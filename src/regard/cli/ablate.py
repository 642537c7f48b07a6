"""`regard ablate`: what changes when heads of a model are cut, beside random heads."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from regard.cli.parts.demo_text import UNFINISHED_STORY
from regard.cli.parts.input_texts import cut_windows, read_texts
from regard.cli.parts.model import Model
from regard.cli.parts.output import progress_bar
from regard.heads.tables.table_text import check_label
from regard.interventions import Edit, Effect, effect, intervene, mean_outputs
from regard.interventions import ablate as edit_heads
from regard.interventions.ablation import Replacement
from regard.interventions.metrics import next_token_logits
from regard.interventions.random_edits import ModelHeads, draw_edits
from regard.recorder.capture_block import capture
from regard.recorder.model_inputs import model_inputs
from regard.recorder.tokens_of_maps.tokens import decode_vocabulary
from regard.support.characters import escape

LIKELIEST = 10  # next tokens that are shown


def ablate(
    *,
    model: str,
    head: list[str] | None,
    label: str | None,
    text: list[str] | None,
    file: list[Path] | None,
    mean: bool,
    draws: int,
    seed: int,
    length: int,
    windows: int,
) -> None:
    """Cut heads of a model, and show the change of its loss and of the likeliest next tokens."""
    heads = _parse_heads(head or [], label)
    texts = read_texts(text, file, UNFINISHED_STORY)
    # Progress goes to stderr, so that `regard ablate > file` holds the result alone.
    screen, words = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    with words.status(Text(f"opening {escape(model)}")):
        opened = Model.open(model)
        ids = cut_windows(opened, texts, length, windows)
        by: Replacement = mean_outputs(opened.module, ids) if mean else "zero"
        edit = edit_heads(by=by, heads=heads).resolved(opened.module)
    with progress_bar(words, "cutting heads") as report:
        found = effect(opened.module, ids, edit, draws=draws, seed=seed, report=report)
        # The last window alone: the table is about one place, the end of the text.
        likely = _next_tokens(opened, ids[-1], edit, draws, seed)
    screen.print(_change_of_loss(opened, ids, found))
    screen.print()
    screen.print(_table(likely))


def _parse_heads(heads: list[str], label: str | None) -> Any:
    """The heads of the options as pairs (layer, head), or a label."""
    # Neither or both: the two options name the same thing.
    if bool(heads) == (label is not None):
        raise ValueError("--head: expected the heads to cut, as --head 5.3, or --label induction")
    if label is not None:
        return check_label(label)
    pairs = []
    for place in heads:
        # rpartition, since the name of a layer may hold dots itself (decoder.5).
        layer, _, number = place.rpartition(".")
        if not layer or not number.isdecimal():
            raise ValueError(f"--head: expected a layer and a head, as 5.3 or decoder.5.3, got {place!r}")
        pairs.append((layer, int(number)))
    return pairs


def _change_of_loss(model: Model, ids: list[Tensor], found: Effect) -> Any:
    """What is said of the loss: before and after, the interval, the random heads, and what follows."""
    tokens = sum(map(len, ids))
    texts = f"{len(ids)} texts, " if len(ids) > 1 else ""
    lines = Text.assemble(
        (escape(model.title), "bold"),
        f" with {escape(', '.join(found.edits))} ",
        (f"({texts}{tokens:,} tokens)\n\n", "dim"),
        f"loss          {found.plain:.3f} → {found.plain + found.value:.3f}  ",
        (f"{found.value:+.3f}", "bold"),
        " nats a token",
        ("" if math.isnan(found.low) else f"  (95% {found.low:+.3f} to {found.high:+.3f} over texts)", "dim"),
    )
    n = len(found.baseline)
    if n < 2:
        one = f"{found.baseline[0]:+.3f}  (one random set, too few for a band)" if n else ""
        return lines.append(f"\nrandom heads  {one or 'none to compare with'}", style="dim")
    band = f"{'weak' if found.weak else '95%'} band of {n} sets of as many other heads"
    band += ", of other layers too" if found.other_layers else ""
    lines.append(f"\nrandom heads  {found.baseline_low:+.3f} to {found.baseline_high:+.3f}  ")
    lines.append(f"({band})\n", style="dim")
    verdict = (
        "That is more than random heads do."
        if found.beyond_baseline
        else "That is no more than random heads do."
    )
    return lines.append(verdict, style="bold")


class NextToken(NamedTuple):
    """A likely next token, with its probability before and after the edit, and after random ones."""

    text: str
    before: float
    after: float
    random: float


def _next_tokens(model: Model, ids: Tensor, edit: Edit, draws: int, seed: int) -> list[NextToken]:
    """The likeliest tokens after a text before the edit, and those that are among them after it."""
    before, after = _probabilities(model.module, ids), _probabilities(model.module, ids, edit)
    seen = capture(model.module, inputs=model_inputs(model.module, {"input_ids": ids[None]}))
    heads = ModelHeads.of(seen.layers)
    random = [_probabilities(model.module, ids, *edits) for edits in draw_edits([edit], heads, draws, seed)]
    # With as many heads as the layer has there are no others to draw, and the column stays empty.
    by_chance = torch.stack(random).mean(0) if random else torch.full_like(before, torch.nan)
    k = min(LIKELIEST, len(before))
    # dict.fromkeys keeps the order of the first list, and drops the tokens that are likely both before and
    # after.
    tokens = list(dict.fromkeys([*before.topk(k).indices.tolist(), *after.topk(k).indices.tolist()]))
    texts = decode_vocabulary(model.tokenizer, ids.new_tensor(tokens))
    return [
        NextToken(text, float(before[token]), float(after[token]), float(by_chance[token]))
        for token, text in zip(tokens, texts, strict=True)
    ]


def _probabilities(model: nn.Module, ids: Tensor, *edits: Edit) -> Tensor:
    """The probability of each token after a text, (V,), with the model edited."""
    with torch.no_grad(), intervene(model, *edits) if edits else nullcontext():
        output = model(**model_inputs(model, {"input_ids": ids[None]}))
    # float: a softmax over a large vocabulary in bfloat16 has two to three digits, too few for a change of
    # 0.1 %.
    return next_token_logits(output, ids)[-1].float().softmax(-1).cpu()


def _table(tokens: list[NextToken]) -> Any:
    """The likeliest next tokens; those that the edit brings in come last."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("next token", no_wrap=True)
    for name in ("before", "after", "change", "random heads"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, token in enumerate(tokens):
        if number == LIKELIEST:
            table.add_row(Text("likely after the cut only", style="dim"))
        change = token.after - token.before
        random = "" if math.isnan(token.random) else f"{token.random:.1%}"
        cells = f"{token.before:.1%}", f"{token.after:.1%}", f"{100 * change:+.1f}", random
        # repr shows the spaces that tokens begin with; a change of 5 points stands out.
        table.add_row(Text(repr(escape(token.text))), *cells, style="bold" if abs(change) >= 0.05 else "")
    return table
