"""Measure which ways of packing keep documents apart, and write docs/packing.md.

    python -m scripts.packing_table            rewrite the page
    python -m scripts.packing_table --check    change nothing; exit with 1 if the page is out of date

Every cell is an audit of a small model with random weights on a batch of three documents. Nothing is assumed
of a library from its documentation: its own collator makes the batch, and what fails to run is said with its
error. TRL is not needed to run Regard; `make packing-table` installs it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import regard
from regard.support.files import atomic_write

PAGE = Path(__file__).parent.parent / "docs" / "packing.md"
LENGTHS = (9, 12, 7)  # of the three documents; the windows below are shorter than the second
VOCABULARY, WINDOW = 64, 8
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")
ISOLATED, LEAKS, UNKNOWN, NOT_RUN = "✓", "✗", "?", "–"

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LAYER_TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
# Bamba's second layer is attention, and the state of its first is small.
_BAMBA = {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8}
_BAMBA |= {"mamba_n_groups": 1, "mamba_chunk_size": 8}
_QWEN3_NEXT = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", _SIZES),
    "Mistral": ("mistral", _SIZES | {"sliding_window": WINDOW}),
    "Qwen3": ("qwen3", _SIZES | {"head_dim": 16}),
    "Gemma 3": ("gemma3_text", _SIZES | _LAYER_TYPES | {"head_dim": 16}),
    "GPT-OSS": (
        "gpt_oss",
        _SIZES | _LAYER_TYPES | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "GPT-2": ("gpt2", {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 2} | _GPT2),
    "Phi-3": ("phi3", _SIZES),
    "OLMo 2": ("olmo2", _SIZES),
    "Falcon": ("falcon", _SIZES | {"new_decoder_architecture": False, "alibi": False}),
    "Bamba": ("bamba", _SIZES | _BAMBA),
    "Qwen3-Next": ("qwen3_next", _SIZES | _QWEN3_NEXT),
}
"""The model types that are measured, with the values that make them small. The last two are hybrids."""


Texts = tuple[tuple[int, ...], ...]
"""The token ids of each document."""


@dataclass(frozen=True)
class Packing:
    """One way to pack documents into a batch."""

    name: str
    make: Callable[[Any, Texts], dict[str, Any]]
    """Makes the arguments of a model from the documents, as the library does that packs them."""


@dataclass(frozen=True)
class Measurement:
    """What the audit of one model on one batch said."""

    mark: str
    why: str = ""
    """Why it is not known, or was not run."""


def flattened(documents: Texts, **options: Any) -> dict[str, Any]:
    """Return what Transformers' flattening collator makes of documents."""
    collator = transformers.DataCollatorWithFlattening(**options)
    return dict(collator([{"input_ids": list(ids)} for ids in documents]))


