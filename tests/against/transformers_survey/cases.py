"""The runs of a model that are judged: its inputs given and padded, forward and `generate`."""

import inspect
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.against.transformers_survey.inputs import PADDING, Inputs, candidates

TOKENS = 4  # that `generate` writes


@dataclass(frozen=True)
class Case:
    """One run: what it is called, how to do it, and which positions of the text are not padding."""

    name: str
    inputs: Inputs
    real: Tensor | None = None  # (B, T)

    def run(self, model, **more):
        torch.manual_seed(0)
        with torch.no_grad():
            if self.name == "generate":
                return model.generate(
                    **self.inputs,
                    max_new_tokens=TOKENS,
                    min_new_tokens=TOKENS,
                    do_sample=False,
                    num_beams=1,
                    pad_token_id=0,
                    **more,
                )
            return model(**self.inputs, **more)


def finite(output):
    return all(bool(x.isfinite().all()) for x in tensors(output).values() if x.dtype.is_floating_point)


def tensors(output, name=""):
    """Every tensor of an output by its path, without caches and attention weights."""
    if isinstance(output, Tensor):
        return {name: output}
    if isinstance(output, Mapping):
        items = list(output.items())
    elif isinstance(output, (list, tuple)):
        items = [(str(i), x) for i, x in enumerate(output)]
    else:
        return {}
    found = {}
    for key, value in items:
        if not any(word in str(key) for word in ("past_key", "attentions", "cache", "mems", "buckets")):
            found |= tensors(value, f"{name}.{key}" if name else str(key))
    return found


def first_that_runs(model, deadline=math.inf):
    """The first inputs with which the model's plain forward runs; none are tried after the deadline."""
    errors = []
    for inputs in candidates(model):
        if time.monotonic() > deadline:
            break
        try:
            output = Case("given", inputs).run(model)
        except Exception as error:
            errors.append(f"{', '.join(inputs)}: {type(error).__name__}: {str(error)[:160]}")
            continue
        if tensors(output):
            return inputs
        errors.append(f"{', '.join(inputs)}: gave no tensor")
    raise ValueError("; ".join(list(dict.fromkeys(errors))[:3]) or "no inputs known for its arguments")


def cases_of(model, inputs):
    """The given inputs, both paddings where the model takes a mask of its text, and generation."""
    cases = [Case("given", inputs)]
    parameters = inspect.signature(model.forward).parameters
    ids = inputs.get("input_ids")
    if ids is None or ids.ndim != 2 or "attention_mask" not in parameters:
        return cases
    masks = {"left": lambda x: x, "right": lambda x: x.flip(1)}
    for side, turned in masks.items():
        real = torch.ones_like(ids)
        real[0, :PADDING] = 0
        real = turned(real)
        if "pixel_values" in inputs:  # image tokens stay
            real = real | (ids >= 100)
        padded = inputs | {"input_ids": torch.where(real.bool(), ids, 0), "attention_mask": real}
        cases.append(Case(side, padded, real.bool()))
    if hasattr(model, "generate") and model.can_generate():
        left = {k: v for k, v in cases[1].inputs.items() if k != "decoder_input_ids"}
        cases.append(Case("generate", left, cases[1].real))
    return cases
