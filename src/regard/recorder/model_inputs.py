"""What a model is called with: inputs as they were given, or a text as its tokenizer makes it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.gpt import GPT
from regard.gpt.token_batch import Side
from regard.recorder.tokens_of_maps.tokens import encode_text

Inputs = Mapping[str, Any] | Sequence[Any] | Tensor
"""A model's inputs: keyword arguments by name, positional arguments in a sequence, or a single tensor."""


def model_name(model: nn.Module) -> str:
    """Return the name that the model was loaded by, or its class."""
    return getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__


def context_length(model: nn.Module) -> int | None:
    """Return the most tokens that a model can read, or None if its config does not say."""
    config = getattr(model, "config", None)
    # Regard's name for it, and Transformers'.
    lengths = (getattr(config, name, None) for name in ("context_length", "max_position_embeddings"))
    return next((length for length in lengths if isinstance(length, int)), None)


def model_arguments(
    model: nn.Module, inputs: Inputs | None, text: str | Sequence[str] | None, tokenizer: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments to run the model with."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, Mapping):
        kwargs = dict(inputs)
    elif isinstance(inputs, Tensor):
        args = (inputs,)
    elif isinstance(inputs, list | tuple):
        args = tuple(inputs)
    elif inputs is not None:
        raise ValueError(
            "inputs: expected a dict of the model's arguments, a tuple of them or a tensor, "
            f"got {type(inputs).__name__}" + (": did you mean text=?" if isinstance(inputs, str) else "")
        )
    if text is None:
        return args, kwargs
    if tokenizer is None:
        raise ValueError("text: expected a tokenizer beside it: tokenizer=AutoTokenizer.from_pretrained(…)")
    if args:
        raise ValueError("inputs: expected a dict of further arguments beside text=, got positional ones")
    side: Side = "left" if _writes_on(model) else "right"
    return (), model_inputs(model, encode_text(tokenizer, text, side)) | kwargs


def _writes_on(model: nn.Module) -> bool:
    """Whether a model continues its text, so that padding belongs on the left, as `generate` puts it.

    Under a causal mask either side gives the same maps. Architectures that may be encoders or decoders, as
    BERT, count their positions in ways of their own, which padding on the right leaves alone.
    """
    if isinstance(model, GPT):
        return True
    config = getattr(model, "config", None)
    # A method of Transformers' models; others do not generate in a way that is known here.
    generates = getattr(model, "can_generate", lambda: False)
    is_encoder = getattr(config, "is_encoder_decoder", False) or hasattr(config, "is_decoder")
    return bool(generates()) and not is_encoder


def model_inputs(model: nn.Module, encoding: dict[str, Tensor]) -> dict[str, Any]:
    """Turn the tensors of a tokenizer into arguments that this model takes, on the model's device."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    padded = "attention_mask" in encoding and not bool(encoding["attention_mask"].all())
    if padded and "attention_mask" not in parameters and not takes_any:
        raise ValueError(
            f"text: expected texts of one length in tokens, since {type(model).__name__} takes no "
            "attention_mask and would read padding as text: pass the texts one at a time"
        )
    if padded and "position_ids" in parameters and not bool(encoding["attention_mask"][:, 0].all()):
        # Positions count from the first token of each text, as under `generate`.
        positions = encoding["attention_mask"].cumsum(1) - 1
        encoding = {**encoding, "position_ids": positions.clamp(min=0)}
    # A model of somebody's own calls its ids as it likes.
    if "input_ids" not in parameters and not takes_any:
        return {next(iter(parameters)): encoding["input_ids"].to(device)}
    arguments = {name: x.to(device) for name, x in encoding.items() if takes_any or name in parameters}
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    # T5 and other encoder-decoders raise without a decoder's tokens; `generate` begins with this one.
    if "decoder_input_ids" in parameters and start is not None:
        arguments["decoder_input_ids"] = torch.full((len(encoding["input_ids"]), 1), start, device=device)
    return arguments
