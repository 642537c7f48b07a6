"""`survey`: the table of every head over a whole corpus, window by window, by one process or many.

The corpus is measured in chunks of batches, and each chunk is written to a file in a folder beside the table.
Process or shard i of n measures every n-th chunk, from chunk i on. The chunks are then added up in their
order, so the result is the same to the last bit for any number of processes, and for a survey that was killed
and goes on. Each process has a fixed number of threads, because the rounding of a product depends on it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.corpus_survey.corpus import Batch, Encode, batches, digest
from regard.heads.corpus_survey.examples import LayerExamples, collect_examples
from regard.heads.corpus_survey.survey_chunks import (
    MAX_EXAMPLES,
    BatchSums,
    chunk_file,
    chunk_folder,
    read_chunk,
    write_chunk,
)
from regard.heads.corpus_survey.survey_result import SurveyResult, decode_words, result_path, write_result
from regard.heads.measures.measurement import CHUNK, measure_stacks
from regard.heads.measures.running_sums import RunningSums
from regard.heads.tables.description import LayerHeads, RunModel, assemble, name_layer
from regard.heads.tables.table import HeadTable
from regard.maps import AttentionMap
from regard.support.file_lock import FileLock
from regard.support.files import SurveyFileError, check_folder_writable
from regard.support.processes import stop_on_signal
from regard.support.table import check_writable

if TYPE_CHECKING:
    from regard.support.processes import Processes

Decode = Callable[[Tensor], list[str]]
Report = Callable[[int, int], None]
"""Called with the number of windows of the corpus, and of its bytes, up to the batch that was measured."""
MAX_SHARDS = 1 << 20
NAMED = 8  # chunks that an error names


class SurveyModel(NamedTuple):
    """A model as a survey needs it."""

    name: str
    run: RunModel
    """Gives the maps of every layer for ids (B, T)."""
    encode: Encode
    """Gives the tokens of a text, without a start token."""
    start: int | None
    """The token before every text, if any."""
    digest: str
    """Identifies the weights when a survey is resumed."""
    device: torch.device = torch.device("cpu")
    decode: Decode | None = None
    """Gives the texts of tokens (n,), for the examples; without it a token is its number."""


class SurveyPlan(NamedTuple):
    """Which windows of a corpus a survey reads, and how."""

    corpus: Path
    length: int = 1024
    batch: int = 1
    max_windows: int | None = None
    threads: int = 1
    examples: int = 8

    def settings(self, model: SurveyModel) -> dict[str, Any]:
        """Everything that the result depends on, by which a survey is resumed or joined."""
        return {
            **self._asdict(),
            "corpus": digest(self.corpus),
            "model": model.digest,
            # The kernels of a CPU and of a GPU round differently, and so may those of another PyTorch.
            "device": model.device.type,
            "torch": torch.__version__,
        }

    def batches(self, model: SurveyModel) -> Iterator[Batch]:
        """The windows, a batch at a time."""
        return batches(self.corpus, model.encode, self.length, self.batch, model.start, self.max_windows)


class Shard(NamedTuple):
    """Shard `number`, from 0, of `of` shards."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "0/4"."""
        # MAX_SHARDS has seven digits.
        match = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 0 <= shard.number < shard.of <= MAX_SHARDS:
            raise ValueError(f"shard: expected i/n, with i from 0 to n - 1, such as 0/4, got {text!r}")
        return shard


class Chunk(NamedTuple):
    """Consecutive batches of a corpus, and how many windows come before them."""

    number: int
    batches: list[Batch]
    windows_before: int


def survey(
    model: SurveyModel,
    plan: SurveyPlan,
    out: Path,
    *,
    ranks: Processes,
    fresh: bool = False,
    report: Report = lambda windows, bytes_read: None,
) -> HeadTable | None:
    """Describe every head over a corpus, and write the table to `out` (.parquet, .csv or .json).

    Each of the processes `ranks` measures some chunks of the corpus and writes them to a folder that all of
    them share; the first one adds them up, and returns the table. When Ctrl-C, SIGTERM or SIGHUP asks the
    survey to stop, it raises a KeyboardInterrupt after the batch that it measures, and a chunk that is not
    complete is lost. A survey that was stopped or killed goes on after the chunks that are there, unless
    `fresh`. While it runs, no other survey can write to `out`: an `InUseError` says which process does. The
    strongest examples of each head go to `out` + ".examples" (see `read_survey`). `report` is called after
    each batch.
    """
    with ExitStack() as stack:
        # Rank 0 alone locks: the ranks of one survey share its folder.
        ranks.on_main(lambda: stack.enter_context(take_file(out)) and None)
        if fresh:
            ranks.on_main(lambda: shutil.rmtree(chunk_folder(out), ignore_errors=True))
        sizes = _measure_chunks(model, plan, out, Shard(ranks.rank, ranks.world_size), report)
        ranks.barrier()  # until every chunk is there
        return ranks.on_main(lambda: _join_chunks(model, plan, out, sizes))


def survey_shard(
    model: SurveyModel,
    plan: SurveyPlan,
    out: Path,
    shard: Shard,
    *,
    fresh: bool = False,
    report: Report = lambda windows, bytes_read: None,
) -> int:
    """Measure the chunks of one shard that are not there yet, and return how many chunks the shard has.

    Shards do not know each other, and none waits; any scheduler can start them. `out` is the file of the
    table that `join_survey` will write. A shard stops as `survey` does, and goes on after the chunks that are
    there, unless `fresh`.
    """
    check_writable(out)
    check_folder_writable("out", out.absolute().parent)
    chunk_folder(out).mkdir(exist_ok=True)
    name = f".shard-{shard.number}-of-{shard.of}.lock"
    with FileLock(chunk_folder(out) / name, "out", out):
        sizes = _measure_chunks(model, plan, out, shard, report, fresh)
    return len(sizes[shard.number :: shard.of])


