"""`regard heads`: what every head of a model does with a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.parts.demo_text import STORY
from regard.cli.parts.input_texts import cut_windows, read_texts
from regard.cli.parts.options import Files, ModelName, MostWindows, Texts, WindowLength
from regard.support.characters import escape

if TYPE_CHECKING:
    from torch import Tensor

    from regard.cli.parts.model import Model
    from regard.heads import HeadTable

CLEAREST = 3  # heads of each kind that are shown


def heads(
    model: ModelName = "default",
    text: Texts = None,
    file: Files = None,
    length: WindowLength = 1024,
    windows: MostWindows = 8,
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
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="NAME", help="Show every head with this label, the clearest first."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option("--top", metavar="N", help="Show N heads of each kind, by default 3."),
    ] = None,
    measure_importance: Annotated[
        bool,
        typer.Option(
            "--importance", help="Also cut every head alone, and show how much the loss rises (slow)."
        ),
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show every head of the model, in its order, with all labels.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE.json", help="Write every score of every head to a JSON file."),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write the same as a CSV table.")
    ] = None,
) -> None:
    """Show what the heads of a model do: the clearest of each kind, with their scores and baselines.

    Without a text, it reads a short story in which names and phrases are repeated.

    \b
    Examples:
      regard heads
      regard heads --model smollm2 --file letter.txt
      regard heads --text "The cat sat because the cat was tired." --all
      regard heads --model smollm2 --top 10
      regard heads --importance
      regard heads --model Qwen/Qwen3-0.6B --label induction --json heads.json
    """
    from rich.console import Console
    from rich.text import Text

    from regard.cli.parts.model import Model
    from regard.cli.parts.progress_bar import progress_bar
    from regard.heads.tables.table_text import caption, check_label, summary_text
    from regard.interventions import importance
    from regard.support.table import check_writable

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
    import torch
    from rich.text import Text

    from regard.heads import study
    from regard.recorder.tokens_of_maps.tokens import decode_tokens

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
    from rich.text import Text

    labelled = sum(bool(row.labels) for row in table)
    texts = f"{table.texts} texts, " if table.texts > 1 else ""
    return Text.assemble(
        (escape(table.model), "bold"),
        f": {labelled} of {len(table)} heads have a label ",
        (f"({texts}{table.tokens:,} tokens)", "dim"),
    )


def _key_texts(model: Model, ids: list[Tensor], table: HeadTable) -> dict[int, str]:
    """The texts of the tokens that are sinks, where one text was read."""
    from regard.recorder.tokens_of_maps.tokens import decode_tokens

    # A sink is a position, and the token at one position differs from text to text.
    if len(ids) > 1:
        return {}
    keys = sorted({row.sink_key for row in table if row.sink_key is not None})
    tokens = decode_tokens(model.tokenizer, ids[0][None])[0]
    return {key: tokens[key] for key in keys}
