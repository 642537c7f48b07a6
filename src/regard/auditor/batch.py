"""What a batch says of itself: its texts, which tokens are padding, and where its documents begin.

A model that comes without a batch gets three: one plain text, one padded text and one of packed documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.tensor_masks import Documents
from regard.recorder.tokens_of_maps.text_layout import documents_of_edges, documents_of_positions

IGNORED = -100  # a target that the loss leaves out
DOCUMENT_NAMES = ("document_ids", "doc_ids", "segment_ids", "seq_idx", "sequence_ids", "sample_ids")
# Transformers passes cu_seq_lens_q, flash-attn takes cu_seqlens_q.
EDGE_NAMES = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens", "cu_seq_lens")
# nanoGPT takes `idx`, Llama's own code `tokens`.
ID_NAMES = ("input_ids", "ids", "idx", "tokens")
# Whole numbers (B, T) that are no token ids.
OTHER_NAMES = (
    *("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids", "labels", "targets", "target"),
    *("decoder_attention_mask", "loss_mask", "padding_mask", "key_padding_mask", "mask"),
    *DOCUMENT_NAMES,
)
# By model type: the argument with token types, those that are read both ways, and whether each run of them
# is a block of its own. Transformers 5.22 makes `block_sequence_ids` of them for its masks.
BLOCK_TYPES = {
    "paligemma": ("token_type_ids", (0,), False),
    "hrm_text": ("token_type_ids", (1,), False),
    "molmo2": ("mm_token_type_ids", (1,), False),
    "gemma3": ("token_type_ids", (1,), True),
    "gemma4": ("mm_token_type_ids", (1, 2), True),
}


@dataclass(frozen=True)
class TextBatch:
    """A batch as a trainer passes it to a model, and what it says about its tokens.

    `B` texts of `T` tokens. For a model with an encoder these are the decoder's tokens, and `source` is the
    encoder's batch.
    """

    arguments: dict[str, Any]
    """The arguments of the model's forward pass."""
    name: str
    """The argument that holds the token ids."""
    ids: Tensor  # (B, T)
    real: Tensor  # boolean (B, T), False for padding
    documents: Tensor | None = None  # (B, T)
    labels: Tensor | None = None  # (B, T)
    positions: Tensor | None = None  # (B, T)
    given_mask: Tensor | None = None  # a mask (B, H, T, S) that the caller made
    blocks: Tensor | None = None  # (B, T): which tokens read each other both ways, as a prefix; −1 for none
    source: TextBatch | None = None
    assumptions: tuple[str, ...] = field(default=())

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        return int(self.ids.shape[0]), int(self.ids.shape[1])

    @property
    def has_padding(self) -> bool:
        """Whether some token is padding."""
        return not bool(self.real.all())

    @property
    def has_left_padding(self) -> bool:
        """Whether some text begins with padding."""
        return not bool(self.real[:, 0].all())

    def with_ids(self, ids: Tensor) -> dict[str, Any]:
        """Return the arguments of the model with other token ids."""
        return self.arguments | {self.name: ids}


def read_batch(batch: Any, documents: Tensor | None, config: Any) -> TextBatch:
    """Read a batch: a mapping of arguments.

    Arguments:
        batch: what the trainer passes to the model.
        documents: the document of each token, (B, T) or (T,); None if the batch says it.
        config: the model's configuration, or None: its padding token serves a batch without a mask.

    A ValueError says what is missing.
    """
    if not isinstance(batch, Mapping):
        raise ValueError(
            "batch: expected a dict of the model's arguments, as a collator returns it, or token ids (B, T), "
            f"got {type(batch).__name__}"
        )
    arguments, pad_id = dict(batch), getattr(config, "pad_token_id", None)
    if "decoder_input_ids" in arguments and _is_ids(arguments.get("input_ids")):
        source = _read(arguments, "input_ids", "attention_mask", None, pad_id)
        target = _read(arguments, "decoder_input_ids", "decoder_attention_mask", documents, pad_id)
        return replace(target, source=source)
    names = (*ID_NAMES, *(name for name in arguments if name not in OTHER_NAMES))
    name = next((name for name in names if _is_ids(arguments.get(name))), None)
    if name is None:
        kinds = ", ".join(f"{k}: {_described(v)}" for k, v in arguments.items()) or "nothing"
        raise ValueError(f"batch: expected token ids (B, T) in it, as `input_ids`, got {kinds}")
    text = _read(arguments, name, "attention_mask", documents, pad_id)
    return _with_blocks(text, config)