def join_survey(model: SurveyModel, plan: SurveyPlan, out: Path) -> HeadTable:
    """Add up the chunks of all shards, write the table and the examples, and delete the chunks.

    A `SurveyFileError` names the chunks that are missing.
    """
    with take_file(out):
        return _join_chunks(model, plan, out, [len(chunk.batches) for chunk in _chunks(model, plan)])


def check_out(out: Path) -> None:
    """Raise an error, before any work is done, if a survey cannot write to a file now."""
    take_file(out).release()


def take_file(out: Path) -> FileLock:
    """Lock the file of a survey; an error says why a survey cannot write to it."""
    check_writable(out)
    check_folder_writable("out", out.absolute().parent)
    return FileLock(out.with_name(f".{out.name}.lock"), "out", out)


def _measure_chunks(
    model: SurveyModel,
    plan: SurveyPlan,
    out: Path,
    shard: Shard,
    report: Report,
    fresh: bool = False,
) -> list[int]:
    """Measure the chunks of a shard that are not there; return how many batches every chunk has."""
    check_whole_number("examples", plan.examples, 0, MAX_EXAMPLES)
    settings, sizes = plan.settings(model), []
    with set_threads(plan.threads), stop_on_signal() as stop:
        for chunk in _chunks(model, plan):
            sizes.append(len(chunk.batches))
            if chunk.number % shard.of != shard.number:
                continue
            file = chunk_file(out, chunk.number)
            if fresh:
                file.unlink(missing_ok=True)
            if read_chunk(file, settings) is not None:
                continue
            total, windows = None, chunk.windows_before
            for ids, bytes_read in chunk.batches:
                batch = measure_batch(model, ids, windows, plan.examples)
                total = batch if total is None else total.followed_by(batch)
                windows += len(ids)
                report(windows, bytes_read)
                if stop.is_set():
                    raise KeyboardInterrupt
            assert total is not None  # a chunk has a batch
            file.parent.mkdir(exist_ok=True)
            write_chunk(file, total, settings)
    return sizes


def _chunks(model: SurveyModel, plan: SurveyPlan) -> Iterator[Chunk]:
    stream, windows = plan.batches(model), 0
    for number in count():
        group = list(islice(stream, CHUNK))
        if not group:
            return
        yield Chunk(number, group, windows)
        windows += sum(len(batch.ids) for batch in group)


def _join_chunks(model: SurveyModel, plan: SurveyPlan, out: Path, sizes: Sequence[int]) -> HeadTable:
    """Add up all chunks of a survey in their order, write what it found, and delete the chunks.

    `sizes` are the numbers of batches of every chunk.
    """
    settings, total = plan.settings(model), None
    if missing := [number for number in range(len(sizes)) if not chunk_file(out, number).exists()]:
        names = ", ".join(map(str, missing[:NAMED])) + (" …" if len(missing) > NAMED else "")
        raise SurveyFileError(
            f"{chunk_folder(out)}: expected {len(sizes)} chunks, and {len(missing)} are missing "
            f"({names}): wait until all shards have ended, and start again those that were stopped"
        )
    for number, size in enumerate(sizes):
        chunk = read_chunk(chunk_file(out, number), settings)
        if chunk is None or chunk.batches != size:
            raise SurveyFileError(f"{chunk_file(out, number)} is damaged: expected {size} batches")
        total = chunk if total is None else total.followed_by(chunk)
    if total is None:
        raise ValueError(f"corpus: expected text, but {plan.corpus} has no tokens")
    table = assemble(total.layers, total.sums, texts=total.windows, tokens=total.tokens, model=model.name)
    words = decode_words(total.examples, model.decode)
    try:
        # The table comes last: where it is, the examples are complete.
        if total.examples:
            write_result(SurveyResult(table, total.layers, total.examples, words), result_path(out))
        else:
            result_path(out).unlink(missing_ok=True)  # of an earlier survey
        table.save(out)
    except OSError as error:
        raise OSError(f"cannot write {out}: {error.strerror or error}") from None
    shutil.rmtree(chunk_folder(out), ignore_errors=True)
    return table


def measure_batch(model: SurveyModel, ids: Tensor, first_window: int, examples: int) -> BatchSums:
    """The sums of a batch, in which each window is one observation, and its examples."""
    windows, tokens = len(ids), ids.numel()
    ids = ids.to(model.device)
    sums: list[RunningSums] = []
    kept: list[LayerExamples] = []
    layers: list[LayerHeads] = []
    attention = (m for m in model.run(ids) if isinstance(m, AttentionMap))  # linear layers have few scores
    for stack in measure_stacks(attention, ids):
        sums += stack.sums.split(len(stack.maps))
        if examples:
            joined = cast(AttentionMap, stack.joined)
            kept += collect_examples(joined, ids, first_window, examples).split(len(stack.maps))
        layers += [name_layer(len(layers) + i, m) for i, m in enumerate(stack.maps)]
    return BatchSums(1, windows, tokens, layers, sums, kept)


@contextmanager
def set_threads(n: int) -> Iterator[None]:
    """Use n threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
