"""Text into a model's inputs, and token ids back into text, with the tokenizers that people have.

Those are Transformers' own and `tokenizers.Tokenizer`; neither is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def encoded(tokenizer: Any, text: str | Sequence[str]) -> dict[str, Tensor]:
    """The tensors that a model reads for a text, or for several of them, padded to one length."""
    texts = [text] if isinstance(text, str) else list(text)
    if not texts or not all(isinstance(x, str) for x in texts):
        raise ValueError(f"text: expected a text or a list of them, got {text!r}")
    if not hasattr(tokenizer, "encode_batch"):
        found = tokenizer(texts, return_tensors="pt", padding=len(texts) > 1)
        return {name: x for name, x in found.items() if isinstance(x, Tensor)}
    ids = [found.ids for found in tokenizer.encode_batch(texts)]
    if len({len(x) for x in ids}) > 1:
        raise ValueError(
            f"text: expected texts of one length in tokens, got {[len(x) for x in ids]}: this tokenizer does "
            "not pad; give them one at a time, or tokenizer=AutoTokenizer.from_pretrained(…)"
        )
    return {"input_ids": torch.tensor(ids)}


def spelled(tokenizer: Any, ids: Tensor) -> list[list[str]]:
    """Each token (B, T) as text, its leading space with it."""
    known = {number: _one(tokenizer, number) for number in set(ids.flatten().tolist())}
    return [[known[number] for number in row] for row in ids.tolist()]


def _one(tokenizer: Any, number: int) -> str:
    if hasattr(tokenizer, "id_to_token"):
        piece, text = tokenizer.id_to_token(number), tokenizer.decode([number], skip_special_tokens=False)
    else:
        piece, text = tokenizer.convert_ids_to_tokens(number), tokenizer.decode([number])
    if piece is None:
        return f"<{number}>"
    # A decoder that drops the space before a first word drops it before every token decoded alone.
    if piece[0] in "▁Ġ" and not text.startswith(" "):
        text = f" {text}"
    return str(text or piece)