def _described(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _with_blocks(text: TextBatch, config: Any) -> TextBatch:
    """Return a batch with the tokens that a prefix model reads both ways, as its token types say."""
    name, values, runs = BLOCK_TYPES.get(getattr(config, "model_type", ""), ("", (), False))
    types = text.arguments.get(name)
    if not isinstance(types, Tensor) or types.shape != text.ids.shape or not _uses_blocks(config):
        return text
    inside = torch.isin(types.detach().cpu(), torch.tensor(values, device="cpu"))
    numbers = torch.zeros_like(inside, dtype=torch.long)
    if runs:
        numbers[:, 1:] = (inside[:, 1:] & ~inside[:, :-1]).long().cumsum(1)
    if not bool(inside.any()):
        return text
    said = f"{int(inside.sum())} tokens of a prefix read each other both ways, as `{name}` says"
    return replace(text, blocks=numbers.where(inside, -1), assumptions=(*text.assumptions, said))


def _uses_blocks(config: Any) -> bool:
    """Return whether a prefix model looks at its token types, as its configuration says."""
    both_ways = getattr(getattr(config, "text_config", config), "use_bidirectional_attention", None)
    if config.model_type == "gemma4":
        return both_ways == "vision"  # None in the smaller ones, whose pictures are read in order
    if config.model_type == "gemma3":
        return not both_ways  # else it reads the whole text both ways
    return bool(getattr(config, "prefix_lm", True))  # HRM-Text can be told to ignore them


def text_config(config: Any) -> Any:
    """Return the configuration of a model's text: of one that reads pictures too, a part of its own."""
    return getattr(config, "text_config", None) or config


def _is_ids(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2 and x.dtype in (torch.int64, torch.int32)


def _read(
    arguments: dict[str, Any], name: str, mask_name: str, documents: Tensor | None, pad_id: int | None
) -> TextBatch:
    ids = arguments[name]
    said: list[str] = []
    mask, given = arguments.get(mask_name), None
    real = torch.ones_like(ids, dtype=torch.bool, device="cpu")
    numbers = None
    if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == ids.shape:
        real = mask.detach().cpu() != 0
        # Megatron's and axolotl's packers number the documents in the mask: 1, 1, 2, 2, 2, 0.
        if not mask.is_floating_point() and int(mask.max()) > 1:
            numbers = mask.detach().cpu()
        if not bool(real.all()):
            said.append(f"{int((~real).sum())} tokens are padding, as `{mask_name}` says")
    elif isinstance(mask, Tensor) and mask.ndim in (3, 4):
        given = mask.detach()
        said.append(f"every layer sees what `{mask_name}` {tuple(mask.shape)} shows")
    elif mask is None and isinstance(pad_id, int):
        # A decoder's first token may be the padding token: T5 begins with it.
        begins = mask_name == "decoder_attention_mask"
        real = _without_padding(ids.detach().cpu(), pad_id, begins)
        if not bool(real.all()):
            said.append(f"{int((~real).sum())} tokens at the ends are padding (token {pad_id})")
    positions = arguments.get("position_ids")
    # Qwen2-VL has positions (3, B, T), of time, height and width.
    positions = positions if isinstance(positions, Tensor) and positions.ndim == 2 else None
    # Transformers takes positions (1, T) for all texts.
    positions = None if positions is None else positions.detach().cpu().expand(ids.shape)
    found, how = _find_documents(arguments, ids, real, positions, numbers, documents)
    if found is not None:
        counts = [len(set(row[keep].tolist())) for row, keep in zip(found, real, strict=True)]
        most = max(counts)
        said.append(
            f"up to {most} documents in a text, {how}" if len(counts) > 1 else f"{most} documents, {how}"
        )
    labels = arguments.get("labels")
    labels = labels.detach().cpu() if isinstance(labels, Tensor) and labels.shape == ids.shape else None
    return TextBatch(
        arguments, name, ids, real, found, labels, positions, given_mask=given, assumptions=tuple(said)
    )


def _without_padding(ids: Tensor, pad_id: int, first_is_token: bool) -> Tensor:
    """Return which tokens lie between the padding at the two ends of each text, (B, T)."""
    token = (ids != pad_id).int()
    if first_is_token:
        token[:, :1] = 1
    return (token.cumsum(1) > 0) & (token.flip(1).cumsum(1).flip(1) > 0)


def _find_documents(
    arguments: dict[str, Any],
    ids: Tensor,
    real: Tensor,
    positions: Tensor | None,
    numbers: Tensor | None,
    documents: Tensor | None,
) -> tuple[Tensor | None, str]:
    """Return the document of each token (B, T) and how it is known; None if there is one document."""
    B, T = ids.shape
    found, how = None, ""
    if documents is not None:
        if not isinstance(documents, Tensor) or documents.is_floating_point():
            raise ValueError(
                f"documents: expected a tensor of whole numbers, the document of each token, {(B, T)}"
            )
        given = documents.detach().cpu()
        given = given.expand(B, T) if given.ndim == 1 and len(given) == T else given
        if given.shape != ids.shape:
            raise ValueError(
                f"documents: expected the document of each token, {(B, T)}, got {tuple(documents.shape)}"
            )
        return given, "as you said"
    named = next((n for n in DOCUMENT_NAMES if isinstance(arguments.get(n), Tensor)), None)
    edges = next((n for n in EDGE_NAMES if isinstance(arguments.get(n), Tensor)), None)
    if named is not None and arguments[named].shape == ids.shape:
        found, how = arguments[named].detach().cpu(), f"as `{named}` says"
    # FlashAttention's edges count through the one row into which all texts were packed.
    elif edges is not None and B == 1 and int(arguments[edges].max()) == T:
        found = documents_of_edges(arguments[edges].detach().cpu(), T).expand(B, T)
        how = f"as `{edges}` says"
    elif numbers is not None:
        found, how = numbers, "as the numbers in the mask say"
    elif positions is not None:
        found, how = documents_of_positions(positions, real), "as `position_ids`, which begin again, say"
    if found is None:
        return None, ""
    several = any(len(set(row[keep].tolist())) > 1 for row, keep in zip(found, real, strict=True))
    return (found, how) if several else (None, "")


LENGTH = 16  # tokens of each text, unless told otherwise


def sample_batches(model: nn.Module, length: int = LENGTH) -> dict[str, dict[str, Any]]:
    """Return a plain, a left-padded and a packed batch for a model, by these names.

    Arguments:
        model: a language model: of Transformers, or a `regard.gpt.GPT`. One with an encoder gets no packed
            batch.
        length: the number of tokens, of which a third are padding, or the first document.
    """
    config = getattr(model, "config", None)
    ids = _tokens(config, length)
    first = max(1, length // 3)
    padding = torch.arange(length, device="cpu")[None] < first
    pad_id = getattr(config, "pad_token_id", None)
    padded = {
        "input_ids": ids.masked_fill(padding, pad_id if isinstance(pad_id, int) else 0),
        "attention_mask": (~padding).long(),
    }
    if getattr(config, "is_encoder_decoder", False):
        answer = {"decoder_input_ids": ids[:, : length // 2]}
        return {"plain": {"input_ids": ids} | answer, "padded": padded | answer}
    if hasattr(config, "model_type"):
        positions = torch.cat([torch.arange(n, device="cpu") for n in (first, length - first)])[None]
        # Transformers looks for packed documents in the positions only where there is no cache.
        packed: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    else:
        # `regard.gpt.GPT` takes a mask, and no positions.
        packed = {"input_ids": ids, "mask": Documents((~padding).long())}
    return {"plain": {"input_ids": ids}, "padded": padded, "packed": packed}


def _tokens(config: Any, length: int) -> Tensor:
    """Return random token ids (1, length), none of them special."""
    size = getattr(text_config(config), "vocab_size", None)
    if not isinstance(size, int):
        raise ValueError(f"model: expected a language model, whose config has a vocab_size, got {size!r}")
    names = ("pad", "bos", "eos", "image", "video", "audio")
    special = {getattr(config, f"{name}_token_id", None) for name in names}
    plain = [number for number in range(min(size, 1000)) if number not in special] or [0]
    chosen = torch.randint(
        len(plain), (1, length), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    )
    return torch.tensor(plain, device="cpu")[chosen]
