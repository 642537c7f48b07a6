"""How a model or a block is run: what it reads, in which sizes and dtype, and which axis is the batch."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.interpretation.cases import Cases, forms, max_length, module_width
from regard.checker.oracle.question import Question
from regard.checker.subject.adapt import adapt, draw_weights
from regard.checker.subject.call_tensors import in_dtype, make_values, tensors_in_result
from regard.checker.subject.construct import build, choose_implementation, depth_left_out
from regard.checker.subject.source import attention_parts, is_block
from regard.checker.subject.subject import Subject
from regard.checker.whole_models.model_run import ModelRun, mixes_batch, token_count

if TYPE_CHECKING:
    pass


# T, by which no size is confused with another; shorter for models of few positions.
LENGTHS = (11, 6, 4)


def find_model(thing: Any, init: dict[str, Any], call: dict[str, Any], device: str) -> ModelRun | None:
    """Return a model or a block ready to run; None if the thing is an attention itself, or not a module.

    Whether it is one is seen by running it: it reads token ids, or a part of it attends.
    """
    is_class = isinstance(thing, type) and issubclass(thing, nn.Module)
    if not is_class and not isinstance(thing, nn.Module):
        return None
    try:
        module = build(thing, init) if is_class else thing
    except CheckError:
        return None  # `adapt` says what is missing
    if is_class:
        choose_implementation(module)
    embeds = any(isinstance(part, nn.Embedding) for part in module.modules())
    if not embeds and not is_block(module):
        return None
    run = _reading_ids(module, call, device if is_class else None) if embeds else None
    if run is not None and (run.calls or attention_parts(module)):
        run.depth = depth_left_out(thing, init) if is_class else ""
        return run
    if run is not None:
        run.restore()
        return None
    run = _reading_states(module, call, device) if is_block(module) else None
    # Where the module itself attends, it is an attention, whatever it holds.
    return run if run is not None and any(name for name, _ in run.calls) else None


def _reading_ids(module: nn.Module, call: dict[str, Any], device: str | None) -> ModelRun | None:
    """Return a model that ran on token ids.

    One that was built here gets new weights, on `device`. The caller's own, where `device` is None, is run
    as it is, in eval mode for as long as the check lasts. Neither is copied: minGPT's blocks hold their MLP
    in a lambda, which a copy would share with the original.
    """
    names, dtypes = list(inspect.signature(module.forward).parameters), [torch.float64, torch.float32]
    vocabulary_size = token_count(module)
    if vocabulary_size < 8 or not names:
        return None
    training = [part for part in module.modules() if part.training]
    module.eval()
    if device is not None:
        draw_weights(module.to(device))
    where = next((p.device for p in module.parameters()), torch.device("cpu"))
    if device is None:
        dtypes = [next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)]
    first = next((name for name in ("decoder_input_ids", "input_ids") if name in names), names[0])
    # A decoder reads another text, which is shorter or longer: then cross-attention is known by its sizes.
    changes = (-2, 2, 0) if first == "decoder_input_ids" else (0,)

    def tokens(dtype: torch.dtype, T: int, S: int) -> ModelRun:
        """Return a run on T ids, beside S ids of another text if it has an encoder."""

        def draw(seed: int) -> Tensor:
            generator = torch.Generator().manual_seed(seed)
            low = 4 if vocabulary_size > 16 else 0  # the first ids are often special: padding, unknown
            return torch.randint(low, vocabulary_size, (2, T), generator=generator).to(where)

        def run(x: Tensor, *, dtype: torch.dtype = dtype, **more: Any) -> Any:
            states = torch.zeros(*x.shape, 1, dtype=dtype)
            passed = make_values(call, Question("call", states, states, states)) | more
            if first == "decoder_input_ids":  # beside an encoder, which reads one text for all
                passed.setdefault("input_ids", torch.cat([draw(9), draw(8)], 1)[:1, :S].expand(len(x), -1))
            return module(**{first: x}, **passed)

        found = ModelRun(type(module).__name__, module, run, draw, f"token ids (2, {T})", dtype, training)
        found.own, found.memory = device is None, S if S != T else 0
        return found

    for dtype, change, T in itertools.product(dtypes, changes, LENGTHS):
        if device is not None:
            in_dtype(module, dtype)
        found = tokens(dtype, T, T + change)
        if found.observe():
            return found
    found.restore()
    return None


def _reading_states(module: nn.Module, call: dict[str, Any], device: str) -> ModelRun | None:
    """Return a block that ran on hidden states."""
    adapted = adapt(module, {}, None, call)
    adapted.device = device
    # The width is that of its norms, or else of its first layer.
    norms = [part for part in module.modules() if "norm" in type(part).__name__.lower()]
    sizes = [p.numel() for part in norms for p in part.parameters(recurse=False) if p.ndim == 1]
    width = Counter(sizes).most_common(1)[0][0] if sizes else module_width(module)

    def states(subject: Subject, dtype: torch.dtype) -> ModelRun:
        cases = Cases(subject, width, width, max_length(subject))
        question = cases.plain(T=11).to(dtype)
        own = subject.module_as(dtype)
        assert own is not None

        def run(x: Tensor) -> Any:
            inputs = question.map_inputs(lambda _: x)
            if subject.inputs == "context":  # a decoder's memory is another text, the same for every item
                memory = cases.plain(T=9, seed=7).q.to(x.dtype)[:1].expand(len(x), -1, -1)
                inputs = replace(inputs, k=memory, v=memory)
            reply = subject.run(inputs, module=own)
            if reply.error is not None:
                raise reply.error
            return reply.answer

        def draw(seed: int) -> Tensor:
            return cases.plain(T=11, seed=seed).q.to(dtype)

        memory = 9 if subject.inputs == "context" else 0
        inputs = f"hidden states {tuple(question.q.shape)}"
        return ModelRun(type(module).__name__, own, run, draw, inputs, dtype, memory=memory)

    for subject, dtype in itertools.product(forms(adapted), (torch.float64, torch.float32)):
        found = states(subject, dtype)
        if found.observe():
            return _time_first(found) or found
    return None


def _time_first(run: ModelRun) -> ModelRun | None:
    """Return a block as one on (B, T, C) if it takes (T, B, C), as nn.TransformerEncoderLayer does.

    Then the items of its second axis do not depend on each other, and those of its first do.
    """

    def call(x: Tensor) -> list[Tensor]:
        results = tensors_in_result(run.call(x.transpose(0, 1)))
        return [y.transpose(0, 1) if y.ndim > 1 else y for y in results]

    turned = replace(run, call=call, inputs=f"{run.inputs} as (T, B, C)", calls=[])
    if mixes_batch(run, run.draw(3)) and mixes_batch(turned, run.draw(3)) is False and turned.observe():
        return turned
    return None
