"""Batches for a model that comes without any: one plain text, one padded text and one of packed documents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.masks.tensor_masks import Documents
from regard.auditor.expectation import text_config

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
