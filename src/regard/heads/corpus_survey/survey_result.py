"""What a survey found: its table with the examples of every head, in a file beside the table.

The file is a safetensors file: the tensors of `LayerExamples` of every layer, and under "about" JSON with the
table, the layers and the texts of the tokens. It is the same to the last bit for one process or many. It may
come from anyone: everything in it is checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.heads.corpus_survey.examples import LayerExamples
from regard.heads.corpus_survey.survey_chunks import (
    decode_examples,
    decode_layers,
    encode_layers,
    name_tensors,
)
from regard.heads.tables.description import LayerHeads
from regard.heads.tables.table import HeadTable
from regard.support.files import (
    SurveyFileError,
    check_type,
    get_field,
    is_present,
    naming_errors,
    parse_object,
    shorten,
)
from regard.support.safetensor_files import SafetensorContent, read_safetensors, write_safetensors

FORMAT = "regard.examples 1"
ABOUT = "about"
MAX_WORD = 200  # characters of a token's text that are kept
MAX_MODEL = 200  # characters of a model's name


class SurveyResult(NamedTuple):
    """The table of a survey and the strongest examples of every head."""

    table: HeadTable
    layers: list[LayerHeads]
    examples: list[LayerExamples]
    """Of each layer."""
    words: dict[int, str]
    """The texts of all tokens in the examples."""

    def place(self, layer: str, head: int) -> tuple[LayerExamples, int]:
        """The examples of a layer, and the index of a head in them; KeyError if there is no such head."""
        for about, examples in zip(self.layers, self.examples, strict=True):
            if about.key == layer and head in about.heads:
                return examples, list(about.heads).index(head)
        raise KeyError(f"head: expected a layer and a head of the survey, got {layer!r} and {head}")

    def word(self, token: int) -> str:
        """The text of a token, or its number."""
        return self.words.get(token, f"<{token}>")


def result_path(out: Path) -> Path:
    """The file with the examples of a survey whose table is in `out`."""
    return out.with_name(f"{out.name}.examples")


def decode_words(
    examples: Sequence[LayerExamples], decode: Callable[[Tensor], list[str]] | None
) -> dict[int, str]:
    """The texts of all tokens in examples, by their ids."""
    used = [x.flatten() for layer in examples for x in (layer.ids, layer.query_ids, layer.key_ids)]
    if not used:
        return {}
    ids = torch.unique(torch.cat(used).long())
    ids = ids[ids >= 0]
    texts = [f"<{token}>" for token in ids.tolist()] if decode is None else decode(ids)
    # Some vocabularies hold tokens of hundreds of spaces or of a whole line of dashes.
    return {token: text[:MAX_WORD] for token, text in zip(ids.tolist(), texts, strict=True)}


def write_result(result: SurveyResult, path: Path) -> None:
    """Write the file of a survey's examples, atomically."""
    table = result.table
    about = {
        "model": table.model[:MAX_MODEL],
        "windows": table.texts,
        "tokens": table.tokens,
        "examples": result.examples[0].weight.shape[1],
        "layers": encode_layers(result.layers),
        "words": {str(token): text for token, text in sorted(result.words.items())},
        "table": table.to_json(),
    }
    # As a tensor: the order of a safetensors file's metadata is not fixed.
    text = torch.tensor(
        bytearray(json.dumps(about).encode("ascii", "replace")), dtype=torch.uint8, device="cpu"
    )
    write_safetensors(path, {ABOUT: text, **name_tensors(result.examples)}, {"format": FORMAT})


def read_survey(path: str | PathLike[str]) -> SurveyResult:
    """Read what a survey found, with the examples of every head.

    A `SurveyFileError` names what is wrong with the file.

    Arguments:
        path: the table that `regard survey` wrote, such as survey.csv, or its examples, survey.csv.examples.
    """
    path = Path(path)
    file = path if path.suffix == ".examples" else result_path(path)
    if not is_present(file):
        raise SurveyFileError(
            f"survey: expected the examples of a survey beside its table, got no file {file}: "
            f"regard survey writes them with the table, unless it is told --examples 0"
        )
    content = read_safetensors(file, [FORMAT], SurveyFileError)
    with naming_errors(file, SurveyFileError):
        return _parse(content)


def _parse(content: SafetensorContent) -> SurveyResult:
    """The result in a file; a ValueError names the field that is wrong."""
    tensors = dict(content.tensors)
    text = tensors.pop(ABOUT, torch.zeros(0, device="cpu"))
    if text.dtype != torch.uint8 or text.ndim != 1:
        raise ValueError(f"{ABOUT}: expected bytes of JSON, got {tuple(text.shape)} {text.dtype}")
    about = parse_object(bytes(text.numpy()).decode("ascii", "replace"))
    counts = {name: get_field(about, name, int) for name in ("windows", "tokens", "examples")}
    for name, count in counts.items():
        check_whole_number(name, count, 1)
    layers = decode_layers(get_field(about, "layers", list))
    examples = decode_examples(tensors, layers, counts["examples"])
    if unknown := tensors.keys() - name_tensors(examples).keys():
        raise ValueError(f"tensors: expected those of the examples, got {shorten(min(unknown))} as well")
    table = HeadTable.from_json(get_field(about, "table", str))
    places = [(layer.key, head) for layer in layers for head in layer.heads]
    if not layers or [(row.key, row.head) for row in table] != places:
        raise ValueError("table: expected a row for every head of the layers, in their order")
    words = {}
    for token, word in get_field(about, "words", dict).items():
        if not token.isdecimal() or len(token) > 10:
            raise ValueError(f"words: expected the numbers of tokens, got {token[:20]!r}")
        words[int(token)] = check_type("words", word, str)[:MAX_WORD]
    model = get_field(about, "model", str)[:MAX_MODEL]
    table = replace(table, texts=counts["windows"], tokens=counts["tokens"], model=model)
    return SurveyResult(table, layers, examples, words)
