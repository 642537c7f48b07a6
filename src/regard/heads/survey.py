"""`survey`: the table of every head over a whole corpus, window by window, by one process or many.

The sums of each batch of windows are added in the order of the batches, whichever process computed them, so
the result is the same to the last bit for any number of processes, and for a survey that was killed and
resumed. Each process works with a fixed number of threads, because the rounding of a product depends on it.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed

from regard import checkpoint_files
from regard.atomic import check_folder_writable
from regard.attention.arguments import check_whole_number
from regard.file_lock import FileLock
from regard.files import SurveyFileError, check_type, get_field, parse_object, shorten
from regard.heads.corpus import Batch, Encode, batches, digest
from regard.heads.description import LayerHeads, RunModel, assemble, name_layer
from regard.heads.measurement import add_up, measure
from regard.heads.running_sums import RunningSums
from regard.heads.table import HeadTable, check_writable, split_key
from regard.safetensor_files import SafetensorContent
from regard.stop_signals import stop_on_signal

if TYPE_CHECKING:
    from regard.processes import Processes

FORMAT = "regard.survey 2"


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


class SurveyProgress(NamedTuple):
    """The progress of a survey: counts, and the sums so far."""

    batches: int
    windows: int
    tokens: int
    layers: list[LayerHeads]
    sums: list[RunningSums]


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
    report: Callable[[SurveyProgress, int], None] = lambda progress, bytes_read: None,
) -> HeadTable:
    """Describe every head over a corpus, and write the table to `out` (.parquet, .csv or .json).

    The corpus is read in windows of `length` tokens, `batch` at a time, at most `max_windows` in all, by the
    processes `ranks` with `threads` threads each. Progress is saved every `save_every` seconds, and when
    Ctrl-C, SIGTERM or SIGHUP asks the survey to stop, which then raises a KeyboardInterrupt. A survey that
    was stopped resumes from `out` + ".partial", unless `fresh`; if that is damaged, from the progress saved
    before it, with a warning. While it runs, no other survey can write to `out`: an `InUseError` says which
    process does. If its lock is removed meanwhile, a `LostLockError` ends the survey before it writes more.
    `report` is called with the progress and with the number of bytes of the corpus that have been read.
    """
    partial = out.with_name(f"{out.name}.partial")
    with ExitStack() as stack:
        lock = ranks.on_main(lambda: stack.enter_context(_take_file(out)))
        if fresh:
            ranks.on_main(lambda: checkpoint_files.remove(partial))
        settings = {
            "corpus": digest(corpus),
            "model": model.digest,
            "length": length,
            "batch": batch,
            "max_windows": max_windows,
            "threads": threads,
            "device": ranks.device.type,
            "torch": torch.__version__,
        }
        saved = _load(partial, settings, ranks)
        ranks.barrier()  # no process writes before all have read
        stream = batches(corpus, model.encode, length, batch, model.start, max_windows)
        for _ in islice(stream, saved.batches if saved else 0):
            pass  # skip what was done before

        stack.enter_context(_threads(threads))
        stop = stack.enter_context(stop_on_signal())
        saving = Saving(partial, settings, save_every, ranks, lock)
        progress = _read_corpus(_rounds(model, stream, saved, ranks), saved, saving, stop, report)
        if progress is None:
            raise ValueError(f"corpus: expected text, but {corpus} has no tokens")
        table = assemble(
            progress.layers, progress.sums, texts=progress.windows, tokens=progress.tokens, model=model.name
        )
        ranks.on_main(lambda: _write_table(table, out, saving))
        return table


def check_out(out: Path) -> None:
    """Raise an error, before any work is done, if a survey cannot write to a file now."""
    _take_file(out).release()


def _take_file(out: Path) -> FileLock:
    """Lock the file of a survey; an error says why a survey cannot write to it."""
    check_writable(out)
    check_folder_writable("out", out.absolute().parent)
    return FileLock(out.with_name(f".{out.name}.lock"), "out", out)


def _read_corpus(
    rounds: Iterator[tuple[SurveyProgress, int]],
    progress: SurveyProgress | None,
    saving: Saving,
    stop: threading.Event,
    report: Callable[[SurveyProgress, int], None],
) -> SurveyProgress | None:
    """The progress after all rounds; if `stop` is set, it is saved and a KeyboardInterrupt raised."""
    try:
        for progress, bytes_read in rounds:
            report(progress, bytes_read)
            if saving.ranks.any(stop.is_set()):
                raise KeyboardInterrupt
            saving.when_due(progress)
    except KeyboardInterrupt:
        if progress is not None:
            saving.now(progress)
        raise
    return progress


def _write_table(table: HeadTable, out: Path, saving: Saving) -> None:
    """Write the table of a survey that is complete, and delete its progress."""
    saving.check_owner()
    try:
        table.save(out)
    except OSError as error:
        raise OSError(f"cannot write {out}: {error.strerror or error}") from None
    checkpoint_files.remove(saving.partial)


def _rounds(
    model: SurveyModel, stream: Iterator[Batch], progress: SurveyProgress | None, ranks: Processes
) -> Iterator[tuple[SurveyProgress, int]]:
    """In each round every process takes a batch, and all sums are added in the order of the batches."""
    own: list[RunningSums] = []
    layers: list[LayerHeads] = []
    while group := list(islice(stream, ranks.world_size)):
        # With fewer batches than processes the idle ones take the first, only to know the sizes of its sums.
        if ranks.rank < len(group) or not own:
            own, layers = _measure_batch(model, group[ranks.rank if ranks.rank < len(group) else 0].ids)
        for (ids, _), sums in zip(group, _gather(own, ranks), strict=False):  # idle processes come last
            if progress is None:
                progress = SurveyProgress(0, 0, 0, layers, [])
            elif [x.key for x in progress.layers] != [x.key for x in layers] or not all(
                x.fits(len(layer.heads)) for x, layer in zip(progress.sums, layers, strict=True)
            ):
                raise SurveyFileError(
                    "the unfinished survey is of other layers or heads than the model has: begin with --fresh"
                )
            progress = SurveyProgress(
                progress.batches + 1,
                progress.windows + len(ids),
                progress.tokens + ids.numel(),
                progress.layers,
                add_up([progress.sums, sums]) if progress.sums else sums,
            )
        if progress is not None:
            yield progress, group[-1].bytes_read


def _measure_batch(model: SurveyModel, ids: Tensor) -> tuple[list[RunningSums], list[LayerHeads]]:
    """The sums of a batch, in which each window is one observation."""
    ids = ids.to(model.device)
    measured = list(measure(model.run(ids), ids))
    return [x.sums for x in measured], [name_layer(i, x.map) for i, x in enumerate(measured)]


def _gather(own: Sequence[RunningSums], ranks: Processes) -> list[list[RunningSums]]:
    """The sums of every process, in the order of their ranks."""
    if ranks.world_size == 1:
        return [list(own)]
    # All sums of a process as one vector.
    parts = [x for layer in own for x in (layer.sums, layer.keys)]
    flat = torch.cat([x.double().flatten() for x in parts]).to(ranks.device)  # counts are exact in float64
    vectors = [torch.empty_like(flat) for _ in range(ranks.world_size)]
    distributed.all_gather(vectors, flat)
    gathered = []
    for vector in vectors:
        pieces = torch.split(vector.cpu(), [x.numel() for x in parts])
        tensors = [piece.view(x.shape).to(x.dtype) for piece, x in zip(pieces, parts, strict=True)]
        gathered.append([RunningSums(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)])
    return gathered


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """Use n threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Saving:
    """Saves the progress of a survey to `partial` every `seconds`, on rank 0, which owns the `lock`."""

    def __init__(
        self,
        partial: Path,
        settings: dict[str, Any],
        seconds: float,
        ranks: Processes,
        lock: FileLock | None,
    ) -> None:
        self.partial, self.settings, self.seconds, self.ranks = partial, settings, seconds, ranks
        self.lock = lock
        self.saved_at = time.monotonic()

    def check_owner(self) -> None:
        """Raise a `LostLockError` if another survey may write to the same file by now."""
        if self.lock is not None:
            self.lock.check()

    def when_due(self, progress: SurveyProgress) -> None:
        """Save, if it is time."""
        if time.monotonic() - self.saved_at > self.seconds:
            self.now(progress)

    def now(self, progress: SurveyProgress) -> None:
        """Save at once."""
        if not self.ranks.is_main:
            return
        self.check_owner()
        tensors = {f"sums.{i}": layer.sums for i, layer in enumerate(progress.sums)}
        tensors |= {f"keys.{i}": layer.keys for i, layer in enumerate(progress.sums)}
        counts = {
            "batches": progress.batches,
            "windows": progress.windows,
            "tokens": progress.tokens,
            "layers": [[x.key, list(x.heads), list(x.kv_heads)] for x in progress.layers],
        }
        header = {"format": FORMAT, "settings": json.dumps(self.settings), "progress": json.dumps(counts)}
        checkpoint_files.save(self.partial, tensors, header)
        self.saved_at = time.monotonic()


