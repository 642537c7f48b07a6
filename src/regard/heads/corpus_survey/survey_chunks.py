"""The chunks of a survey: what is kept of consecutive batches, and the files that hold it.

Batches are added up in chunks, and the chunks in their order, as `add_up` adds texts. A chunk file carries
the settings of its survey; these files are all that an unfinished survey leaves. This file knows what is kept
of the windows; `survey` knows how they are read and measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.corpus_survey.examples import LayerExamples, add_examples
from regard.heads.measures.measurement import add_up
from regard.heads.measures.running_sums import RunningSums
from regard.heads.tables.description import LayerHeads
from regard.heads.tables.table import split_key
from regard.support.files import (
    SurveyFileError,
    check_type,
    get_field,
    is_present,
    naming_errors,
    parse_object,
    shorten,
)
from regard.support.safetensor_files import read_safetensors, write_safetensors

FORMAT = "regard.survey chunk 2"
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
        # By key and not by number: a chunk of another model may have as many layers.
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


def chunk_folder(out: Path) -> Path:
    """The folder with the chunks of a survey whose table will be in `out`."""
    return out.with_name(f"{out.name}.shards")


def chunk_file(out: Path, number: int) -> Path:
    """The file of one chunk."""
    # Six digits, so that a listing of the folder is in the order of the chunks.
    return chunk_folder(out) / f"chunk-{number:06}.safetensors"


def write_chunk(file: Path, chunk: BatchSums, settings: dict[str, Any]) -> None:
    """Write a chunk of a survey with these settings."""
    counts = {
        "batches": chunk.batches,
        "windows": chunk.windows,
        "tokens": chunk.tokens,
        "layers": encode_layers(chunk.layers),
        "examples": chunk.examples[0].weight.shape[1] if chunk.examples else 0,
    }
    header = {"format": FORMAT, "settings": json.dumps(settings), "batches": json.dumps(counts)}
    tensors = {
        f"{name}.{i}": x.cpu() for i, layer in enumerate(chunk.sums) for name, x in layer.tensors.items()
    }
    write_safetensors(file, tensors | name_tensors(chunk.examples), header)


def read_chunk(file: Path, settings: dict[str, Any]) -> BatchSums | None:
    """Read a chunk, if it is there; an error if it is damaged, or of a survey with other settings."""
    if not is_present(file):
        return None
    try:
        content = read_safetensors(file, [FORMAT], SurveyFileError)
        with naming_errors(file, SurveyFileError):
            old_settings, counts = (
                parse_object(get_field(content.metadata, name, str)) for name in ("settings", "batches")
            )
            chunk = _decode_batches(counts, content.tensors)
    except SurveyFileError as error:
        raise SurveyFileError(f"{error}: remove it, or start again with --fresh") from None
    if different := [name for name in settings if settings[name] != old_settings.get(name)]:
        raise SurveyFileError(
            f"{file} is of a survey with another {', '.join(different)}: "
            "resume with the same settings, write to another file, or start again with --fresh"
        )
    return chunk


def _decode_batches(counts: dict[str, Any], tensors: dict[str, Tensor]) -> BatchSums:
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
        one = RunningSums.from_tensors({kind: tensors[f"{kind}.{i}"] for kind in kinds})
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
        one = LayerExamples(**{name: tensors[f"examples.{name}.{i}"] for name in names})
        one.check(len(layer.heads), examples)
        decoded.append(one)
    return decoded


def encode_layers(layers: list[LayerHeads]) -> list[list[Any]]:
    """The keys and the heads of all layers, as JSON holds them."""
    return [[x.key, list(x.heads), list(x.kv_heads)] for x in layers]


def decode_layers(layers: list[Any]) -> list[LayerHeads]:
    """The same from JSON; a ValueError names the field that is wrong."""
    decoded = []
    for fields in layers:
        if len(check_type("layers", fields, list)) != 3:
            raise ValueError(f"layers: expected a key, heads and kv_heads, got {shorten(fields)}")
        key, *numbers = fields
        heads, kv_heads = (
            [check_type("heads", n, int) for n in check_type("heads", x, list)] for x in numbers
        )
        if len(heads) != len(kv_heads):
            raise ValueError(f"heads: expected a kv_head for each of {len(heads)}, got {len(kv_heads)}")
        split_key(check_type("key", key, str))
        decoded.append(LayerHeads(key, heads, kv_heads))
    return decoded
