"""The progress of a survey, and its progress checkpoints: a survey that was stopped resumes from one.

Batches are added up in chunks, as `add_up` adds texts, so that a process may measure some chunks alone.
This file knows what is kept of the windows so far; `survey` knows how they are read and measured.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from regard import checkpoint_files
from regard.attention.arguments import check_whole_number
from regard.file_lock import FileLock
from regard.files import SurveyFileError, check_type, get_field, parse_object, shorten
from regard.heads.description import LayerHeads
from regard.heads.examples import LayerExamples, add_examples
from regard.heads.measurement import CHUNK, add_up
from regard.heads.running_sums import RunningSums
from regard.heads.table import split_key
from regard.safetensor_files import SafetensorContent

if TYPE_CHECKING:
    from regard.processes import Processes

FORMAT = "regard.survey 4"
MAX_EXAMPLES = 64  # of a head


class BatchSums(NamedTuple):
    """What is kept of consecutive batches: counts, sums, and the examples of each layer, if any are kept."""

    batches: int
    windows: int
    tokens: int
    layers: list[LayerHeads]
    sums: list[RunningSums]
    examples: list[LayerExamples]

    def followed_by(self, later: BatchSums) -> BatchSums:
        """Return what is kept of these batches and of later ones."""
        if [x.key for x in self.layers] != [x.key for x in later.layers] or not all(
            x.fits(len(layer.heads)) for x, layer in zip(self.sums, later.layers, strict=True)
        ):
            raise SurveyFileError(
                "the unfinished survey is of other layers or heads than the model has: begin with --fresh"
            )
        return BatchSums(
            self.batches + later.batches,
            self.windows + later.windows,
            self.tokens + later.tokens,
            self.layers,
            add_up([self.sums, later.sums]),
            add_examples(self.examples, later.examples),
        )


class SurveyProgress(NamedTuple):
    """The progress of a survey: the chunks that are complete, added up in their order, and the last one."""

    chunks: BatchSums | None = None
    unfinished: BatchSums | None = None

    @property
    def batches(self) -> int:
        """The number of batches so far."""
        return sum(part.batches for part in self if part is not None)

    @property
    def windows(self) -> int:
        """The number of windows so far."""
        return sum(part.windows for part in self if part is not None)

    @property
    def total(self) -> BatchSums | None:
        """All batches so far, added up; None if there are none."""
        if self.chunks is None or self.unfinished is None:
            return self.chunks or self.unfinished
        return self.chunks.followed_by(self.unfinished)

    def add(self, batch: BatchSums) -> SurveyProgress:
        """Return the progress after one more batch."""
        unfinished = batch if self.unfinished is None else self.unfinished.followed_by(batch)
        progress = self._replace(unfinished=unfinished)
        return SurveyProgress(progress.total) if unfinished.batches == CHUNK else progress


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
        tensors: dict[str, Tensor] = {}
        counts: dict[str, Any] = {}
        for name, part in progress._asdict().items():
            counts[name] = None if part is None else count_batches(part)
            tensors |= {} if part is None else {f"{name}.{key}": x for key, x in batch_tensors(part).items()}
        header = {"format": FORMAT, "settings": json.dumps(self.settings), "progress": json.dumps(counts)}
        checkpoint_files.save(self.partial, tensors, header)
        self.saved_at = time.monotonic()


def batch_tensors(part: BatchSums) -> dict[str, Tensor]:
    """The tensors of batches, by the names that they have in a file."""
    tensors = {f"{name}.{i}": x for i, layer in enumerate(part.sums) for name, x in layer.tensors.items()}
    return tensors | name_tensors(part.examples)


def count_batches(part: BatchSums) -> dict[str, Any]:
    """What a file holds about batches beside their tensors, as JSON holds it."""
    return {
        "batches": part.batches,
        "windows": part.windows,
        "tokens": part.tokens,
        "layers": encode_layers(part.layers),
        "examples": part.examples[0].weight.shape[1] if part.examples else 0,
    }


def load_progress(partial: Path, settings: dict[str, Any], ranks: Processes) -> SurveyProgress | None:
    """Read the progress of a survey, if there is any; an error if it is of another survey or damaged."""
    try:
        found = checkpoint_files.load(partial, FORMAT, _parse, SurveyFileError)
    except SurveyFileError as error:
        raise SurveyFileError(f"{error}: remove it, or start again with --fresh") from None
    if found is None:
        return None
    (progress, old_settings), problem = found
    check_settings(partial, settings, old_settings)
    if problem is not None and ranks.is_main:
        warnings.warn(problem, stacklevel=3)
    return progress


def check_settings(file: Path, settings: dict[str, Any], old_settings: dict[str, Any]) -> None:
    """Raise a `SurveyFileError` if a file is of a survey with other settings."""
    if different := [name for name in settings if settings[name] != old_settings.get(name)]:
        raise SurveyFileError(
            f"{file} is of a survey with another {', '.join(different)}: "
            "resume with the same settings, write to another file, or start again with --fresh"
        )


def _parse(content: SafetensorContent) -> tuple[SurveyProgress, dict[str, Any]]:
    """The progress and the settings in a progress checkpoint; a ValueError names the field that is wrong."""
    settings, counts = (
        parse_object(get_field(content.metadata, name, str)) for name in ("settings", "progress")
    )
    parts: dict[str, BatchSums | None] = {}
    for name in SurveyProgress._fields:
        tensors = {
            key.removeprefix(f"{name}."): x
            for key, x in content.tensors.items()
            if key.startswith(f"{name}.")
        }
        is_there = counts.get(name) is not None
        parts[name] = decode_batches(get_field(counts, name, dict), tensors) if is_there else None
    known = tuple(f"{name}." for name in SurveyProgress._fields)
    if unknown := [name for name in content.tensors if not name.startswith(known)]:
        raise ValueError(f"tensors: expected those of the progress, got {shorten(sorted(unknown))}")
    return SurveyProgress(**parts), settings


def decode_batches(counts: dict[str, Any], tensors: dict[str, Tensor]) -> BatchSums:
    """The batches of a file; a ValueError names the field that is wrong."""
    done = {name: get_field(counts, name, int) for name in ("batches", "windows", "tokens")}
    for name, count in done.items():
        check_whole_number(name, count)
    layers = decode_layers(get_field(counts, "layers", list))
    examples = decode_examples(tensors, layers, get_field(counts, "examples", int))
    kinds = ("sums", "keys", "offsets", "tokens")
    expected = {f"{kind}.{i}" for kind in kinds for i in range(len(layers))}
    expected |= name_tensors(examples).keys()
    if not layers or tensors.keys() != expected:
        raise ValueError(
            f"tensors: expected {', '.join(kinds)} of {len(layers)} layers, got {shorten(sorted(tensors))}"
        )
    sums = []
    for i, layer in enumerate(layers):
        # A copy: the next checkpoint replaces the file.
        one = RunningSums.from_tensors({kind: tensors[f"{kind}.{i}"].clone() for kind in kinds})
        if not one.fits(len(layer.heads)):
            raise ValueError(
                f"layer {i}: expected the sums of {len(layer.heads)} heads, got "
                + ", ".join(f"{name} {tuple(x.shape)} {x.dtype}" for name, x in one.tensors.items())
            )
        sums.append(one)
    return BatchSums(done["batches"], done["windows"], done["tokens"], layers, sums, examples)


def name_tensors(examples: list[LayerExamples]) -> dict[str, Tensor]:
    """The tensors of all layers' examples, by the names that they have in a file."""
    return {
        f"examples.{name}.{i}": x for i, layer in enumerate(examples) for name, x in layer.tensors.items()
    }


def decode_examples(
    tensors: dict[str, Tensor], layers: list[LayerHeads], examples: int
) -> list[LayerExamples]:
    """The examples of all layers from a file's tensors; a ValueError names what is wrong."""
    check_whole_number("examples", examples, 0, MAX_EXAMPLES)
    if not examples:
        return []
    decoded = []
    for i, layer in enumerate(layers):
        names = LayerExamples.empty(0, 0).tensors
        if missing := [name for name in names if f"examples.{name}.{i}" not in tensors]:
            raise ValueError(f"tensors: expected examples.{missing[0]}.{i}, got none")
        # A copy: the next checkpoint replaces the file.
        one = LayerExamples(**{name: tensors[f"examples.{name}.{i}"].clone() for name in names})
        one.check(len(layer.heads), examples)
        decoded.append(one)
    return decoded


def encode_layers(layers: list[LayerHeads]) -> list[list[Any]]:
    """The keys and the heads of all layers, as JSON holds them."""
    return [[x.key, list(x.heads), list(x.kv_heads)] for x in layers]


def decode_layers(layers: list[Any]) -> list[LayerHeads]:
    """The same from JSON; a ValueError names the field that is wrong."""
    return [_decode_layer(check_type("layers", x, list)) for x in layers]


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
