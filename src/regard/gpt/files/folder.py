"""A model on disk: a folder with `model.safetensors`, `config.json` and, if it has one, `tokenizer.json`.

This file knows their names and writes them. Each file is written under a temporary name and renamed when all
of them are complete, so that an interrupted save leaves the previous model. `loader` reads them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from regard.support.files import atomic_write, make_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MODEL_TYPE = "regard"
"""The `model_type` in a `config.json` that this file wrote."""


class StoredTensor(NamedTuple):
    """A tensor on disk; `read()` reads it."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


class StoredModel(NamedTuple):
    """A model on disk, with the names of its own family; no tensor has been read yet."""

    path: Path
    settings: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    tokenizer: Tokenizer | None
    names: Mapping[str, str] = MappingProxyType({})
    """What the file calls the settings that it has other names for."""


def save(model: GPT, path: str | os.PathLike[str]) -> None:
    """Write a model to a folder, which is created if need be; an OSError says why it could not be written."""
    folder = Path(path)
    make_folder("path", folder)
    config = {"model_type": MODEL_TYPE, **model.config.to_json()}
    # safetensors refuses tensors that are not contiguous.
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    try:
        with (
            atomic_write(folder / WEIGHTS) as weights_file,
            atomic_write(folder / CONFIG) as config_file,
        ):
            # Transformers 4 refuses safetensors files without this field.
            save_file(weights, weights_file, metadata={"format": "pt"})
            config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            if model.tokenizer is None:
                (folder / TOKENIZER).unlink(missing_ok=True)  # it would be the tokenizer of a previous model
            else:
                with atomic_write(folder / TOKENIZER) as tokenizer_file:
                    tokenizer_file.write_text(model.tokenizer.to_str(pretty=True), encoding="utf-8")
    # On a full disk the library raises its own error, which is no OSError.
    except (SafetensorError, OSError) as error:
        raise OSError(f"cannot write the model to {folder}: {error}") from None
