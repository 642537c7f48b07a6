"""`regard cache`: what does a cache of bounded size lose of a model's attention?"""

from __future__ import annotations

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from regard.cli.parts.demo_text import STORY
from regard.cli.parts.input_texts import check_length, cut_windows, read_texts
from regard.cli.parts.model import Model
from regard.cli.parts.output import progress_bar
from regard.interventions import effect, evict
from regard.policies.retention import (
    RetentionCurve,
    cached_layers,
    draw_budgets,
    find_budgeted,
    number_of_keys,
    usual_budgets,
)
from regard.recorder import capture
from regard.recorder.model_inputs import model_inputs
from regard.support.characters import escape
from regard.support.files import check_target

BASELINES = ("random", "best")
PICTURES = (".png", ".svg", ".pdf")
SHOWN = 12  # heads that are named


def cache(
    *,
    model: str,
    text: list[str] | None,
    file: list[Path] | None,
    policy: str,
    budget: str | None,
    length: int,
    measure_loss: bool,
    page: Path | None,
    picture: Path | None,
    json_file: Path | None,
) -> None:
    """Show how much of the attention cache policies keep, beside random keys and the best possible choice."""
    # Before the model is opened, which may take minutes.
    for option, path, suffixes in (
        ("--json", json_file, (".json",)),
        ("--picture", picture, PICTURES),
        ("--page", page, (".html",)),
    ):
        if path is not None:
            check_target(option, path, suffixes)
    check_length(length)
    parse_budgets(budget, length)
    names = [name.strip() for name in policy.split(",")]
    find_budgeted(names)
    names += [name for name in BASELINES if name not in names]
    texts = read_texts(text, file, STORY)
    if len(texts) > 1:
        raise ValueError(f"text: expected one text to measure, got {len(texts)}")
    screen, words = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    with words.status(Text(f"opening {escape(model)}")):
        opened = Model.open(model)
        ids = cut_windows(opened, texts, length, 1)[0]
        whole = len(opened.encode(texts[0], whole=True))
        budgets = parse_budgets(budget, len(ids))
        inputs = model_inputs(opened.module, {"input_ids": ids[None]})
        seen = capture(opened.module, inputs=inputs, values=True, tokenizer=opened.tokenizer)
    total = len(seen) * len(names) * len(budgets)
    words.print(
        f"Measuring {', '.join(names)} with {', '.join(map(str, budgets))} keys in {len(seen)} layers"
    )
    with progress_bar(words, "measuring policies") as report:
        report(0, total)
        done = iter(range(1, total + 1))
        layers = cached_layers(seen.layers)
        curve = draw_budgets(layers, names, budgets, report=lambda: report(next(done), total))
    losses = None
    if measure_loss:
        with progress_bar(words, "running the model by each policy") as report:
            losses = _losses(opened.module, ids, names, budgets, report)
    cut = "" if whole <= len(ids) else f", the first of {whole:,}: --length reads more"
    screen.print(Text.assemble((escape(opened.title), "bold"), (f" ({len(ids):,} tokens{cut})\n", "dim")))
    screen.print(Text(str(curve)))
    for line in _sentences(curve, names, len(ids)):
        screen.print(Text(line))
    if losses is not None:
        screen.print(Text("\nrise of the loss, in nats"))
        for name, rises in losses.items():
            screen.print(Text(f"  {name:<18}" + "".join(f"{rise:>+9.3f}" for rise in rises)))
    if picture is not None:
        curve.figure(losses).savefig(picture, dpi=150)
    if page is not None:
        seen.to_html(page, retained=curve)
        typer.echo(f"Open {escape(str(page))}#view=cache in any browser: it needs no server and no network.")
    if json_file is not None:
        json_file.write_text(json.dumps(_as_json(curve, losses)), encoding="utf-8")


def parse_budgets(text: str | None, tokens: int) -> list[int]:
    """The budgets of an option: numbers with commas, or N:M for N, 2N, 4N and so on up to M.

    >>> parse_budgets("256:2048", 4096), parse_budgets("64,100", 4096), parse_budgets(None, 1024)
    ([256, 512, 1024, 2048], [64, 100], [64, 128, 256, 512])
    """
    if text is None:
        return usual_budgets(tokens)
    parts = text.split(":")
    numbers = parts if len(parts) == 2 else text.split(",")
    if not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
        raise ValueError(f"--budget: expected numbers of keys, as 256 or 256:8192, got {text!r}")
    if len(parts) != 2:
        return sorted({int(number) for number in numbers})
    first, last = map(int, parts)
    if last < first:
        raise ValueError(f"--budget: expected the smaller number first, got {text!r}")
    budgets = [first]
    while 2 * budgets[-1] <= last:
        budgets.append(2 * budgets[-1])
    return budgets


def _losses(
    model: nn.Module, ids: Tensor, names: list[str], budgets: list[int], report: object
) -> dict[str, list[float]]:
    """How much the loss rises when the model reads by a cache, for each policy and budget."""
    assert callable(report)
    losses: dict[str, list[float]] = {}
    total, done = len(names) * len(budgets), 0
    for name in names:
        losses[name] = []
        for budget in budgets:
            # An edit that changes nothing is refused, and changes no loss.
            rise = 0.0 if budget >= len(ids) else effect(model, [ids], evict(name, budget), draws=0).value
            losses[name].append(rise)
            done += 1
            report(done, total)
    return losses


def _sentences(curve: RetentionCurve, names: list[str], tokens: int) -> list[str]:
    """What to say beside the table: budgets beyond the text, and heads that need more than any budget."""
    lines = []
    if beyond := [budget for budget in curve.budgets if budget >= tokens]:
        lines.append(
            f"A budget of {number_of_keys(beyond[0])} holds the whole text, so that nothing is lost."
        )
    for name in names:
        needy = [
            f"{layer}.{head}"
            for (layer, head), need in zip(curve.places, curve.needed(name), strict=True)
            if need is None
        ]
        if needy and name not in BASELINES:
            more = f" and {len(needy) - SHOWN} more" if len(needy) > SHOWN else ""
            shown = ", ".join(needy[:SHOWN])
            most = number_of_keys(curve.budgets[-1])
            keep = "keeps" if len(needy) == 1 else "keep"
            lines.append(f"{name}: {shown}{more} {keep} less than 95% with {most}.")
    return lines


def _as_json(curve: RetentionCurve, losses: dict[str, list[float]] | None) -> dict[str, object]:
    """The curve as JSON, with null for a head that loses nothing."""

    def numbers(values: Tensor) -> list[float | None]:
        return [None if x != x else x for x in values.tolist()]  # JSON has no NaN

    return {
        "budgets": curve.budgets,
        "heads": [f"{layer}.{head}" for layer, head in curve.places],
        "policies": {
            name: {
                "share": [numbers(row) for row in curve.shares[n]],
                "error": [numbers(row) for row in curve.errors[n]],
                "budget for 95%": curve.needed(name),
                "rise of the loss": None if losses is None else losses[name],
            }
            for n, name in enumerate(curve.policies)
        },
    }
