"""Loads a trained model from a folder, a hub name or a GGUF file, and checks every tensor.

Only safetensors and GGUF are read: opening a pickle runs any code in it, so pickles are refused. This file
finds the files and checks that their tensors fit; `families` knows what they are called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.gpt.config import Config
from regard.gpt.files import downloads, gguf
from regard.gpt.files.families import WeightPart, add_head, find_family, is_derived
from regard.gpt.files.folder import CONFIG, MODEL_TYPE, TOKENIZER, WEIGHTS, StoredModel, StoredTensor
from regard.gpt.files.meta_device import without_weights
from regard.gpt.files.tokenizer_limits import check_limits
from regard.support.files import (
    ModelFileError,
    check_type,
    converting_errors,
    is_present,
    naming_errors,
    parse_object,
    read_json,
    read_text,
    shorten,
)
from regard.support.imports import extra
from regard.support.safetensor_files import SafetensorFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from regard.gpt.model import GPT

    Model = TypeVar("Model", bound=GPT)

INCLUDED_MODEL = Path(__file__).parent.parent / "included_model"
"""The folder of the model in the package, "default"."""
INDEX, GENERATION_CONFIG = "model.safetensors.index.json", "generation_config.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_LAYERS = 256
"""The most layers of a model that is loaded: twice as many as Llama 3.1 405B has."""
TRIAL = "A 1"  # which every tokenizer encodes once it is read
TRIAL_IDS = 16  # which it decodes then


def load(
    cls: type[Model],
    name: str | PathLike[str],
    *,
    dtype: torch.dtype | None = torch.float32,
    device: str | torch.device = "cpu",
) -> Model:
    """Load a trained model of class `cls`, in eval mode.

    - `name`: "default" (the small model in the package), "smollm2" (downloaded by `regard data smollm2`), a
      folder written by `GPT.save` or by Transformers' `save_pretrained`, a `.gguf` file, or a name on the
      Hugging Face hub. Only a hub name may use the network.
    - `dtype`: the dtype of the weights; None keeps that of the files.
    - `device`: where the weights are put.
    """
    path = locate(name)
    stored = gguf.read(path) if path.suffix == ".gguf" else _read_folder(path)
    # The config is checked against the headers of the files before any memory of its sizes is taken.
    with naming_errors(path, ModelFileError):
        config = _read_config(stored)
        try:
            with without_weights():
                model = cls(config)
        except (RuntimeError, TypeError, OverflowError) as error:  # a size beyond 64 bits
            reason = str(error).partition("\n")[0]
            raise ValueError(f"config: expected sizes that tensors can have, got {reason}") from None
        parameters = model.state_dict()
        sources = _find_sources(stored, config, parameters)
        for parameter, part in sources.items():
            _check_shape(stored, parameter, part, tuple(parameters[parameter].shape))
    weights = {parameter: _read_weight(stored, part, dtype).to(device) for parameter, part in sources.items()}
    # assign: parameters on the meta device have no memory to copy into.
    model.load_state_dict(weights, assign=True)
    model.tokenizer = stored.tokenizer
    return model.eval()


def _read_config(stored: StoredModel) -> Config:
    """The config of a folder that `GPT.save` wrote, or of a family in Transformers."""
    if stored.settings.get("model_type") == MODEL_TYPE:
        _check_layers(stored, "num_layers")
        return Config.from_json({k: v for k, v in stored.settings.items() if k != "model_type"})
    family = find_family(stored.settings)
    _check_layers(stored, family.layers)
    return family.config(stored.settings)


def _find_sources(stored: StoredModel, config: Config, parameters: Iterable[str]) -> dict[str, WeightPart]:
    """For each of the model's parameters the stored tensors that it is made of.

    A ValueError names stored tensors that are missing or that belong nowhere.
    """
    names = set(stored.tensors)
    # A folder that `GPT.save` wrote has our own names.
    if stored.settings["model_type"] == MODEL_TYPE:
        sources = {name: WeightPart((name,)) for name in parameters}
        _check_names(names, sources, lambda name: False)
        return sources
    family = find_family(stored.settings)
    # Saved from AutoModel, without the language-model head, a family's names lack their prefix.
    prefix = family.prefix if any(name.startswith(family.prefix) for name in names) else ""
    sources = add_head(family.parts(config), prefix, config)
    # Files may hold the tied matrix under both names; equal values are dropped.
    if config.tie_word_embeddings and "lm_head.weight" in names:
        _check_tied(stored, sources["token_embedding.weight"].names[0])
        names.remove("lm_head.weight")
    _check_names(names, sources, lambda name: is_derived(family, name))
    return sources


def _check_layers(stored: StoredModel, name: str) -> None:
    """Raise a ValueError if the setting `name` asks for more layers than the tensors can fill."""
    if name not in stored.settings:
        return  # the config says so
    most = min(MAX_LAYERS, len(stored.tensors))
    in_file = stored.names.get(name, name)
    if check_whole_number(in_file, stored.settings[name]) > most:
        raise ValueError(
            f"{in_file}: expected at most {most} layers, since the files hold {len(stored.tensors)} tensors "
            f"and a model has at most {MAX_LAYERS} layers, got {shorten(stored.settings[name])}"
        )


def _check_names(names: set[str], sources: Mapping[str, WeightPart], derived: Callable[[str], bool]) -> None:
    """Raise a ValueError that lists missing and surplus tensors; `derived` ones may be surplus."""
    required = {name for part in sources.values() for name in part.names}
    problems = []
    if missing := sorted(required - names):
        problems.append(f"{len(missing)} missing ({_shorten(missing)})")
    if surplus := sorted(name for name in names - required if not derived(name)):
        problems.append(f"{len(surplus)} with no place in the model ({_shorten(surplus)})")
    if problems:
        raise ValueError(f"expected the {len(required)} tensors of its config.json: {', '.join(problems)}")


def _shorten(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _check_tied(stored: StoredModel, embedding: str) -> None:
    """Raise a ValueError if a stored output matrix differs from the embedding that it is tied to."""
    if embedding not in stored.tensors:
        return  # which is an error of its own
    shapes = [stored.tensors[name].shape for name in ("lm_head.weight", embedding)]
    if shapes[0] != shapes[1] or not bool(
        (_read_float(stored, "lm_head.weight") == _read_float(stored, embedding)).all()
    ):
        raise ValueError(
            "lm_head.weight: expected the values of the embedding, since tie_word_embeddings is true, "
            "got others: set tie_word_embeddings to false in config.json to use them"
        )


def _check_shape(stored: StoredModel, parameter: str, part: WeightPart, shape: tuple[int, ...]) -> None:
    """Raise a ValueError if the stored parts of a parameter do not have its shape together."""
    shapes = [stored.tensors[name].shape for name in part.names]
    if part.transposed:
        shapes = [size[::-1] for size in shapes]
    # A tensor without dimensions has no rows to add up.
    joined = (sum(size[0] for size in shapes), *shapes[0][1:]) if all(shapes) else ()
    if joined != shape or len({size[1:] for size in shapes}) > 1:
        raise ValueError(
            f"{' + '.join(part.names)}: expected {shape} for {parameter}, got {' + '.join(map(str, shapes))}"
        )


def _read_weight(stored: StoredModel, part: WeightPart, dtype: torch.dtype | None) -> Tensor:
    """A parameter, concatenated from its stored parts; a copy that does not refer to the file."""
    tensors = [_read_float(stored, name) for name in part.names]
    if part.transposed:
        tensors = [x.T for x in tensors]
    weight = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    # copy: safetensors hands out views of the mapped file, which changes if the file is written to.
    return weight.to(dtype or weight.dtype, copy=True).contiguous()


def _read_float(stored: StoredModel, name: str) -> Tensor:
    """A stored tensor, which must hold floats of at least 16 bits."""
    tensor = stored.tensors[name].read()
    # Integers and 8-bit floats are quantised weights, which mean nothing without their scales.
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise ModelFileError(f"{stored.path}: {name}: expected float weights, got {tensor.dtype}")
    return tensor


def locate(name: str | PathLike[str]) -> Path:
    """The folder or GGUF file that `name` means; a hub name is downloaded."""
    # Before paths: a folder named "default" is still reached as ./default.
    if name == "default":
        if not (INCLUDED_MODEL / CONFIG).is_file():
            raise ValueError(
                f"'default': expected the model of the package in {INCLUDED_MODEL}, which this copy lacks"
            )
        return INCLUDED_MODEL
    if name == "smollm2":
        return downloads.cached_path("smollm2")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix in PICKLES:
            raise _pickle_error(path, path.parent)
        if path.suffix != ".gguf":
            raise ModelFileError(f"{path}: expected a .gguf file, or the folder of the weights")
        return path
    # At most one slash: a longer path is a folder that does not exist, which the hub must not be asked for.
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and path.suffix != ".gguf":
        return _download_from_hub(name)
    raise ModelFileError(
        f"{name}: expected a folder, a .gguf file or a name on the hub, and it is none of these"
    )


def _download_from_hub(name: str) -> Path:
    """The files of a model on the Hugging Face hub, from its cache or over the network."""
    with extra("app", "a model from the hub"):
        from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors"]
        # `*/*` leaves out ONNX exports and other copies of the weights in subfolders.
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # the hub raises many types: offline, no such name, no permission
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{name}: no such folder, and it could not be downloaded from the hub "
            f"({type(error).__name__}: {reason}); without a network, give a folder, or 'default'"
        ) from None


def _read_folder(folder: Path) -> StoredModel:
    """The model in a folder that `GPT.save` or Transformers wrote."""
    if not is_present(folder / CONFIG):
        raise ModelFileError(f"{folder}: expected a {CONFIG}, which describes the model, got none")
    settings = read_json(folder / CONFIG, ModelFileError)
    # The generation config of a chat model has more end-of-text tokens than its config.
    if is_present(folder / GENERATION_CONFIG):
        generation = read_json(folder / GENERATION_CONFIG, ModelFileError)
        settings["eos_token_id"] = generation.get("eos_token_id", settings.get("eos_token_id"))
    tokenizer = _read_tokenizer(folder / TOKENIZER) if is_present(folder / TOKENIZER) else None
    return StoredModel(folder, settings, open_tensors(folder), tokenizer)


def _read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`.

    It encodes whole texts: the padding and truncation that a file may ask for would change them.
    """
    with extra("app", f"the tokenizer of {path.parent.name}"):
        from tokenizers import Tokenizer

    text = read_text(path, ModelFileError, "a tokenizer")
    with naming_errors(path, ModelFileError, " is not a tokenizer that can be read"):
        check_limits(parse_object(text))
    with converting_errors(path, ModelFileError, "a tokenizer that can be read"):
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.decode(
            tokenizer.encode(TRIAL).ids[:TRIAL_IDS]
        )  # parts that refer to missing ones fail on use only
    return tokenizer


