"""`mean_outputs`: the mean output of every head over texts, with which an ablation can replace its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.recorder.attention_call import Call, UnreadableCall
from regard.recorder.call_receiver import CallReceiver
from regard.recorder.layer import LayerId
from regard.recorder.model_inputs import model_inputs
from regard.recorder.observation import observed
from regard.recorder.sources.structure_of_models.model_parts import original_model
from regard.recorder.tokens_of_maps.tokens import encode_text

Text = str | Tensor | Mapping[str, Any]
"""A text, its token ids (T,) or (1, T), or a dict of the model's own arguments."""


def text_inputs(model: nn.Module, texts: Text | Sequence[Text], tokenizer: Any) -> Iterator[dict[str, Any]]:
    """Yield the model's arguments for each text, one text at a time, so that nothing is padding.

    `tokenizer`, by default `model.tokenizer`, is needed for texts that are strings.
    """
    several = [texts] if isinstance(texts, str | Tensor | Mapping) else list(texts)
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    if not several:
        raise ValueError("texts: expected at least one text, got none")
    for text in several:
        if isinstance(text, Mapping):
            yield dict(text)
        elif isinstance(text, Tensor):
            if text.ndim not in (1, 2) or text.is_floating_point() or not text.numel():
                raise ValueError(f"texts: expected token ids (T,) or (B, T), got {tuple(text.shape)}")
            yield from (
                model_inputs(model, {"input_ids": row[None]}) for row in text.reshape(-1, text.shape[-1])
            )
        elif not isinstance(text, str):
            raise ValueError(f"texts: expected strings or token ids, got {type(text).__name__}")
        elif tokenizer is None:
            raise ValueError(
                "texts: expected a tokenizer beside strings: tokenizer=AutoTokenizer.from_pretrained(…)"
            )
        else:
            yield model_inputs(model, encode_text(tokenizer, text))


@torch.no_grad()
def mean_outputs(
    model: nn.Module,
    texts: Text | Sequence[Text],
    *,
    tokenizer: Any = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict[int | str, Tensor]:
    """Return the mean output of every head over all tokens of some texts: for each layer a tensor (H, E).

    `regard.ablate(layer, head, by=means)` then replaces a head's output by its mean.

    - `model`: any model that `regard.capture` serves.
    - `texts`: strings, token ids or dicts of the model's arguments; they are read one at a time.
    - `tokenizer`: for texts that are strings; by default `model.tokenizer`.
    - `report`: called with the number of texts read so far and of all texts.
    """
    model = original_model(model)
    inputs = list(text_inputs(model, texts, tokenizer))
    sums = OutputSums()
    with observed(model, sums):
        for number, arguments in enumerate(inputs):
            model(**arguments)
            report(number + 1, len(inputs))
    return sums.means()


class OutputSums(CallReceiver):
    """Adds up the outputs of every head."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: dict[int | str, Tensor] = {}  # (H, E) in float64
        self._counts: dict[int | str, int] = {}

    def record(self, layer_id: LayerId, call: Call) -> Call:
        """Add up the output of a call, and return the call."""
        with self._lock:
            _, layer_id = self._locate(layer_id, call)
        if isinstance(call, UnreadableCall):
            raise RuntimeError(f"layer {layer_id.key} has no output to average: {call.reason}")
        B, _, T, _ = call.used.shape
        # Sums over many tokens would lose digits in the model's precision.
        total = call.used.detach().double().sum((0, 2))
        self._sums[layer_id.key] = self._sums.get(layer_id.key, 0) + total
        self._counts[layer_id.key] = self._counts.get(layer_id.key, 0) + B * T
        return call

    def means(self) -> dict[int | str, Tensor]:
        """Return the means so far, for each layer (H, E) in float32."""
        return {key: (total / self._counts[key]).float() for key, total in self._sums.items()}
