"""`regard heads`: what every head of a model does with a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Files, ModelName, Texts
from regard.escapes import escape

if TYPE_CHECKING:
    from regard.cli.model import Model
    from regard.heads import HeadTable

STRONGEST = ("previous_token", "induction", "induction_on_repeats", "duplicate", "sink")


def heads(
    model: ModelName = "default",
    text: Texts = None,
    file: Files = None,
    length: Annotated[
        int, typer.Option("--length", metavar="N", help="Read longer texts in windows of N tokens.")
    ] = 1024,
    windows: Annotated[
        int, typer.Option("--windows", metavar="N", help="Maximum number of windows, from the beginning.")
    ] = 8,
    probe: Annotated[
        bool,
        typer.Option("--probe/--no-probe", help="Also read repeated random tokens (Olsson et al. 2022)."),
    ] = True,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle/--no-shuffle", help="Also read the text with its tokens shuffled, as a baseline."
        ),
    ] = True,
    every: Annotated[bool, typer.Option("--all", help="Also show the heads without a label.")] = False,
    label: Annotated[
        str | None, typer.Option("--label", metavar="NAME", help="Show only the heads with this label.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE.json", help="Write every score of every head to a JSON file."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write the same as a CSV table.")
    ] = None,
) -> None:
    """Show what every head of a model does: its scores, their baselines, and labels where they are clear.

    Without a text, it reads a short story in which names and phrases are repeated.

    \b
    Examples:
      regard heads
      regard heads --model smollm2 --file letter.txt
      regard heads --text "The cat sat because the cat was tired." --all
      regard heads --model Qwen/Qwen3-0.6B --label induction --json heads.json
    """
    from rich.console import Console
    from rich.text import Text

    from regard.cli.model import Model
    from regard.heads.table import check_writable

    for path in (json_file, csv_file):
        if path is not None:
            check_writable(path)
    texts = _texts(text or [], file or [])
    screen, words = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)
    with words.status(Text(f"opening {escape(model)}")) as status:
        opened = Model.open(model)
        found, uncertified = _studied(opened, texts, length, windows, probe, shuffle, status)
    if json_file is not None:
        found.save(json_file)
    if csv_file is not None:
        found.save(csv_file)
    _print(screen, found, every, label)
    for line in uncertified:
        words.print(Text(escape(line), style="bold yellow"))


def _studied(
    model: Model, texts: list[str], length: int, most: int, probe: bool, shuffle: bool, status: Any
) -> tuple[HeadTable, list[str]]:
    """The table, and what is to be said of layers that could not be certified."""
    import torch
    from rich.text import Text

    from regard.heads import study

    length = min(length, model.context or length)
    if length < 2 or most < 1:
        raise ValueError(f"--length: expected at least 2 tokens, and --windows 1, got {length} and {most}")
    ids = []
    for text in texts:
        found = model.encode(text, whole=True)
        lead = [] if model.start is None else [model.start]
        first, room = found[:length], length - len(lead)
        ids.append(torch.tensor(first))
        later = range(length, len(found) - room + 1, room)
        ids += [torch.tensor(lead + found[i : i + room]) for i in later]
    ids = [some for some in ids if len(some) > 1][:most]
    if not ids:
        raise ValueError("text: expected at least two tokens to look at")
    doubts: dict[str, str] = {}

    def heard(seen: Any) -> None:
        for layer in seen.layers:
            if not layer.evidence.certified:
                doubts.setdefault(layer.key, f"layer {layer.key}: {layer.evidence}")
        for name, kind in seen.missing.items():
            doubts.setdefault(name, f"{name}: {kind} mixes tokens, and could not be captured")

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
    return table, list(doubts.values())


def _texts(texts: list[str], files: list[Path]) -> list[str]:
    from regard.cli.demo_text import STORY
    from regard.gpt.training.corpus import read

    return [*texts, *(read(path) for path in files)] or [STORY]


def _print(screen: Any, table: HeadTable, every: bool, label: str | None) -> None:
    from rich.text import Text

    from regard.heads.table_text import caption, number, words

    labelled = [row for row in table if row.labels]
    texts = f"{table.texts} texts, " if table.texts > 1 else ""
    screen.print(
        Text.assemble(
            (escape(table.model), "bold"),
            f": {len(labelled)} of {len(table)} heads have a label ",
            (f"({texts}", "dim"),
            (f"{table.tokens:,} tokens)", "dim"),
        )
    )
    shown = table.where(label=label) if label else table if every else table.where(labelled=True)
    if len(shown):
        screen.print()
        screen.print(shown)
        screen.print()
        screen.print(Text(caption(shown), style="dim"))
    elif label:
        screen.print(f"none earns the label {escape(label)}", markup=False)
    strongest = Text("\nhighest\n", style="bold")
    for name in STRONGEST:
        if name in table.names:
            row = table.best(name, 1)[0]
            score = row.scores[name]
            on = " on repeats" if name.endswith("repeats") else ""
            strongest.append(f"  {words(name) + on:<22}", style="default")
            strongest.append(f"{number(score.value):>5}", style="bold")
            strongest.append(
                f"  layer {escape(str(row.key))} head {row.head}  (uniform {number(score.null)})\n",
                style="dim not bold",
            )
    screen.print(strongest, end="")
