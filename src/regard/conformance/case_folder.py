"""The folder of cases: `index.json`, and `cases.safetensors` with every tensor that it names."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.conformance.cases import ConformanceCase, make_cases
from regard.support.files import FileError, make_folder, read_json
from regard.support.safetensor_files import SafetensorFile, write_safetensors

FORMAT, VERSION = "regard-conformance", 2
INDEX, TENSORS = "index.json", "cases.safetensors"
# The largest difference of an output, relative to the largest number of the right one, by dtype.
TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
GRADIENTS = ("dq", "dk", "dv")


def write_cases(folder: str | os.PathLike[str], seed: int = 0) -> Path:
    """Write inputs and right answers into a folder, which is made if it is not there; return the index.

    The same seed gives the same bytes. The page "The format of the cases" says what each field means.

    Arguments:
        folder: where to write `index.json` and `cases.safetensors`.
        seed: another seed draws other numbers.
    """
    folder = Path(folder)
    make_folder("folder", folder)
    cases = make_cases(seed)
    tensors: dict[str, Tensor] = {}
    entries = []
    for case in cases:
        inputs, answers = case.tensors(), case.answers()
        tensors |= {f"{case.name}.{name}": x for name, x in (inputs | answers).items()}
        entries.append(describe(case, inputs, answers))
    path = folder / TENSORS
    write_safetensors(path, tensors, {"format": FORMAT})
    index = {
        "format": FORMAT,
        "version": VERSION,
        "seed": seed,
        "tensors": TENSORS,
        "tolerances": TOLERANCES,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "cases": entries,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return folder / INDEX


def describe(case: ConformanceCase, inputs: dict[str, Tensor], answers: dict[str, Tensor]) -> dict[str, Any]:
    """Return the entry of a case in the index."""
    question = case.question
    B, H, T, D = question.q.shape
    G, S, E = question.v.shape[1:]
    lengths, features = question.lengths, list(case.features())
    return {
        "name": case.name,
        "what": case.what or ", ".join(features) or "no option",
        "dtype": case.dtype,
        "sizes": {"B": B, "H": H, "G": G, "T": T, "S": S, "D": D, "E": E},
        "layout": "packed" if case.is_packed else "BHTD",
        "features": features,
        "causal": question.causal,
        "window": question.window,
        "ahead": question.ahead,
        "softcap": question.softcap,
        "scale": D**-0.5 if case.scale is None else case.scale,
        "lengths": None if lengths is None else {"queries": list(lengths[0]), "keys": list(lengths[1])},
        "pieces": None if case.pieces is None else list(case.pieces),
        "inputs": {name: f"{case.name}.{name}" for name in inputs},
        "answers": {name: f"{case.name}.{name}" for name in answers},
        "tolerance": TOLERANCES[case.dtype],
    }


def read_cases(folder: str | os.PathLike[str]) -> tuple[int, list[ConformanceCase], dict[str, Tensor]]:
    """Return the seed of a folder, its cases and its tensors; ValueError says what is wrong with it."""
    folder = Path(folder)
    index = read_json(folder / INDEX, FileError)
    if index.get("format") != FORMAT or index.get("version") != VERSION:
        found = f"{index.get('format')!r}, version {index.get('version')!r}"
        raise FileError(f"{folder / INDEX}: expected {FORMAT!r}, version {VERSION}, got {found}")
    path = folder / TENSORS
    file = SafetensorFile(path, FileError)
    if hashlib.sha256(path.read_bytes()).hexdigest() != index.get("sha256"):
        raise FileError(f"{path}: its contents are not those that the index was written for: write it anew")
    seed = index.get("seed")
    if not isinstance(seed, int):
        raise FileError(f"{folder / INDEX}: expected an integer as seed, got {seed!r}")
    return seed, make_cases(seed), {name: file.read(name) for name in file.shapes}
