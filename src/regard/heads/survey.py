"""`survey`: what every head does over a whole corpus, window by window, by one process or many.

The sums of each batch of windows are added in the order of the batches, whoever computed them, so the result
is the same to the last bit for any number of processes, and for a survey that was killed and went on. Each
process works with a fixed number of threads, because a product's rounding depends on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed

from regard.heads.corpus import Batch, Encode, batches, digest
from regard.heads.description import LayerMaps, Run, assemble, name_layer
from regard.heads.measurement import measure, total
from regard.heads.running_sums import RunningSums
from regard.heads.table import HeadTable, check_writable
from regard.safetensor_files import read_safetensors, write_safetensors

if TYPE_CHECKING:
    from regard.processes import Processes

FORMAT = "regard.survey 1"


class Reader(NamedTuple):
    """A model as a survey needs it."""

    name: str
    run: Run
    """The maps of every layer for ids (B, T)."""
    encode: Encode
    """The tokens of a text, without a start."""
    start: int | None
    """The token that stands before a text, if any."""
    digest: str
    """What the weights are recognised by when a survey goes on."""
    device: torch.device = torch.device("cpu")


class State(NamedTuple):
    """How far a survey is."""

    batches: int
    windows: int
    tokens: int
    layers: list[LayerMaps]
    tallies: list[RunningSums]


def survey(
    reader: Reader,
    corpus: Path,
    out: Path,
    *,
    ranks: Processes,
    length: int = 1024,
    batch: int = 1,
    most: int | None = None,
    threads: int = 1,
    save_every: float = 20.0,
    fresh: bool = False,
    tell: Callable[[State, int], None] = lambda state, read: None,
) -> HeadTable:
    """The table of every head over a corpus, written to `out` (.parquet, .csv or .json).

    A survey that was stopped goes on from `out` + ".partial", unless `fresh`. `tell` hears how far it is,
    with the bytes of the corpus that have been read.
    """
    check_writable(out)
    partial = out.with_name(out.name + ".partial")
    who = {
        "corpus": digest(corpus),
        "model": reader.digest,
        "length": length,
        "batch": batch,
        "most": most,
        "threads": threads,
        "device": ranks.device.type,
        "torch": torch.__version__,
    }
    began = state = None if fresh else _load(partial, who)
    ranks.barrier()  # nobody writes before everyone has read
    stream = batches(corpus, reader.encode, length, batch, reader.start, most)
    saved = time.monotonic()
    with _threads(threads):
        try:
            for state, read in _rounds(reader, stream, began, ranks):
                tell(state, read)
                if ranks.is_main and time.monotonic() - saved > save_every:
                    _save(partial, state, who)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if ranks.is_main and state is not None:
                _save(partial, state, who)
            raise
    if state is None:
        raise ValueError(f"corpus: expected text, but {corpus} has no tokens")
    table = assemble(state.layers, state.tallies, texts=state.windows, tokens=state.tokens, model=reader.name)
    if ranks.is_main:
        table.save(out)
        for left in (partial, *_unfinished(partial)):
            left.unlink(missing_ok=True)
    ranks.barrier()
    return table


def _rounds(
    reader: Reader, stream: Iterator[Batch], state: State | None, ranks: Processes
) -> Iterator[tuple[State, int]]:
    """In each round every process takes a batch, and all their sums are added in the order of the batches."""
    for _ in islice(stream, state.batches if state else 0):
        pass
    spare: list[RunningSums] = []
    layers: list[LayerMaps] = []
    while some := list(islice(stream, ranks.world_size)):
        # With fewer batches than processes the idle ones take the first, only to know the sizes of its sums.
        if ranks.rank < len(some) or not spare:
            spare, layers = _batch(reader, some[ranks.rank if ranks.rank < len(some) else 0].ids)
        for (ids, _), tallies in zip(some, _gathered(spare, ranks), strict=False):  # the idle come last
            if state is None:
                state = State(0, 0, 0, layers, [])
            sums = total([state.tallies, tallies]) if state.tallies else tallies
            state = State(
                state.batches + 1, state.windows + len(ids), state.tokens + ids.numel(), state.layers, sums
            )
        if state is not None:
            yield state, some[-1].read


def _batch(reader: Reader, ids: Tensor) -> tuple[list[RunningSums], list[LayerMaps]]:
    """The sums of a batch, each window an observation of its own."""
    ids = ids.to(reader.device)
    found = list(measure(reader.run(ids), ids))
    return [tally for tally, _ in found], [name_layer(i, map) for i, (_, map) in enumerate(found)]


def _gathered(tallies: Sequence[RunningSums], ranks: Processes) -> list[list[RunningSums]]:
    """The sums of every process, in the order of their ranks."""
    if ranks.world_size == 1:
        return [list(tallies)]
    parts = [x for tally in tallies for x in (tally.sums, tally.keys)]
    flat = torch.cat([x.double().flatten() for x in parts]).to(ranks.device)  # counts are exact in float64
    everyone = [torch.empty_like(flat) for _ in range(ranks.world_size)]
    distributed.all_gather(everyone, flat)
    found = []
    for one in everyone:
        pieces = torch.split(one.cpu(), [x.numel() for x in parts])
        back = [piece.view(x.shape).to(x.dtype) for piece, x in zip(pieces, parts, strict=True)]
        found.append([RunningSums(sums, keys) for sums, keys in zip(back[::2], back[1::2], strict=True)])
    return found


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _save(partial: Path, state: State, who: dict[str, Any]) -> None:
    tensors = {f"sums.{i}": tally.sums for i, tally in enumerate(state.tallies)}
    tensors |= {f"keys.{i}": tally.keys.contiguous() for i, tally in enumerate(state.tallies)}
    progress = {
        "batches": state.batches,
        "windows": state.windows,
        "tokens": state.tokens,
        "layers": [[x.key, list(x.heads), list(x.kv_heads)] for x in state.layers],
    }
    header = {"format": FORMAT, "who": json.dumps(who), "progress": json.dumps(progress)}
    write_safetensors(partial, tensors, header)


def _load(partial: Path, who: dict[str, Any]) -> State | None:
    """Where a survey stopped; ValueError if what is there is another one's."""
    if not partial.exists():
        return None
    try:
        header, mapped = read_safetensors(partial, [FORMAT])
        tensors = {name: x.clone() for name, x in mapped.items()}  # the next checkpoint replaces the file
        began, progress = json.loads(header["who"]), json.loads(header["progress"])
        layers = [LayerMaps(*found) for found in progress["layers"]]
        tallies = [RunningSums(tensors[f"sums.{i}"], tensors[f"keys.{i}"]) for i in range(len(layers))]
        state = State(progress["batches"], progress["windows"], progress["tokens"], layers, tallies)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{partial} is no unfinished survey that can be read ({error}): remove it, or begin with --fresh"
        ) from None
    if other := [name for name in who if who[name] != began.get(name)]:
        raise ValueError(
            f"{partial} is of a survey with another {', '.join(other)}: "
            "go on with the same, write elsewhere, or begin anew with --fresh"
        )
    return state


def _unfinished(partial: Path) -> list[Path]:
    """What a process that was killed while it wrote has left behind."""
    return list(partial.parent.glob(f".{partial.name}.*"))
