"""`regard survey`: what every head of a model does over a whole corpus."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.parts.options import Device, ModelName
from regard.support.characters import escape


def survey(
    corpus: Annotated[Path, typer.Argument(help="A text file of any length.", show_default=False)],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The table to write: .parquet, .csv or .json.")
    ] = Path("survey.csv"),
    model: ModelName = "default",
    length: Annotated[int, typer.Option("--length", metavar="N", help="Tokens per window.")] = 1024,
    windows: Annotated[
        int | None,
        typer.Option(
            "--windows", metavar="N", help="Maximum number of windows. By default the whole corpus is read."
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Windows per forward pass.")] = 1,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            help="CPU threads per process. Results are bit-identical only for the same value.",
        ),
    ] = 1,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, even if there is an unfinished survey.")
    ] = False,
    examples: Annotated[
        int,
        typer.Option(
            "--examples",
            metavar="N",
            help="Strongest examples of each head to keep, in FILE.examples. 0 keeps none.",
        ),
    ] = 8,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Measure only part I of N, from 0, and write it to FILE.shards for --join.",
        ),
    ] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Put together what all shards have written, as one survey.")
    ] = False,
    device: Device = None,
) -> None:
    """Read a corpus window by window, and write what every head does over all of it.

    A survey that was stopped or killed continues when the same command is given again, and its numbers are
    the same to the last bit. So are those of several processes, started with torchrun, and those of shards,
    which any scheduler can start, each alone, and --join puts together. While it runs, no other survey can
    write to its file. Open what it found with `regard inspect --survey FILE`.

    \b
    Examples:
      regard survey book.txt
      regard survey book.txt --model smollm2 --out survey.parquet
      torchrun --nproc-per-node 4 --no-python \\
        regard survey corpus.txt --out survey.parquet
      regard survey corpus.txt --shard 0/8   (to 7/8, on any machines)
      regard survey corpus.txt --join
    """
    from rich.console import Console

    from regard.cli.parts.model import Model
    from regard.cli.parts.progress_bar import progress_bar
    from regard.heads.corpus_survey.survey import (
        Shard,
        SurveyModel,
        SurveyPlan,
        check_out,
        join_survey,
        survey_shard,
    )
    from regard.heads.corpus_survey.survey import survey as run
    from regard.heads.corpus_survey.survey_chunks import chunk_folder
    from regard.recorder.tokens_of_maps.tokens import decode_vocabulary
    from regard.support.files import TextFileError, check_regular_file
    from regard.support.processes import process_group

    for name, value, least in (("length", length, 2), ("batch", batch, 1), ("threads", threads, 1)):
        if value < least:
            raise ValueError(f"--{name}: expected at least {least}, got {value}")
    part = None if shard is None else Shard.parse(shard)
    if join and part is not None:
        raise ValueError("--join: expected it without --shard, once all shards have ended")
    check_regular_file(corpus, TextFileError, "a text file as the corpus")
    with process_group(device) as ranks:
        if ranks.world_size > 1 and (join or part is not None):
            raise ValueError(f"--shard, --join: expected one process, got {ranks.world_size} of torchrun")
        # Rank 0 alone writes the table, and its error is raised on every rank.
        ranks.on_main(lambda: check_out(out))  # before the model is opened
        opened = Model.open(model).to(ranks.device)
        reader = SurveyModel(
            opened.title,
            opened.maps,
            opened.encode,
            opened.start,
            opened.digest(),
            ranks.device,
            lambda ids: decode_vocabulary(opened.tokenizer, ids),
        )
        plan = SurveyPlan(corpus, min(length, opened.context or length), batch, windows, threads, examples)
        words = Console(stderr=True, quiet=not ranks.is_main)
        size = corpus.stat().st_size

        def show(report: Callable[[int, int], None]) -> Callable[[int, int], None]:
            """Report percents of the corpus, or of as many windows as were asked for."""
            return lambda done, read: report(
                round(100 * max(read / size, done / windows if windows else 0.0)), 100
            )

        try:
            if part is not None:
                with progress_bar(words, "reading the corpus") as report:
                    chunks = survey_shard(reader, plan, out, part, fresh=fresh, report=show(report))
                folder = escape(str(chunk_folder(out)))
                typer.echo(f"{folder}: shard {shard}, {chunks} chunks; when all are there: --join", err=True)
                return
            with progress_bar(words, "reading the corpus") as report:
                if not join:
                    table = run(reader, plan, out, ranks=ranks, fresh=fresh, report=show(report))
                else:
                    table = join_survey(reader, plan, out)
        # The chunks that are complete are saved: the same command goes on after them.
        except KeyboardInterrupt:
            if ranks.is_main:
                # --fresh would start again and throw away what was saved.
                again = shlex.join(["regard", *(word for word in sys.argv[1:] if word != "--fresh")])
                with suppress(OSError):  # the terminal may be gone
                    typer.echo(escape(f"stopped; go on with: {again}"), err=True)
            raise typer.Exit(130) from None
        if table is not None:
            named = sum(bool(row.labels) for row in table)
            typer.echo(
                f"{escape(str(out))}: {len(table)} heads over {table.texts:,} windows, "
                f"{table.tokens:,} tokens; {named} have a label",
                err=True,
            )
            if examples:
                typer.echo(f"Open it: regard inspect --survey {escape(shlex.quote(str(out)))}", err=True)
