"""A model on disk: a folder with `model.safetensors`, `config.json` and, if it has one, `tokenizer.json`.

Every file is written beside its place first and moved there when all of them are whole, so that an
interrupted save leaves what was there before. Reading them is `loading`'s business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from regard.atomic import atomic_write

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
OURS = "regard"  # the model_type in a config.json of this project


class Stored(NamedTuple):
    """A model as it lies on disk, in its own family's words: each tensor is read when it is called for."""

    where: Path
    settings: dict[str, Any]
    tensors: Mapping[str, Callable[[], Tensor]]
    tokenizer: Tokenizer | None


def save(model: GPT, path: str | os.PathLike[str]) -> None:
    """Write a model to a folder; ValueError if there is nowhere to make it."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"path: expected a folder, got {folder}, which is a file")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"path: expected a folder in one that exists, got {folder}: make {folder.parent}")
    folder.mkdir(exist_ok=True)
    config = {"model_type": OURS, **model.config.to_json()}
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    with (
        atomic_write(folder / WEIGHTS) as weights_file,
        atomic_write(folder / CONFIG) as config_file,
    ):
        save_file(weights, weights_file, metadata={"format": "pt"})
        config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if model.tokenizer is None:
            (folder / TOKENIZER).unlink(missing_ok=True)  # another model's, which would mislead
        else:
            with atomic_write(folder / TOKENIZER) as tokenizer_file:
                model.tokenizer.save(str(tokenizer_file))
