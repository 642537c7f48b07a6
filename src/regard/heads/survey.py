"""`survey`: the table of every head over a whole corpus, window by window, by one process or many.

The sums of each batch of windows are added in the order of the batches, whichever process computed them, so
the result is the same to the last bit for any number of processes, and for a survey that was killed and
resumed. Each process works with a fixed number of threads, because the rounding of a product depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, distributed

from regard import checkpoint_files
from regard.atomic import check_folder_writable
from regard.attention.arguments import check_whole_number
from regard.file_lock import FileLock
from regard.heads.corpus import Batch, Encode, batches, digest
from regard.heads.description import LayerHeads, RunModel, assemble, name_layer
from regard.heads.examples import LayerExamples, collect_examples
from regard.heads.measurement import measure
from regard.heads.running_sums import RunningSums
from regard.heads.survey_progress import MAX_EXAMPLES, BatchSums, Saving, SurveyProgress, load_progress
from regard.heads.survey_result import SurveyResult, decode_words, result_path, write_result
from regard.heads.table import HeadTable, check_writable
from regard.maps import AttentionMap
from regard.stop_signals import stop_on_signal

if TYPE_CHECKING:
    from regard.processes import Processes

Decode = Callable[[Tensor], list[str]]


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


class MeasuredBatch(NamedTuple):
    """What one process measured of a batch: the sums and the examples of every layer."""

    sums: list[RunningSums]
    examples: list[LayerExamples]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        sums = [x for layer in self.sums for x in layer.tensors.values()]
        return sums + [x for layer in self.examples for x in layer.tensors.values()]

    def counted(self, ids: Tensor, layers: list[LayerHeads]) -> BatchSums:
        """The same with the counts of the windows `ids` (windows, T)."""
        return BatchSums(1, len(ids), ids.numel(), layers, self.sums, self.examples)

    def with_tensors(self, tensors: list[Tensor]) -> MeasuredBatch:
        """The same of another process, whose tensors have the same sizes."""
        parts = iter(tensors)
        sums = [RunningSums.from_tensors({name: next(parts) for name in x.tensors}) for x in self.sums]
        examples = [LayerExamples(**{name: next(parts) for name in x.tensors}) for x in self.examples]
        return MeasuredBatch(sums, examples)


class SurveyPlan(NamedTuple):
    """Which windows of a corpus a survey reads, and how."""

    corpus: Path
    length: int = 1024
    batch: int = 1
    max_windows: int | None = None
    threads: int = 1
    examples: int = 8

    def settings(self, model: SurveyModel, device: torch.device) -> dict[str, Any]:
        """Everything that the result depends on, by which a survey is resumed or joined."""
        return {
            **self._asdict(),
            "corpus": digest(self.corpus),
            "model": model.digest,
            "device": device.type,
            "torch": torch.__version__,
        }

    def batches(self, model: SurveyModel) -> Iterator[Batch]:
        """The windows, a batch at a time."""
        return batches(self.corpus, model.encode, self.length, self.batch, model.start, self.max_windows)


def survey(
    model: SurveyModel,
    corpus: Path,
    out: Path,
    *,
    ranks: Processes,
    length: int = 1024,
    batch: int = 1,
    max_windows: int | None = None,
    threads: int = 1,
    save_every: float = 20.0,
    fresh: bool = False,
    examples: int = 8,
    report: Callable[[SurveyProgress, int], None] = lambda progress, bytes_read: None,
) -> HeadTable:
    """Describe every head over a corpus, and write the table to `out` (.parquet, .csv or .json).

    The corpus is read in windows of `length` tokens, `batch` at a time, at most `max_windows` in all, by the
    processes `ranks` with `threads` threads each. Progress is saved every `save_every` seconds, and when
    Ctrl-C, SIGTERM or SIGHUP asks the survey to stop, which then raises a KeyboardInterrupt. A survey that
    was stopped resumes from `out` + ".partial", unless `fresh`; if that is damaged, from the progress saved
    before it, with a warning. While it runs, no other survey can write to `out`: an `InUseError` says which
    process does. If its lock is removed meanwhile, a `LostLockError` ends the survey before it writes more.
    The `examples` strongest examples of each head go to `out` + ".examples" (see `read_survey`); 0 keeps
    none. `report` is called with the progress and with the number of bytes of the corpus that have been read.
    """
    check_whole_number("examples", examples, 0, MAX_EXAMPLES)
    partial = out.with_name(f"{out.name}.partial")
    with ExitStack() as stack:
        lock = ranks.on_main(lambda: stack.enter_context(take_file(out)))
        if fresh:
            ranks.on_main(lambda: checkpoint_files.remove(partial))
        plan = SurveyPlan(corpus, length, batch, max_windows, threads, examples)
        settings = plan.settings(model, ranks.device)
        saved = load_progress(partial, settings, ranks) or SurveyProgress()
        ranks.barrier()  # no process writes before all have read
        stream = plan.batches(model)
        for _ in islice(stream, saved.batches):
            pass  # skip what was done before

        stack.enter_context(set_threads(threads))
        stop = stack.enter_context(stop_on_signal())
        saving = Saving(partial, settings, save_every, ranks, lock)
        progress = _read_corpus(_rounds(model, stream, saved, ranks, examples), saved, saving, stop, report)
        result = make_result(model, plan, progress)
        ranks.on_main(lambda: write_results(result, out, saving.check_owner))
        ranks.on_main(lambda: checkpoint_files.remove(partial))
        return result if isinstance(result, HeadTable) else result.table


def check_out(out: Path) -> None:
    """Raise an error, before any work is done, if a survey cannot write to a file now."""
    take_file(out).release()


def take_file(out: Path) -> FileLock:
    """Lock the file of a survey; an error says why a survey cannot write to it."""
    check_writable(out)
    check_folder_writable("out", out.absolute().parent)
    return FileLock(out.with_name(f".{out.name}.lock"), "out", out)


def _read_corpus(
    rounds: Iterator[tuple[SurveyProgress, int]],
    progress: SurveyProgress,
    saving: Saving,
    stop: threading.Event,
    report: Callable[[SurveyProgress, int], None],
) -> SurveyProgress:
    """The progress after all rounds; if `stop` is set, it is saved and a KeyboardInterrupt raised."""
    try:
        for progress, bytes_read in rounds:
            report(progress, bytes_read)
            if saving.ranks.any(stop.is_set()):
                raise KeyboardInterrupt
            saving.when_due(progress)
    except KeyboardInterrupt:
        if progress.batches:
            saving.now(progress)
        raise
    return progress


def make_result(model: SurveyModel, plan: SurveyPlan, progress: SurveyProgress) -> SurveyResult | HeadTable:
    """The table of a survey that is complete, with its examples if any were kept."""
    total = progress.total
    if total is None:
        raise ValueError(f"corpus: expected text, but {plan.corpus} has no tokens")
    table = assemble(total.layers, total.sums, texts=total.windows, tokens=total.tokens, model=model.name)
    if not total.examples:
        return table
    return SurveyResult(table, total.layers, total.examples, decode_words(total.examples, model.decode))


def write_results(result: SurveyResult | HeadTable, out: Path, check_owner: Callable[[], None]) -> None:
    """Write what a survey that is complete found; `check_owner` raises if another one writes there by now.

    The table comes last: where it is, the examples are complete.
    """
    check_owner()
    path = result_path(out)
    try:
        if isinstance(result, SurveyResult):
            write_result(result, path)
            result.table.save(out)
        else:
            path.unlink(missing_ok=True)  # of an earlier survey
            result.save(out)
    except OSError as error:
        raise OSError(f"cannot write {out}: {error.strerror or error}") from None


def _rounds(
    model: SurveyModel,
    stream: Iterator[Batch],
    progress: SurveyProgress,
    ranks: Processes,
    examples: int,
) -> Iterator[tuple[SurveyProgress, int]]:
    """In each round every process takes a batch, and all sums are added in the order of the batches."""
    own, layers = MeasuredBatch([], []), list[LayerHeads]()
    while group := list(islice(stream, ranks.world_size)):
        # With fewer batches than processes the idle ones take the first, only to know the sizes of its sums.
        if ranks.rank < len(group) or not own.sums:
            number = ranks.rank if ranks.rank < len(group) else 0
            before = sum(len(ids) for ids, _ in group[:number]) + progress.windows
            own, layers = measure_batch(model, group[number].ids, before, examples)
        for (ids, _), batch in zip(group, _gather(own, ranks), strict=False):  # idle processes come last
            progress = progress.add(batch.counted(ids, layers))
        yield progress, group[-1].bytes_read


def measure_batch(
    model: SurveyModel, ids: Tensor, first_window: int, examples: int
) -> tuple[MeasuredBatch, list[LayerHeads]]:
    """The sums of a batch, in which each window is one observation, and its examples."""
    ids = ids.to(model.device)
    batch, layers = MeasuredBatch([], []), []
    attention = (m for m in model.run(ids) if isinstance(m, AttentionMap))  # linear layers have few scores
    for i, layer in enumerate(measure(attention, ids)):
        batch.sums.append(layer.sums)
        if examples:
            m = cast(AttentionMap, layer.map)
            batch.examples.append(collect_examples(m, ids, first_window, examples))
        layers.append(name_layer(i, layer.map))
    return batch, layers


def _gather(own: MeasuredBatch, ranks: Processes) -> list[MeasuredBatch]:
    """What every process measured, in the order of their ranks."""
    if ranks.world_size == 1:
        return [own]
    # All numbers of a process as one vector.
    parts = own.tensors
    flat = torch.cat([x.double().flatten() for x in parts]).to(ranks.device)  # whole numbers stay exact
    vectors = [torch.empty_like(flat) for _ in range(ranks.world_size)]
    distributed.all_gather(vectors, flat)
    gathered = []
    for vector in vectors:
        pieces = torch.split(vector.cpu(), [x.numel() for x in parts])
        tensors = [piece.view(x.shape).to(x.dtype) for piece, x in zip(pieces, parts, strict=True)]
        gathered.append(own.with_tensors(tensors))
    return gathered


@contextmanager
def set_threads(n: int) -> Iterator[None]:
    """Use n threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