def open_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder by name, from one file or from several with an index."""
    files, weight_map = _weight_files(folder)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if not is_present(folder / file):
            raise ModelFileError(f"{folder}: expected {file}, which {INDEX} names, and it is missing")
        opened = SafetensorFile(folder / file, ModelFileError)
        for name, shape in opened.shapes.items():
            if name in tensors:
                raise ModelFileError(f"{folder / file}: {shorten(name)}: expected it in one file, got two")
            tensors[name] = StoredTensor(shape, partial(opened.read, name))
    if missing := sorted(set(weight_map) - set(tensors)):
        raise ModelFileError(f"{folder}: {INDEX} names tensors that its files lack: {_shorten(missing)}")
    return tensors


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the safetensors files, and the index of tensors to files, empty for a single file."""
    if is_present(folder / INDEX):
        index = read_json(folder / INDEX, ModelFileError)
        with naming_errors(folder / INDEX, ModelFileError):
            weight_map = check_type("weight_map", index.get("weight_map"), dict)
            for file in weight_map.values():
                _check_file_name(file)
        return sorted(set(weight_map.values())), weight_map
    if is_present(folder / WEIGHTS):
        return [WEIGHTS], {}
    if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
        raise _pickle_error(pickles[0], folder)
    raise ModelFileError(f"{folder}: expected {WEIGHTS}, or several files with {INDEX}, got neither")


def _check_file_name(file: object) -> None:
    """Raise a ValueError unless it is the name of a file, without a folder: an index names no others.

    Files that are symbolic links are opened, since the cache of the hub is made of them.
    """
    # `../other.safetensors` in an index must not lead out of the folder.
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
        raise ValueError(
            "weight_map: expected a weight_map of tensors to .safetensors files in this folder, "
            f"got {shorten(file)}"
        )


def _pickle_error(path: Path, folder: Path) -> ModelFileError:
    return ModelFileError(
        f"{path} is a pickle, which can run any code when it is opened, so Regard never opens one. "
        "If you trust it, convert it once with Transformers: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
    )
