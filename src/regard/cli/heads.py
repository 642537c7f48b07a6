"""`regard heads`: what every head of a model does with a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.text import Text
from torch import Tensor

from regard.cli.parts.demo_text import STORY
from regard.cli.parts.input_texts import cut_windows, read_texts
from regard.cli.parts.model import Model
from regard.cli.parts.output import progress_bar
from regard.heads import HeadTable, study
from regard.heads.tables.table_text import caption, check_label, summary_text
from regard.interventions import importance
from regard.recorder.tokens_of_maps.tokens import decode_tokens
from regard.support.characters import escape
from regard.support.table import check_writable

CLEAREST = 3  # heads of each kind that are shown


def heads(
    *,
    model: str,
    text: list[str] | None,
    file: list[Path] | None,
    length: int,
    windows: int,
    probe: bool,
    shuffle: bool,
    label: str | None,
    top: int | None,
    measure_importance: bool,
    every: bool,
    json_file: Path | None,
    csv_file: Path | None,
) -> None:
    """Show what the heads of a model do: the clearest of each kind, with their scores and baselines."""
    # Before the model is opened, which may take minutes.
    for path in (json_file, csv_file):
        if path is not None:
            check_writable(path)
    if every and (label is not None or top is not None):
        raise ValueError("--all: expected without --label and --top, since it shows every head")
    if label is not None:
        check_label(label)
    if top is not None and top < 1:
        raise ValueError(f"--top: expected at least 1, got {top}")
    texts = read_texts(text, file, STORY)
    words = Console(stderr=True, highlight=False, soft_wrap=True)
    with words.status(Text(f"opening {escape(model)}")) as status:
        opened = Model.open(model)
        ids = cut_windows(opened, texts, length, windows)
        table, uncertified = _study(opened, ids, probe, shuffle, status)
    if measure_importance:
        with progress_bar(words, "cutting every head alone") as report:
            table = table.join(importance(opened.module, ids, report=report))
    if json_file is not None:
        table.save(json_file)
    if csv_file is not None:
        table.save(csv_file)
    Console(highlight=False).print(_title(table))
    typer.echo()
    if every:
        typer.echo(f"{table}\n\n{caption(table)}")
    else:
        limit = CLEAREST if top is None and label is None else top
        key_texts = _key_texts(opened, ids, table)
        typer.echo(summary_text(table, top=limit, label=label, key_texts=key_texts))
    for line in uncertified:
        words.print(Text(escape(line), style="bold yellow"))


def _study(
    model: Model, ids: list[Tensor], probe: bool, shuffle: bool, status: Any
) -> tuple[HeadTable, list[str]]:
    """The table, and what is to be said of layers that could not be certified."""
    doubts: dict[str, str] = {}

    def heard(seen: Any) -> None:
        # A layer is read several times (text, shuffled text, repeats): its first doubt is enough, hence
        # setdefault.
        for layer in seen.layers:
            if not layer.evidence.certified:
                doubts.setdefault(layer.key, f"layer {layer.key}: {layer.evidence}")
        for name, kind in seen.missing.items():
            doubts.setdefault(name, f"{name}: {kind} mixes tokens, and could not be captured")
        for name, kind in seen.other_mixers.items():
            doubts.setdefault(name, f"{name}: {kind} mixes tokens in another way than by attention")

    table = study(
        lambda ids: model.maps(ids, heard),
        ids,
        model.vocab_size,
        model.boundary,
        shuffle=shuffle,
        probe=probe,
        max_length=model.context,
        model=model.title,
        report=lambda message: status.update(Text(escape(f"{model.title}: {message}"))),
    )
    return (
        table.with_token_texts(
            # On the CPU, also under torch.set_default_device, as the other ids of the command are.
            lambda token: decode_tokens(model.tokenizer, torch.tensor([[token]], device="cpu"))[0][0]
        ),
        list(doubts.values()),
    )


def _title(table: HeadTable) -> Any:
    """The line above the heads: how many of them have a label, on how much text."""
    labelled = sum(bool(row.labels) for row in table)
    texts = f"{table.texts} texts, " if table.texts > 1 else ""
    return Text.assemble(
        (escape(table.model), "bold"),
        f": {labelled} of {len(table)} heads have a label ",
        (f"({texts}{table.tokens:,} tokens)", "dim"),
    )


def _key_texts(model: Model, ids: list[Tensor], table: HeadTable) -> dict[int, str]:
    """The texts of the tokens that are sinks, where one text was read."""
    # A sink is a position, and the token at one position differs from text to text.
    if len(ids) > 1:
        return {}
    keys = sorted({row.sink_key for row in table if row.sink_key is not None})
    tokens = decode_tokens(model.tokenizer, ids[0][None])[0]
    return {key: tokens[key] for key in keys}
