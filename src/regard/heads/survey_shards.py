"""A survey in shards, which any scheduler can start: each measures some chunks of a corpus and writes them.

Shard i of n measures every n-th chunk, from chunk i on, and writes each to a file in a folder beside the
table. Shards do not know each other, and none waits: one that was killed is started again, and goes on after
the chunks that are there. `join_survey` adds the chunks in their order, as `survey` does, so that the result
has the same bytes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from regard.atomic import check_folder_writable
from regard.file_lock import FileLock
from regard.files import SurveyFileError, get_field, naming_errors, parse_object
from regard.heads.measurement import CHUNK
from regard.heads.survey import (
    SurveyModel,
    SurveyPlan,
    make_result,
    measure_batch,
    set_threads,
    take_file,
    write_results,
)
from regard.heads.survey_progress import (
    BatchSums,
    SurveyProgress,
    batch_tensors,
    check_settings,
    count_batches,
    decode_batches,
)
from regard.heads.table import HeadTable, check_writable
from regard.safetensor_files import read_safetensors, write_safetensors
from regard.stop_signals import stop_on_signal

FORMAT = "regard.survey chunk 1"
MAX_SHARDS = 1 << 20
NAMED = 8  # chunks that an error names


class Shard(NamedTuple):
    """Shard `number`, from 0, of `of` shards."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "0/4"."""
        match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 0 <= shard.number < shard.of <= MAX_SHARDS:
            raise ValueError(f"shard: expected i/n, with i from 0 to n - 1, such as 0/4, got {text!r}")
        return shard


class Chunk(NamedTuple):
    """Consecutive batches of a corpus, and how many windows come before them."""

    number: int
    batches: list[Any]
    windows_before: int


def chunk_folder(out: Path) -> Path:
    """The folder with the chunks of a survey whose table will be in `out`."""
    return out.with_name(f"{out.name}.shards")


def chunk_file(out: Path, number: int) -> Path:
    """The file of one chunk."""
    return chunk_folder(out) / f"chunk-{number:06}.safetensors"


def survey_shard(
    model: SurveyModel,
    plan: SurveyPlan,
    out: Path,
    shard: Shard,
    *,
    fresh: bool = False,
    report: Callable[[SurveyProgress, int], None] = lambda progress, bytes_read: None,
) -> int:
    """Measure the chunks of one shard that are not there yet, and return how many chunks the shard has.

    `out` is the file of the table that `join_survey` will write. Ctrl-C, SIGTERM or SIGHUP end it with a
    KeyboardInterrupt after the batch that it measures; a chunk that is not complete is lost.
    """
    check_writable(out)
    folder = chunk_folder(out)
    check_folder_writable("out", out.absolute().parent)
    folder.mkdir(exist_ok=True)
    settings = plan.settings(model, model.device)
    own = 0
    with ExitStack() as stack:
        name = f".shard-{shard.number}-of-{shard.of}.lock"
        stack.enter_context(FileLock(folder / name, "out", out))
        stack.enter_context(set_threads(plan.threads))
        stop = stack.enter_context(stop_on_signal())
        for chunk in _chunks(model, plan):
            if chunk.number % shard.of != shard.number:
                continue
            own += 1
            file = chunk_file(out, chunk.number)
            if file.exists() and not fresh:
                read_chunk(file, settings)  # an error if it is of another survey
                continue
            progress, windows = SurveyProgress(), chunk.windows_before
            for ids, bytes_read in chunk.batches:
                batch, layers = measure_batch(model, ids, windows, plan.examples)
                progress, windows = progress.add(batch.counted(ids, layers)), windows + len(ids)
                report(progress, bytes_read)
                if stop.is_set():
                    raise KeyboardInterrupt
            total = progress.total
            assert total is not None  # a chunk has a batch
            header = {
                "format": FORMAT,
                "settings": json.dumps(settings),
                "batches": json.dumps(count_batches(total)),
            }
            write_safetensors(file, batch_tensors(total), header)
    return own


def _chunks(model: SurveyModel, plan: SurveyPlan) -> Iterator[Chunk]:
    """The chunks of a corpus, in order."""
    stream, windows = plan.batches(model), 0
    for number in count():
        group = list(islice(stream, CHUNK))
        if not group:
            return
        yield Chunk(number, group, windows)
        windows += sum(len(batch.ids) for batch in group)


def read_chunk(file: Path, settings: dict[str, Any]) -> BatchSums:
    """Read a chunk that a shard wrote; an error if it is damaged, or of a survey with other settings."""
    metadata, tensors = read_safetensors(file, [FORMAT], SurveyFileError)
    with naming_errors(file, SurveyFileError, " is damaged"):
        old_settings = parse_object(get_field(metadata, "settings", str))
        check_settings(file, settings, old_settings)
        return decode_batches(parse_object(get_field(metadata, "batches", str)), tensors)


def join_survey(model: SurveyModel, plan: SurveyPlan, out: Path) -> HeadTable:
    """Add up the chunks of all shards, write the table and the examples, and delete the chunks.

    A `SurveyFileError` names the chunks that are missing.
    """
    with take_file(out) as lock:
        settings = plan.settings(model, model.device)
        batches = [len(chunk.batches) for chunk in _chunks(model, plan)]
        if missing := [number for number in range(len(batches)) if not chunk_file(out, number).exists()]:
            names = ", ".join(map(str, missing[:NAMED])) + (" …" if len(missing) > NAMED else "")
            raise SurveyFileError(
                f"{chunk_folder(out)}: expected {len(batches)} chunks, and {len(missing)} are missing "
                f"({names}): wait until all shards have ended, and start again those that were stopped"
            )
        progress = SurveyProgress()
        for number, size in enumerate(batches):
            chunk = read_chunk(chunk_file(out, number), settings)
            if chunk.batches != size:
                raise SurveyFileError(
                    f"{chunk_file(out, number)} is damaged: expected {size} batches, got {chunk.batches}"
                )
            progress = SurveyProgress(progress._replace(unfinished=chunk).total)
        result = make_result(model, plan, progress)
        write_results(result, out, lock.check)
        shutil.rmtree(chunk_folder(out), ignore_errors=True)
        return result if isinstance(result, HeadTable) else result.table
