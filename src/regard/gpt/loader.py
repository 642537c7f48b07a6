"""Loads a trained model from a folder, a hub name or a GGUF file, and checks every tensor.

Only safetensors and GGUF are read: opening a pickle runs any code in it, so pickles are refused. This file
finds the files and checks that their tensors fit; `families` knows what they are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from regard.extras import extra
from regard.gpt import downloads, gguf
from regard.gpt.config import Config
from regard.gpt.families import WeightPart, add_head, find_family, is_derived
from regard.gpt.folder import CONFIG, MODEL_TYPE, TOKENIZER, WEIGHTS, StoredModel
from regard.safetensor_files import open_safetensors

if TYPE_CHECKING:
    from regard.gpt.model import GPT

    Model = TypeVar("Model", bound=GPT)

INCLUDED_MODEL = Path(__file__).parent / "included_model"
"""The folder of the model in the package, "default"."""
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


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
    path = _locate(name)
    stored = gguf.read(path) if path.suffix == ".gguf" else _read_folder(path)
    try:
        config, sources = _read_config(stored, cls)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    # On the meta device: no memory and no random numbers for weights that are replaced at once.
    with torch.device("meta"):
        model = cls(config)
    shapes = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    weights = {
        name: _read_weight(stored, name, sources[name], shape, dtype).to(device)
        for name, shape in shapes.items()
    }
    model.load_state_dict(weights, assign=True)
    model.tokenizer = stored.tokenizer
    return model.eval()


def _read_config(stored: StoredModel, cls: type[GPT]) -> tuple[Config, dict[str, WeightPart]]:
    """The config, and for each parameter of `cls` the stored tensors that it is made of.

    A ValueError names stored tensors that are missing or that belong nowhere.
    """
    names = set(stored.tensors)
    # A folder that `GPT.save` wrote has our own names.
    if stored.settings.get("model_type") == MODEL_TYPE:
        config = Config.from_json({k: v for k, v in stored.settings.items() if k != "model_type"})
        with torch.device("meta"):
            sources = {name: WeightPart((name,)) for name in cls(config).state_dict()}
        _check_names(names, sources, lambda name: False)
        return config, sources
    # Otherwise the names are those of a family in Transformers.
    family = find_family(stored.settings)
    config = family.config(stored.settings)
    prefix = family.prefix if any(name.startswith(family.prefix) for name in names) else ""
    sources = add_head(family.parts(config), prefix, config)
    if config.tie_word_embeddings and "lm_head.weight" in names:
        _check_tied(stored, sources["token_embedding.weight"].names[0])
        names.remove("lm_head.weight")
    _check_names(names, sources, lambda name: is_derived(family, name))
    return config, sources


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
    if embedding in stored.tensors and not torch.equal(
        stored.tensors["lm_head.weight"](), stored.tensors[embedding]()
    ):
        raise ValueError(
            "lm_head.weight: expected the values of the embedding, since tie_word_embeddings is true, "
            "got others: set tie_word_embeddings to false in config.json to use them"
        )


def _read_weight(
    stored: StoredModel, name: str, part: WeightPart, shape: tuple[int, ...], dtype: torch.dtype | None
) -> Tensor:
    """The parameter `name`, concatenated from its stored parts; a copy that does not refer to the file."""
    tensors = []
    for source in part.names:
        tensor = stored.tensors[source]()
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise ValueError(f"{stored.path}: {source}: expected float weights, got {tensor.dtype}")
        tensors.append(tensor.T if part.transposed else tensor)
    shapes = [tuple(x.shape) for x in tensors]
    joined = (sum(size[0] for size in shapes), *shapes[0][1:]) if all(shapes) else ()
    if joined != shape or len({size[1:] for size in shapes}) > 1:
        raise ValueError(
            f"{stored.path}: {' + '.join(part.names)}: expected {shape} for {name}, "
            f"got {' + '.join(map(str, shapes))}"
        )
    weight = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
    return weight.to(dtype or weight.dtype, copy=True).contiguous()


def _locate(name: str | PathLike[str]) -> Path:
    """The folder or GGUF file that `name` means; a hub name is downloaded."""
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
            raise ValueError(f"{path}: expected a .gguf file, or the folder of the weights")
        return path
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and path.suffix != ".gguf":
        return _download_from_hub(name)
    raise ValueError(f"{name}: expected a folder, a .gguf file or a name on the hub, and it is none of these")


def _download_from_hub(name: str) -> Path:
    """The files of a model on the Hugging Face hub, from its cache or over the network."""
    with extra("app", "a model from the hub"):
        from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # the hub raises many types: offline, no such name, no permission
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{name}: no such folder, and it could not be downloaded from the hub "
            f"({type(error).__name__}: {reason}); without a network, give a folder, or 'default'"
        ) from None


def _read_folder(folder: Path) -> StoredModel:
    """The model in a folder that `GPT.save` or Transformers wrote."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: expected a {CONFIG}, which describes the model, got none")
    settings = _read_json(folder / CONFIG)
    # The generation config of a chat model has more end-of-text tokens than its config.
    if "eos_token_id" in (generation := _read_json(folder / "generation_config.json", optional=True)):
        settings["eos_token_id"] = generation["eos_token_id"]
    tokenizer = None
    if (folder / TOKENIZER).is_file():
        with extra("app", f"the tokenizer of {folder.name}"):
            from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise ValueError(f"{folder / TOKENIZER}: {error}") from None
    return StoredModel(folder, settings, _open_tensors(folder), tokenizer)


def _open_tensors(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """A reader for every tensor of a folder by name, from one file or from several with an index."""
    files, weight_map = _weight_files(folder)
    readers: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if not (folder / file).is_file():
            raise ValueError(f"{folder}: expected {file}, which {INDEX} names, and it is missing")
        tensors = open_safetensors(folder / file)
        for name in tensors.keys():  # noqa: SIM118
            readers[name] = lambda tensors=tensors, name=name: tensors.get_tensor(name)  # type: ignore[misc]
    if missing := sorted(set(weight_map) - set(readers)):
        raise ValueError(f"{folder}: {INDEX} names tensors that its files lack: {_shorten(missing)}")
    return readers


def _weight_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the safetensors files, and the index of tensors to files, empty for a single file."""
    if (folder / INDEX).is_file():
        weight_map: Any = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in weight_map.values()
        ):
            raise ValueError(f"{folder / INDEX}: expected a weight_map of tensors to files in this folder")
        return sorted(set(weight_map.values())), weight_map
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS], {}
    if pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
        raise _pickle_error(pickles[0], folder)
    raise ValueError(f"{folder}: expected {WEIGHTS}, or several files with {INDEX}, got neither")


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; {} if an `optional` file does not exist."""
    if optional and not path.is_file():
        return {}
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None
    if not isinstance(plain, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(plain).__name__}")
    return plain


def _pickle_error(path: Path, folder: Path) -> ValueError:
    return ValueError(
        f"{path} is a pickle, which can run any code when it is opened, so Regard never opens one. "
        "If you trust it, convert it once with Transformers: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
    )
