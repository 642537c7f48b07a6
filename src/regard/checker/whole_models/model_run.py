"""A model or a block that runs: what it reads, how it is called, and the attention calls that it makes."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.checker.errors import CheckError
from regard.checker.interpretation.cases import Cases, forms, max_length, module_width
from regard.checker.oracle.question import Question
from regard.checker.subject import vocabulary
from regard.checker.subject.adapt import adapt, draw_weights
from regard.checker.subject.call_tensors import in_dtype, make_values, tensors_in_result
from regard.checker.subject.construct import build, choose_implementation, depth_left_out
from regard.checker.subject.inside import collect_calls
from regard.checker.subject.source import attention_parts
from regard.checker.subject.subject import Subject

if TYPE_CHECKING:
    from regard.recorder.attention_call import AttentionCall, Call


def where_differ(a: Tensor, b: Tensor) -> Tensor:
    """Return (B, T), where outputs (B, T, …) differ by more than rounding. NaN differs from everything."""
    rounding = 1e-9 if a.dtype == torch.float64 else 1e-4
    # Beside −inf, any difference would be small.
    largest = a.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1e-30)
    # Logits of forbidden tokens may be -inf in both.
    same = ((a - b).abs() <= rounding * largest) | (a == b)
    return ~same.flatten(2).all(-1)


# T, by which no size is confused with another; shorter for models of few positions.
LENGTHS = (11, 6, 4)
TARGETS = ("targets", "labels", "target")


@dataclass
class ModelRun:
    """A model or a block, and how it is run: `call(x)` on token ids (B, T) or hidden states (B, T, C)."""

    name: str
    module: nn.Module
    call: Callable[..., Any]
    draw: Callable[[int], Tensor]  # inputs, by the seed
    inputs: str  # in words
    dtype: torch.dtype
    training: list[nn.Module] = field(default_factory=list)  # modules to be put back into training mode
    calls: list[tuple[str, Call]] = field(default_factory=list)
    depth: str = ""  # how many of its layers were built, if it has more or may: "2 of 24 layers"
    memory: int = 0  # tokens of the other text that a decoder reads, if it is of another length
    own: bool = False  # whether it is the caller's own instance, whose dtype stays as it is

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments of its forward pass."""
        return list(inspect.signature(self.module.forward).parameters)

    @property
    def reads_tokens(self) -> bool:
        """Whether it is run on token ids."""
        return not self.draw(0).is_floating_point()

    @property
    def attention(self) -> list[tuple[str, AttentionCall]]:
        """Its attention calls that could be read, by the names of the modules that made them."""
        from regard.recorder.attention_call import AttentionCall

        return [(name, call) for name, call in self.calls if isinstance(call, AttentionCall)]

    def restore(self) -> None:
        """Put the caller's own model back into training mode."""
        for part in self.training:
            part.training = True

    def observe(self) -> bool:
        """Run it once and keep its attention calls; returns whether it ran."""
        try:
            self.calls = collect_calls(self.module, lambda: self.call(self.draw(0)))
        except (Exception, SystemExit):  # it does not take such inputs
            return False
        return True

    def outputs(self, x: Tensor, **more: Any) -> Tensor | None:
        """Return an output (B, T, …) of the model, or None if it gives none for every position."""
        # nanoGPT gives the logits of all positions only beside the targets.
        targets = [name for name in TARGETS if name in self.parameters and not x.is_floating_point()]
        for keywords in (more, *({name: x} | more for name in targets)):
            try:
                with torch.no_grad():
                    result = self.call(x, **keywords)
            except (Exception, SystemExit):  # the author's code may raise anything
                continue
            outputs = [y for y in tensors_in_result(result) if y.is_floating_point() and y.ndim >= 3]
            if (output := next((y for y in outputs if y.shape[:2] == x.shape[:2]), None)) is not None:
                return output
        return None


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
    if not embeds and not _is_block(module):
        return None
    run = _reading_ids(module, call, device if is_class else None) if embeds else None
    if run is not None and (run.calls or attention_parts(module)):
        run.depth = depth_left_out(thing, init) if is_class else ""
        return run
    if run is not None:
        run.restore()
        return None
    run = _reading_states(module, call, device) if _is_block(module) else None
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


def token_count(model: nn.Module) -> int:
    """Return how many tokens a model knows: the size of its input embedding, or of its first embedding."""
    embedding = next(part for part in model.modules() if isinstance(part, nn.Embedding))
    # The first embedding may be one of positions or of token types.
    get_embedding = getattr(model, "get_input_embeddings", None)
    try:
        own = get_embedding() if callable(get_embedding) else None
    except NotImplementedError:  # a model of Transformers without one
        own = None
    return int(getattr(own, "num_embeddings", embedding.num_embeddings))


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


def batch_first_words(module: nn.Module) -> str:
    """Return the words by which the source of a block says that it takes (batch, time, …); "" if none do."""
    try:
        source = inspect.getsource(type(module))
    except (OSError, TypeError):  # a class made at a prompt
        return ""
    batch, time = r"(?:b|bs|bsz|batch(?:_?size)?)", r"(?:t|l|s|time\w*|\w*seq\w*|\w*len\w*|tokens?)"
    stated = re.search(rf"[(\[]\s*{batch}\s*,\s*{time}\s*,[^)\]]*[)\]]", source, re.IGNORECASE)
    opposite = re.search(rf"[(\[]\s*{time}\s*,\s*{batch}\s*,", source, re.IGNORECASE)
    return stated[0] if stated and not opposite else ""


def mixes_batch(run: ModelRun, x: Tensor) -> bool | None:
    """Return whether the items of a batch depend on each other; None if they cannot be run alone."""
    together = run.outputs(x)
    alone = [run.outputs(item[None]) for item in x]
    parts = [y for y in alone if y is not None]
    if together is None or len(parts) < len(alone):
        return None
    return bool(where_differ(together, torch.cat(parts)).any())


def _is_block(module: nn.Module) -> bool:
    """Return whether a module has layers around a part that may be an attention, such as an MLP.

    An attention module has its projections, of known names, and at most one that follows the heads.
    """
    matrices = [path for path, p in module.named_parameters() if p.ndim > 1]
    for path, part in module.named_modules():
        inside = [p for p in part.parameters() if p.ndim > 1]
        if not path or len(inside) < 2 or isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            continue
        outside = [vocabulary.projection(p) for p in matrices if not p.startswith(f"{path}.")]
        if None in outside or outside.count("out") > 1:
            return True
    return False


def attention_unit(model: nn.Module, path: str) -> str:
    """Return the path of the attention module that a call belongs to: of all heads, with its projections."""
    unit = path.partition("#")[0]
    parent = unit
    while parent:
        parent = parent.rpartition(".")[0]
        part = model.get_submodule(parent)
        if not parent or _is_block(part):
            break
        if not isinstance(part, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            unit = parent
    return unit


def calls_by_unit(run: ModelRun) -> dict[str, list[Call]]:
    """Return the calls of every attention module, and the modules called attention that made none."""
    units: dict[str, list[Call]] = {}
    for name, call in run.calls:
        units.setdefault(attention_unit(run.module, name), []).append(call)
    for path in attention_parts(run.module):
        related = any(f"{path}.".startswith(f"{u}.") or f"{u}.".startswith(f"{path}.") for u in units)
        if not related:
            units[path] = []
    return units
