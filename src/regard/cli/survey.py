"""`regard survey`: what every head of a model does over a whole corpus."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import typer
from rich.console import Console

from regard.cli.parts.model import Model
from regard.cli.parts.output import progress_bar
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
from regard.support.characters import escape
from regard.support.files import TextFileError, check_regular_file
from regard.support.processes import process_group


def survey(
    *,
    corpus: Path,
    out: Path,
    model: str,
    length: int,
    windows: int | None,
    batch: int,
    threads: int,
    fresh: bool,
    examples: int,
    shard: str | None,
    join: bool,
    device: str | None,
) -> None:
    """Read a corpus window by window, and write what every head does over all of it."""
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