def in_trainer(model: Any, documents: Texts, **options: Any) -> dict[str, Any]:
    """Return the first batch of a `Trainer` with the flattening collator, which also configures the model."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=len(documents), use_cpu=True, report_to="none"
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            data_collator=transformers.DataCollatorWithFlattening(**options),
            train_dataset=[{"input_ids": list(ids)} for ids in documents],
        )
        return dict(next(iter(trainer.get_train_dataloader())))


def joined(documents: Texts, **arguments: Any) -> dict[str, Any]:
    """Return documents in one row, with positions that begin again with each."""
    ids = torch.tensor([[token for text in documents for token in text]])
    positions = torch.cat([torch.arange(len(text)) for text in documents])[None]
    return {"input_ids": ids, "position_ids": positions, **arguments}


def with_ones(documents: Texts) -> dict[str, Any]:
    """Return documents in one row, with a mask of 1 for every token, as padding collators make it."""
    batch = joined(documents, use_cache=False)
    return batch | {"attention_mask": torch.ones_like(batch["input_ids"])}


def with_blocks(documents: Texts) -> dict[str, Any]:
    """Return documents in one row, with a mask (1, 1, T, T) that is causal within each document."""
    batch = joined(documents, use_cache=False)
    mask = regard.causal & regard.documents(document_order(batch["input_ids"], documents)[0])
    allowed = mask.to_dense(batch["input_ids"].shape[1])
    hidden = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    return batch | {"attention_mask": hidden[None, None]}


@functools.cache
def trl_batch(documents: Texts, strategy: str | None) -> dict[str, Any]:
    """Return what TRL's packing and its collator make of documents, and SFTTrainer passes to the model.

    Arguments:
        documents: the token ids of each document.
        strategy: that of `SFTConfig(packing_strategy=…)`; None for `padding_free=True` without packing.
    """
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    disable_progress_bars()
    rows: Any = Dataset.from_dict({"input_ids": [list(ids) for ids in documents]})
    if strategy is not None:
        rows = pack_dataset(rows, sum(map(len, documents)), strategy)
    # SFTTrainer (TRL 1.16) switches padding_free on for every strategy but "wrapped".
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=strategy != "wrapped")
    # SFTTrainer.compute_loss (TRL 1.16) passes use_cache=False.
    return dict(collator(list(rows))) | {"use_cache": False}


EDGES = {"return_flash_attn_kwargs": True, "return_seq_idx": True}
PACKINGS = (
    Packing("`DataCollatorWithFlattening()`, in a loop of your own", lambda _, x: flattened(x)),
    Packing("`DataCollatorWithFlattening()` in `Trainer`", in_trainer),
    Packing("the same with `cu_seq_lens` and `seq_idx`", lambda model, x: in_trainer(model, x, **EDGES)),
    Packing("restarting `position_ids`, `use_cache=True`", lambda _, x: joined(x, use_cache=True)),
    Packing("restarting `position_ids`, `use_cache=False`", lambda _, x: joined(x, use_cache=False)),
    Packing("the same, and `attention_mask` of ones", lambda _, x: with_ones(x)),
    Packing("the same, and a block-diagonal mask (1, 1, T, T)", lambda _, x: with_blocks(x)),
    Packing('TRL, `packing_strategy="bfd"`', lambda _, x: trl_batch(x, "bfd")),
    Packing("TRL, `padding_free=True`", lambda _, x: trl_batch(x, None)),
    Packing('TRL, `packing_strategy="wrapped"`', lambda _, x: trl_batch(x, "wrapped")),
)


def make_documents() -> Texts:
    """Return three documents of ordinary tokens."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in LENGTHS]
    return tuple(tuple(ids.tolist()) for ids in drawn)


def build_model(family: str) -> torch.nn.Module:
    """Return a small model of a family with random weights."""
    model_type, values = FAMILIES[family]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **values)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # Transformers' own first weights are so small that heads hardly tell keys apart
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.15)
    return model


def measure(model: Any, packing: Packing, implementation: str, documents: Texts) -> Measurement:
    """Audit a model on a batch; whatever it raises is the reason why it was not run."""
    uses_cache = model.config.use_cache
    try:
        model.set_attn_implementation(implementation)
        batch = packing.make(model, documents)
        audit = regard.audit(model, batch, documents=document_order(batch["input_ids"], documents))
    except Exception as error:  # each library fails in its own way, and the page says how
        return Measurement(NOT_RUN, reason(error))
    finally:
        model.config.use_cache = uses_cache
    answer = next((x for x in audit.answers if x.question == "documents"), None)
    if answer is not None and answer.right is False and not answer.differs:
        return Measurement(LEAKS)
    if answer is None or not answer.right or audit.verdict == "undecided":
        return Measurement(UNKNOWN, audit.undecided or audit.summary)
    return Measurement(ISOLATED)


def document_order(ids: Tensor, documents: Texts) -> Tensor:
    """Return the document of each token of a packed row, (1, T), in whatever order they were packed."""
    row, numbers = tuple(ids[0].tolist()), []
    left = dict(enumerate(documents))
    while left:
        start = len(numbers)
        number = next((n for n, text in left.items() if row[start : start + len(text)] == text), None)
        if number is None:
            raise ValueError(f"expected the documents one after the other, got {row[start:]} at {start}")
        numbers += [number] * len(left.pop(number))
    if len(numbers) != len(row):
        raise ValueError(f"expected a row of {len(numbers)} tokens, got {len(row)}")
    return torch.tensor([numbers])