def _load(partial: Path, settings: dict[str, Any], ranks: Processes) -> SurveyProgress | None:
    """Read the progress of a survey, if there is any; an error if it is of another survey or damaged."""
    try:
        found = checkpoint_files.load(partial, FORMAT, _parse, SurveyFileError)
    except SurveyFileError as error:
        raise SurveyFileError(f"{error}: remove it, or start again with --fresh") from None
    if found is None:
        return None
    (progress, old_settings), problem = found
    if different := [name for name in settings if settings[name] != old_settings.get(name)]:
        raise SurveyFileError(
            f"{partial} is of a survey with another {', '.join(different)}: "
            "resume with the same settings, write to another file, or start again with --fresh"
        )
    if problem is not None and ranks.is_main:
        warnings.warn(problem, stacklevel=3)
    return progress


def _parse(content: SafetensorContent) -> tuple[SurveyProgress, dict[str, Any]]:
    """The progress and the settings in a progress checkpoint; a ValueError names the field that is wrong."""
    settings, counts = (
        parse_object(get_field(content.metadata, name, str)) for name in ("settings", "progress")
    )
    return _decode_progress(counts, content.tensors), settings


def _decode_progress(counts: dict[str, Any], tensors: dict[str, Tensor]) -> SurveyProgress:
    """The progress that `Saving` wrote; a ValueError names the field that is wrong."""
    done = {name: get_field(counts, name, int) for name in ("batches", "windows", "tokens")}
    for name, count in done.items():
        check_whole_number(name, count)
    layers = [_decode_layer(check_type("layers", x, list)) for x in get_field(counts, "layers", list)]
    expected = {f"{kind}.{i}" for kind in ("sums", "keys") for i in range(len(layers))}
    if not layers or tensors.keys() != expected:
        raise ValueError(
            f"tensors: expected sums and keys of {len(layers)} layers, got {shorten(sorted(tensors))}"
        )
    sums = []
    for i, layer in enumerate(layers):
        # A copy: the next checkpoint replaces the file.
        one = RunningSums(tensors[f"sums.{i}"].clone(), tensors[f"keys.{i}"].clone())
        if not one.fits(len(layer.heads)):
            raise ValueError(
                f"layer {i}: expected the sums of {len(layer.heads)} heads, got "
                f"{tuple(one.sums.shape)} {one.sums.dtype} and {tuple(one.keys.shape)} {one.keys.dtype}"
            )
        sums.append(one)
    return SurveyProgress(done["batches"], done["windows"], done["tokens"], layers, sums)


def _decode_layer(fields: list[Any]) -> LayerHeads:
    """The key and the heads of a layer."""
    if len(fields) != 3:
        raise ValueError(f"layers: expected a key, heads and kv_heads, got {shorten(fields)}")
    key, *numbers = fields
    heads, kv_heads = ([check_type("heads", n, int) for n in check_type("heads", x, list)] for x in numbers)
    if len(heads) != len(kv_heads):
        raise ValueError(f"heads: expected a kv_head for each of {len(heads)}, got {len(kv_heads)}")
    split_key(check_type("key", key, str))
    return LayerHeads(key, heads, kv_heads)
