"""A trained model from a folder, a hub name or a GGUF file, with every tensor accounted for.

Safetensors and GGUF only: a pickle runs whatever code it holds when it is opened, so it is refused. This file
knows where weights lie and checks that they fit; `families` knows what they are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from regard.extras import extra
from regard.gpt import downloads, gguf
from regard.gpt.config import Config
from regard.gpt.families import WeightPart, family_of, is_derived, with_head
from regard.gpt.folder import CONFIG, OURS, TOKENIZER, WEIGHTS, Stored
from regard.safetensor_files import open_safetensors

if TYPE_CHECKING:
    from regard.gpt.model import GPT

    Model = TypeVar("Model", bound=GPT)

BOX = Path(__file__).parent / "box"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load(
    cls: type[Model],
    name: str | PathLike[str],
    *,
    dtype: torch.dtype | None = torch.float32,
    device: str | torch.device = "cpu",
) -> Model:
    """A trained model, in eval mode.

    `name` is "default" (the small one in the package), "smollm2" (fetched by `regard data smollm2`), a folder
    that `model.save` or Transformers' `save_pretrained` wrote, a `.gguf` file, or a name on the Hugging Face
    hub, the only one that may use the network. `dtype=None` keeps the dtype of the files.
    """
    path = _located(name)
    stored = gguf.read(path) if path.suffix == ".gguf" else _read_folder(path)
    try:
        config, table = _understood(stored)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    with torch.device("meta"):  # no memory and no random numbers for weights that are about to be replaced
        model = cls(config)
    shapes = {ours: tuple(x.shape) for ours, x in model.state_dict().items()}
    made = {ours: _made(stored, ours, table[ours], shape, dtype).to(device) for ours, shape in shapes.items()}
    model.load_state_dict(made, assign=True)
    model.tokenizer = stored.tokenizer
    return model.eval()


def _understood(stored: Stored) -> tuple[Config, dict[str, WeightPart]]:
    """The config, and of which stored tensors each of ours is made; every one of them must have its place."""
    there = set(stored.tensors)
    if stored.settings.get("model_type") == OURS:
        config = Config.from_json({k: v for k, v in stored.settings.items() if k != "model_type"})
        with torch.device("meta"):
            from regard.gpt.model import GPT  # which imports this file

            table = {name: WeightPart((name,)) for name in GPT(config).state_dict()}
        _account(there, table, lambda name: False)
        return config, table
    family = family_of(stored.settings)
    config = family.config(stored.settings)
    prefix = family.prefix if any(name.startswith(family.prefix) for name in there) else ""
    table = with_head(family.parts(config), prefix, config)
    if config.tied and "lm_head.weight" in there:
        _check_tied(stored, table["token_embedding.weight"].names[0])
        there.remove("lm_head.weight")
    _account(there, table, lambda name: is_derived(family, name))
    return config, table


def _account(there: set[str], table: Mapping[str, WeightPart], derived: Callable[[str], bool]) -> None:
    """ValueError names the tensors that are missing and those that have no place."""
    needed = {name for part in table.values() for name in part.names}
    problems = []
    if missing := sorted(needed - there):
        problems.append(f"{len(missing)} missing ({_some(missing)})")
    if surplus := sorted(name for name in there - needed if not derived(name)):
        problems.append(f"{len(surplus)} with no place in it ({_some(surplus)})")
    if problems:
        raise ValueError(
            f"expected the {len(needed)} tensors that config.json asks for: {', '.join(problems)}"
        )


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _check_tied(stored: Stored, embedding: str) -> None:
    if embedding in stored.tensors and not torch.equal(
        stored.tensors["lm_head.weight"](), stored.tensors[embedding]()
    ):
        raise ValueError(
            "lm_head.weight: expected the same numbers as the embedding, since tie_word_embeddings is true, "
            "got others: set tie_word_embeddings to false in config.json if they are meant"
        )


def _made(
    stored: Stored, ours: str, part: WeightPart, shape: tuple[int, ...], dtype: torch.dtype | None
) -> Tensor:
    """One of our tensors, of theirs; always a copy, so that nothing hangs on the file any more."""
    read = []
    for name in part.names:
        tensor = stored.tensors[name]()
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            raise ValueError(f"{stored.where}: {name}: expected plain float weights, got {tensor.dtype}")
        read.append(tensor.T if part.transposed else tensor)
    shapes = [tuple(x.shape) for x in read]
    joined = (sum(one[0] for one in shapes), *shapes[0][1:]) if all(shapes) else ()
    if joined != shape or len({one[1:] for one in shapes}) > 1:
        raise ValueError(
            f"{stored.where}: {' + '.join(part.names)}: expected {shape} for {ours}, "
            f"got {' + '.join(map(str, shapes))}"
        )
    whole = torch.cat(read) if len(read) > 1 else read[0]
    return whole.to(dtype or whole.dtype, copy=True).contiguous()


def _located(name: str | PathLike[str]) -> Path:
    if name == "default":
        if not (BOX / CONFIG).is_file():
            raise ValueError(f"'default': expected the model of the package in {BOX}, which this copy lacks")
        return BOX
    if name == "smollm2":
        return downloads.fetched("smollm2")
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix in PICKLES:
            raise _pickle(path, path.parent)
        if path.suffix != ".gguf":
            raise ValueError(f"{path}: expected a .gguf file, or the folder that the weights are in")
        return path
    if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) and path.suffix != ".gguf":
        return _from_hub(name)
    raise ValueError(
        f"{name}: expected a folder, a .gguf file or a name on the hub, and there is none of these"
    )


def _from_hub(name: str) -> Path:
    """The files of a model on the Hugging Face hub, from its cache or over the network."""
    with extra("app", "a model from the hub"):
        from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors"]
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # offline, no such name, no permission: whatever the network comes up with
        first = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{name}: there is no such folder, and it could not be fetched from the hub "
            f"({type(error).__name__}: {first}); with no network, give a folder, or 'default'"
        ) from None


def _read_folder(folder: Path) -> Stored:
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: expected a {CONFIG}, which says what the model is made of, got none")
    settings = _json(folder / CONFIG)
    if "eos_token_id" in (generation := _json(folder / "generation_config.json", optional=True)):
        settings["eos_token_id"] = generation["eos_token_id"]  # chat models end with more tokens than texts
    tokenizer = None
    if (folder / TOKENIZER).is_file():
        with extra("app", f"the tokenizer of {folder.name}"):
            from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # `tokenizers` raises nothing narrower
            raise ValueError(f"{folder / TOKENIZER}: {error}") from None
    return Stored(folder, settings, _tensors(folder), tokenizer)


def _tensors(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Every tensor of a folder by name, in one file or in several with an index."""
    if (folder / INDEX).is_file():
        places: Any = _json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(
            isinstance(file, str) and Path(file).name == file for file in places.values()
        ):
            raise ValueError(f"{folder / INDEX}: expected a weight_map of tensors to files in this folder")
        files = sorted(set(places.values()))
    elif (folder / WEIGHTS).is_file():
        files, places = [WEIGHTS], None
    elif pickles := sorted(path for path in folder.iterdir() if path.suffix in PICKLES):
        raise _pickle(pickles[0], folder)
    else:
        raise ValueError(f"{folder}: expected {WEIGHTS}, or several files with {INDEX}, got neither")
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        if not (folder / file).is_file():
            raise ValueError(f"{folder}: expected {file}, which {INDEX} names, and it is not there")
        opened = open_safetensors(folder / file)
        for name in opened.keys():  # noqa: SIM118
            found[name] = lambda opened=opened, name=name: opened.get_tensor(name)  # type: ignore[misc]
    if places is not None and (missing := sorted(set(places) - set(found))):
        raise ValueError(f"{folder}: {INDEX} names tensors that its files lack: {_some(missing)}")
    return found


def _json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(read).__name__}")
    return read


def _pickle(path: Path, folder: Path) -> ValueError:
    return ValueError(
        f"{path} is a pickle, which can run any code when it is opened, so Regard never opens one. "
        "If you trust it, convert it once with Transformers: "
        'python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
    )