def reason(error: BaseException) -> str:
    """Return what an error says, up to the end of its first sentence."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {re.split(r'(?<=[.?!]) (?=[A-Z])', line)[0].rstrip('.')}"


@contextlib.contextmanager
def quiet_and_uncompiled() -> Iterator[None]:
    """Inside the block libraries do not warn, and FlexAttention runs without a compiler.

    PyTorch 2.13 does not compile FlexAttention on ARM processors; uncompiled it has the same mask function.
    """
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    torch.compiler.set_stance("force_eager")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.compiler.set_stance("default")
        transformers.logging.set_verbosity(verbosity)


Survey = dict[tuple[str, str, str], Measurement]
"""A measurement by implementation, packing and family."""


def survey() -> Survey:
    """Measure every packing with every family and implementation."""
    documents = make_documents()
    results = {}
    with quiet_and_uncompiled():
        for family in FAMILIES:
            model = build_model(family)
            for packing in PACKINGS:
                for implementation in IMPLEMENTATIONS:
                    key = implementation, packing.name, family
                    results[key] = measure(model, packing, implementation, documents)
    return results


def write_page(results: Survey) -> str:
    """Return the page with the tables of a survey."""
    tables = "\n".join(table(results, implementation) for implementation in IMPLEMENTATIONS)
    return TEXT.format(versions=versions(), tables=tables)


def table(results: Survey, implementation: str) -> str:
    """Return one implementation's table, and under it why cells are empty."""
    notes: dict[str, int] = {}
    rows = [f"| | {' | '.join(FAMILIES)} |", f"|---{'|:-:' * len(FAMILIES)}|"]
    for packing in PACKINGS:
        cells = []
        for family in FAMILIES:
            measurement = results[implementation, packing.name, family]
            number = notes.setdefault(measurement.why, len(notes) + 1) if measurement.why else ""
            cells.append(f"{measurement.mark}{number and f' {number}'}")
        rows.append(f"| {packing.name} | {' | '.join(cells)} |")
    reasons = [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join([f"## `{implementation}`", "", *rows, "", *reasons, *([""] if reasons else [])])


def versions() -> str:
    """Return the versions of the libraries that were measured."""
    found = []
    for name, title in (("torch", "PyTorch"), ("transformers", "Transformers"), ("trl", "TRL")):
        try:
            found.append(f"{title} {importlib.metadata.version(name).partition('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{title}, which was not installed")
    return f"{', '.join(found[:-1])} and {found[-1]}"


TEXT = """\
# Which packing keeps documents apart? Measured

Written by `make packing-table` with {versions}. Each cell is
[`regard.audit`](how-to/is-my-packing-isolated.md) of a small model with random weights on three documents
in one row: from inside, by the mask of every layer, and from outside, by changing one document and looking
at the outputs of the others. The collators are the libraries' own.

✓ isolated · ✗ documents read each other · ? not known · – not run, for the reason under the table

- *In a loop of your own*: the collator's batch goes to the model as it is, so that `use_cache` is what the
  model's configuration says.
- *In `Trainer`*: the batch is that of `Trainer(…).get_train_dataloader()`. `Trainer` sets
  `config.use_cache` to its own argument of that name, which is False.
- *`cu_seq_lens` and `seq_idx`*: the collator with `return_flash_attn_kwargs=True, return_seq_idx=True`.
- *A block-diagonal mask* is joined with `causal`. It takes the place of the model's own mask in every
  layer, windows included: if the model has windows, they must be in yours.
- *TRL*: `pack_dataset` and the collator of `SFTTrainer`, with the `use_cache=False` that its `compute_loss`
  passes. The strategy `"wrapped"` joins documents and keeps no borders; here they are told to the audit.

{tables}
FlashAttention, whose kernels take the borders of documents as `cu_seq_lens`, needs a GPU and was not
measured. FlexAttention ran without `torch.compile`, which needs an x86 processor or a GPU; its mask is the
same function.
"""


def main() -> None:
    """Rewrite the page, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if out of date")
    page = write_page(survey())
    if parser.parse_args().check:
        sys.exit(int(PAGE.read_text(encoding="utf-8") != page))
    with atomic_write(PAGE) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
