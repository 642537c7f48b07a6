"""Turns text into a model's inputs and token ids back into text, with the user's own tokenizer.

Tokenizers of Transformers and of the `tokenizers` package are supported; neither package is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def encode_text(tokenizer: Any, text: str | Sequence[str]) -> dict[str, Tensor]:
    """Tokenise a text, or several texts padded to one length, and return the model's input tensors by name.

    A tokenizer of the `tokenizers` package does not pad: with it, all texts must have equally many tokens.
    """
    texts = [text] if isinstance(text, str) else list(text)
    if not texts or not all(isinstance(x, str) for x in texts):
        raise ValueError(f"text: expected a text or a list of texts, got {text!r}")
    if not hasattr(tokenizer, "encode_batch"):
        encoding = tokenizer(texts, return_tensors="pt", padding=len(texts) > 1)
        return {name: x for name, x in encoding.items() if isinstance(x, Tensor)}
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    if len({len(x) for x in ids}) > 1:
        raise ValueError(
            f"text: expected texts of one length in tokens, got {[len(x) for x in ids]}: this tokenizer does "
            "not pad; pass them one at a time, or tokenizer=AutoTokenizer.from_pretrained(…)"
        )
    return {"input_ids": torch.tensor(ids)}


def token_id(tokenizer: Any, text: str) -> int:
    """Return the id of a text that is exactly one token, with its leading space if it has one."""
    has_batches = hasattr(tokenizer, "encode_batch")

    def encode(text: str) -> list[int]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return list(encoding.ids if has_batches else encoding)

    # A tokenizer that puts a space before every text encodes " cat" as a space and " cat".
    encodings = [encode(x) for x in dict.fromkeys((text, text.removeprefix(" "))) if x]
    ids = [ids[0] for ids in encodings if len(ids) == 1]
    exact = [number for number in ids if _decode_token(tokenizer, number) == text]
    if exact or (ids and not text.startswith(" ")):
        return (exact or ids)[0]
    pieces = [_decode_token(tokenizer, number) for number in (encodings[0] if encodings else [])]
    raise ValueError(f"token: expected a text that is one token, got {text!r}, which is {pieces}")


def decode_tokens(tokenizer: Any, ids: Tensor) -> list[list[str]]:
    """Return the text of each token of ids (B, T), each with its leading space."""
    texts = {number: _decode_token(tokenizer, number) for number in set(ids.flatten().tolist())}
    return [[texts[number] for number in row] for row in ids.tolist()]


def _decode_token(tokenizer: Any, number: int) -> str:
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
